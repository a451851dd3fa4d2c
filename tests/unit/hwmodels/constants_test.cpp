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
  EXPECT_THAT(names, testing::IsSupersetOf({"a100-sxm-40gb", "a100-sxm-80gb", "b200-sxm", "gb200",
                                            "h100-sxm-80gb", "h200-sxm-141gb", "t4",
                                            "v100-sxm2-16gb", "v100-sxm2-32gb"}));
  for (const std::string& name : names) {
    const Device device = load_device(data_folder() / "devices" / (name + ".json"));
    EXPECT_EQ(device.name, name);
    EXPECT_GE(device.constants.size(), 35u) << name;
    for (const Constant& constant : device.constants) EXPECT_FALSE(constant.source.empty());
    EXPECT_GT(device.dense_peak(DType::F16).value, 0) << name;
  }
}

// Data sheet of the A100: 108 SMs, 312 dense bf16 TFLOP/s, 80 GiB at 2,039 GB/s.
TEST(Devices, ReadUnitsFromTheirKeys) {
  const Device a100 = load_device(data_folder() / "devices" / "a100-sxm-80gb.json");
  EXPECT_EQ(a100.sms, 108);
  EXPECT_DOUBLE_EQ(a100.dense_peak(DType::Bf16).value, 312e12);
  EXPECT_EQ(a100.memory.value, std::int64_t{80} << 30);
  EXPECT_DOUBLE_EQ(a100.memory_bandwidth.value, 2039e9);
  EXPECT_DOUBLE_EQ(a100.gemm.start_up.value, 3.9e-6);
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
  const InputError error = error_of(changed_device("\"value\": 0.92", "\"value\": 1.92"));
  EXPECT_EQ(error.pointer, "/gemm/tile_efficiency/value");
  EXPECT_EQ(error.value, "1.92");
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
