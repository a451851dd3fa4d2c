#include "sim/trace/chrome_import.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

class ChromeImport : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("chrome_import_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  Store read(const std::string& text, const std::string& name = "t.json") const {
    AtomicFile file(folder_ / name);
    file.write(text);
    file.commit();
    return open_trace(folder_ / name);
  }
  std::string problem_of(const std::string& text) const {
    try {
      read(text);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
};

// Kineto's clock is in microseconds since 1970: 1682725898236567.125 is no double. The first event
// is taken as the origin, to the whole microsecond.
TEST_F(ChromeImport, KeepsTimesOfTheClockExactly) {
  const Store store = read(R"({"schemaVersion":1,"traceEvents":[
    {"ph":"X","cat":"kernel","name":"ampere_gemm","pid":0,"tid":7,"ts":1682725898236567.125,
     "dur":2.5,"args":{"stream":7}},
    {"ph":"X","cat":"kernel","name":"ncclDevKernel_AllReduce","pid":0,"tid":20,
     "ts":1682725898236570.000001,"dur":1}]})");
  ASSERT_EQ(store.size(), 2u);
  EXPECT_EQ(store.start(0), 125'000);
  EXPECT_EQ(store.duration(0), 2'500'000);
  EXPECT_EQ(store.start(1), 3'000'001);
  EXPECT_EQ(store.kind(0), SliceKind::Gemm);
  EXPECT_EQ(store.kind(1), SliceKind::OtherComm);
  EXPECT_EQ(store.arguments(0), R"({"stream":7})");
}

TEST_F(ChromeImport, ReadsPairsFlowsCountersAndNames) {
  const Store store = read(R"([
    {"ph":"M","pid":1,"name":"process_name","args":{"name":"rank 3 · stage1 · gpu 3"}},
    {"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"tp"}},
    {"ph":"B","pid":1,"tid":1,"ts":0,"name":"outer","cat":"forward"},
    {"ph":"E","pid":1,"tid":1,"ts":10},
    {"ph":"X","pid":1,"tid":2,"ts":4,"dur":8,"name":"all_reduce","cat":"forward"},
    {"ph":"s","pid":1,"tid":1,"ts":5,"id":1,"cat":"flow","name":"c"},
    {"ph":"f","pid":1,"tid":2,"ts":5,"id":1,"cat":"flow","name":"c","bp":"e"},
    {"ph":"C","pid":1,"ts":0,"name":"gpu memory","args":{"weights_bytes":12}}])",
                           "t.json.gz");
  ASSERT_EQ(store.tracks.size(), 2u);
  EXPECT_EQ(store.processes[0].rank, 3);
  EXPECT_EQ(store.processes[0].role, "stage1");
  EXPECT_EQ(store.tracks[1].name, "tp");
  EXPECT_EQ(store.kind(1), SliceKind::TpComm);
  ASSERT_EQ(store.flows().size(), 1u);
  ASSERT_EQ(store.counters.size(), 1u);
  EXPECT_EQ(store.counters[0].value[0], 12);
  EXPECT_EQ(store.duration(0), 10'000'000);
}

// PyTorch's profiler writes some ends of arrows before their beginnings: two launches at 1 and 2,
// their kernels at 10 and 20, the second pair in the other order. An end at 5 has no beginning, and
// one at 0 lies before the only beginning of its id.
TEST_F(ChromeImport, JoinsArrowsInWhateverOrderTheyStand) {
  const Store store = read(R"([
    {"ph":"X","pid":1,"tid":1,"ts":1,"dur":0.5,"name":"cudaLaunchKernel","cat":"cuda_runtime"},
    {"ph":"X","pid":1,"tid":1,"ts":2,"dur":0.5,"name":"cudaLaunchKernel","cat":"cuda_runtime"},
    {"ph":"X","pid":0,"tid":7,"ts":10,"dur":5,"name":"gemm","cat":"kernel"},
    {"ph":"X","pid":0,"tid":7,"ts":20,"dur":5,"name":"gemm","cat":"kernel"},
    {"ph":"s","pid":1,"tid":1,"ts":1,"id":1,"cat":"ac2g"},
    {"ph":"f","pid":0,"tid":7,"ts":10,"id":1,"cat":"ac2g","bp":"e"},
    {"ph":"f","pid":0,"tid":7,"ts":20,"id":2,"cat":"ac2g","bp":"e"},
    {"ph":"s","pid":1,"tid":1,"ts":2,"id":2,"cat":"ac2g"},
    {"ph":"f","pid":0,"tid":7,"ts":5,"id":3,"cat":"ac2g","bp":"e"},
    {"ph":"f","pid":0,"tid":7,"ts":0,"id":4,"cat":"ac2g","bp":"e"},
    {"ph":"s","pid":1,"tid":1,"ts":2,"id":4,"cat":"ac2g"}])");
  ASSERT_EQ(store.flows().size(), 2u);
  for (const Flow& f : store.flows()) {
    EXPECT_EQ(store.definition(f.from).op, "cudaLaunchKernel");
    EXPECT_EQ(store.definition(f.to).op, "gemm");
  }
  EXPECT_EQ(store.warnings.size(), 1u);
}

TEST_F(ChromeImport, CountsWhatItLeavesOut) {
  const Store store = read(R"({"traceEvents":[7,
    {"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"good"},
    {"ph":"X","pid":1,"tid":1,"ts":"soon","dur":1,"name":"timeless"},
    {"ph":"X","pid":1,"tid":1,"ts":5,"dur":-4,"name":"backwards"},
    {"ph":"E","pid":1,"tid":1,"ts":9},
    {"ph":"X","pid":1,"tid":1,"ts":1e300,"dur":1,"name":"never"}]})");
  EXPECT_EQ(store.size(), 1u);
  EXPECT_EQ(store.warnings.size(), 4u);
}

TEST_F(ChromeImport, HostileFilesAreRefusedWithAReason) {
  EXPECT_NE(problem_of(""), "");
  EXPECT_NE(problem_of("{"), "");
  EXPECT_NE(problem_of("hello"), "");
  EXPECT_NE(problem_of("{\"traceEvents\":5}"), "");
  EXPECT_NE(problem_of("{\"traceEvents\":[]}").find("holds no slice"), std::string::npos);
  EXPECT_NE(problem_of("{\"traceEvents\":[{\"ph\":\"X\",\"ts\":1,").find("event 0"),
            std::string::npos);
  EXPECT_NE(problem_of(std::string(100'000, '[')), "");
  std::ofstream(folder_ / "t.json", std::ios::binary) << "\x1f\x8b" << std::string(50, 'x');
  EXPECT_THROW(open_trace(folder_ / "t.json"), InputError);
}

TEST(ParseMicroseconds, IsExactAndRefusesTheRest) {
  Ps out = 0;
  EXPECT_TRUE(parse_microseconds("12.00034", 0, out));
  EXPECT_EQ(out, 12'000'340);
  EXPECT_TRUE(parse_microseconds("-1.5", 0, out));
  EXPECT_EQ(out, -1'500'000);
  EXPECT_TRUE(parse_microseconds("0.123456789", 0, out));
  EXPECT_EQ(out, 123'456);
  EXPECT_TRUE(parse_microseconds("1e3", 0, out));
  EXPECT_EQ(out, 1'000'000'000);
  for (const char* text : {"", "x", "1.2.3", "99999999999999999999", "1e300", "nan", "1 "}) {
    EXPECT_FALSE(parse_microseconds(text, 0, out)) << text;
  }
}

// Profiles of PyTorch that others published; kept outside the repository.
TEST(KinetoSamples, AllOpen) {
  const fs::path folder = fs::path(GPUTWIN_SOURCE_DIR) / "../shared/data/files/kineto";
  const fs::path beside = fs::path(GPUTWIN_SOURCE_DIR) / "../../shared/data/files/kineto";
  const fs::path samples = fs::exists(folder) ? folder : beside;
  if (!fs::exists(samples)) GTEST_SKIP() << "no samples here";
  for (const char* name : {"alexnet_trace.json.gz", "cupti_trace.json.gz", "nccl_data.json.gz",
                           "sampled_rank-0.json.gz", "simple_add_trace.json.gz"}) {
    const Store store = open_trace(samples / name);
    EXPECT_GT(store.size(), 10u) << name;
    EXPECT_GT(store.range().length(), 0) << name;
  }
}

}  // namespace
}  // namespace gputwin
