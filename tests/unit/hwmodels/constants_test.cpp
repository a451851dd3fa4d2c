#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "sim/core/error.h"
#include "tests/unit/hwmodels/world.h"

namespace gputwin {
namespace {

using test::data_folder;
using testing::HasSubstr;

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// The A100 file with `from` replaced by `to`, under the name it states.
std::filesystem::path changed_device(const std::string& from, const std::string& to) {
  std::string text = text_of(data_folder() / "devices" / "a100-sxm-80gb.json");
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) /
      testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(folder);
  const std::filesystem::path file = folder / "a100-sxm-80gb.json";
  std::ofstream(file) << text;
  return file;
}

InputError error_of(const std::filesystem::path& file) {
  try {
    load_device(file);
  } catch (const InputError& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return {"", "", "", "", ""};
}

TEST(Devices, ShippedOnesLoadAndEveryNumberHasAnOrigin) {
  const std::vector<std::string> names = list_devices(data_folder() / "devices");
  EXPECT_THAT(names, testing::IsSupersetOf({"a100-sxm-40gb",
                                            "a100-sxm-80gb",
                                            "a800-sxm-80gb",
                                            "b200-sxm",
                                            "b300-sxm",
                                            "gb200",
                                            "gb300",
                                            "h100-sxm-80gb",
                                            "h100-sxm-96gb-500w",
                                            "h200-sxm-141gb",
                                            "h800-sxm-80gb",
                                            "l4",
                                            "p40",
                                            "t4",
                                            "titan-x",
                                            "v100-pcie-16gb",
                                            "v100-sxm2-16gb",
                                            "v100-sxm2-32gb",
                                            "v100-sxm3-32gb",
                                            "v100-sxm3-32gb-450w"}));
  for (const std::string& name : names) {
    const Device device = load_device(data_folder() / "devices" / (name + ".json"));
    EXPECT_EQ(device.name, name);
    EXPECT_GE(device.constants.size(), 35u) << name;
    for (const Constant& constant : device.constants) EXPECT_FALSE(constant.source.empty());
    if (device.processor) continue;  // a computer, not a GPU
    for (DType dtype :
         {DType::F32, DType::Tf32, DType::F16, DType::Bf16, DType::F8, DType::Mxf8, DType::Nvf4}) {
      EXPECT_GE(device.dense_peak(dtype).value, device.dense_peak(DType::F32).value) << name;
    }
    EXPECT_GT(device.dense_peak(DType::F32).value, 5e12) << name;
  }
}

// A part without matrix units multiplies 16-bit formats in fp32: P40 11.76 TFLOP/s.
TEST(Devices, WithoutMatrixUnitsMultiplyInFp32) {
  const Device p40 = load_device(data_folder() / "devices" / "p40.json");
  EXPECT_DOUBLE_EQ(p40.dense_peak(DType::F16).value, 11.76e12);
  EXPECT_DOUBLE_EQ(p40.dense_peak(DType::Bf16).value, 11.76e12);
  EXPECT_EQ(p40.nvlink.nominal.value, 0);
}

// GB300 is like GB200: its fp4 peak and memory are its own, the norm's efficiency is taken over.
TEST(Devices, TakeOverFromTheOneTheyAreLike) {
  const Device gb200 = load_device(data_folder() / "devices" / "gb200.json");
  const Device gb300 = load_device(data_folder() / "devices" / "gb300.json");
  EXPECT_DOUBLE_EQ(gb300.dense_peak(DType::Nvf4).value, 15000e12);
  EXPECT_DOUBLE_EQ(gb300.dense_peak(DType::Bf16).value, 2500e12);
  EXPECT_DOUBLE_EQ(gb300.memory_bound.softmax, gb200.memory_bound.softmax);
  for (const Constant& constant : gb300.constants) {
    if (constant.pointer != "/memory_bound/softmax_efficiency") continue;
    EXPECT_EQ(constant.kind, Evidence::Assumed);
    EXPECT_THAT(constant.source, testing::StartsWith("as gb200: "));
  }
}

// b is like a: its own sms and no nvlink; c is like itself, which has no end.
TEST(Devices, OverlayGroupsRemoveKeysAndRefuseLoops) {
  const auto folder = changed_device("", "").parent_path();
  const auto write = [&](const std::string& name, const std::string& keys) {
    const auto file = folder / (name + ".json");
    std::ofstream(file) << "{\"name\": \"" << name << "\", " << keys << "}";
    return file;
  };
  const std::string sms = R"("sms": {"value": 7, "source": "x", "kind": "datasheet"})";
  const Device b = load_device(write("b", R"("like": "a100-sxm-80gb", "nvlink": null, )" + sms));
  EXPECT_EQ(b.sms, 7);
  EXPECT_EQ(b.nvlink.nominal.value, 0);
  EXPECT_DOUBLE_EQ(b.memory_bandwidth.value, 2039e9);
  EXPECT_EQ(error_of(write("c", R"("like": "c")")).pointer, "/like");
}

// Data sheet of the A100: 108 SMs, 312 dense bf16 TFLOP/s, 80 GiB at 2,039 GB/s.
TEST(Devices, ReadUnitsFromTheirKeys) {
  const Device a100 = load_device(data_folder() / "devices" / "a100-sxm-80gb.json");
  EXPECT_EQ(a100.sms, 108);
  EXPECT_DOUBLE_EQ(a100.dense_peak(DType::Bf16).value, 312e12);
  EXPECT_EQ(a100.memory.value, std::int64_t{80} << 30);
  EXPECT_DOUBLE_EQ(a100.memory_bandwidth.value, 2039e9);
  EXPECT_DOUBLE_EQ(a100.clock_MHz, 1410);
  EXPECT_NEAR(a100.gemm.start_up.value, 4e-6, 3e-6) << "microseconds, not seconds";
}

// A100 has no fp8 units: fp8 matrices are multiplied at the fp16 rate. Volta multiplies bf16 in
// fp32.
TEST(Devices, EmulateFormatsTheyLack) {
  const Device a100 = load_device(data_folder() / "devices" / "a100-sxm-80gb.json");
  EXPECT_DOUBLE_EQ(a100.dense_peak(DType::F8).value, 312e12);
  const Device v100 = load_device(data_folder() / "devices" / "v100-sxm2-16gb.json");
  EXPECT_DOUBLE_EQ(v100.dense_peak(DType::Bf16).value, 15.7e12);
}

TEST(Devices, NameTheKeyThatIsUnknown) {
  const InputError error = error_of(changed_device("\"nn_time\"", "\"nm_time\""));
  EXPECT_EQ(error.pointer, "/gemm/nn_time");  // the missing one is met first
  EXPECT_THAT(error.problem, HasSubstr("missing"));
}

TEST(Devices, RefuseKeysNobodyAskedFor) {
  const InputError error = error_of(changed_device(
      "\"sms\":", "\"smms\": {\"value\": 1, \"source\": \"x\", \"kind\": \"assumed\"}, \"sms\":"));
  EXPECT_EQ(error.pointer, "/smms");
  EXPECT_THAT(error.fix, HasSubstr("/sms"));
}

TEST(Devices, RefuseNumbersOutsideTheirRange) {
  const InputError error = error_of(changed_device("\"tile_efficiency\": {\n   \"value\": 0.",
                                                   "\"tile_efficiency\": {\n   \"value\": 1."));
  EXPECT_EQ(error.pointer, "/gemm/tile_efficiency/value");
  EXPECT_THAT(error.value, testing::StartsWith("1."));
  EXPECT_THAT(error.fix, HasSubstr("at most 1"));
}

TEST(Devices, RefuseUnknownKindsOfEvidence) {
  const InputError error = error_of(changed_device("\"datasheet\"", "\"guessed\""));
  EXPECT_THAT(error.pointer, HasSubstr("/kind"));
  EXPECT_EQ(error.value, "\"guessed\"");
}

TEST(Devices, RefuseBrokenAndMissingFiles) {
  EXPECT_THAT(error_of(changed_device("{", "[")).problem, HasSubstr("not JSON"));
  EXPECT_THAT(error_of("no_such_device.json").problem, HasSubstr("cannot be read"));
}

TEST(HardwareModel, NamesTheNearestDevice) {
  const Topology topology(test::nvswitch_cluster("a100-sxm-80g", 1, 300, 25));
  try {
    const HardwareModel model(topology, Job{}, data_folder());
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.value, "a100-sxm-80g");
    EXPECT_THAT(error.fix, HasSubstr("a100-sxm-80gb"));
  }
}

}  // namespace
}  // namespace gputwin
