#include "sim/trace/replay.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "sim/trace/atomic_file.h"
#include "sim/trace/chrome_import.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

Store read(const std::string& events) {
  const fs::path path =
      fs::temp_directory_path() / ("replay_test_" + std::to_string(::getpid()) + ".json");
  AtomicFile file(path);
  file.write(R"({"traceEvents":[)" + events + "]}");
  file.commit();
  Store store = open_trace(path);
  fs::remove(path);
  return store;
}

// Launches on stream 7 at -200, -180, … us; each kernel begins 10 us after its launch and takes 5.
std::string warm_up() {
  std::string events;
  for (int i = 0; i < 5; ++i) {
    const std::string id = std::to_string(100 + i);
    events += R"({"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":)" +
              std::to_string(20 * i - 200) + R"(,"dur":2,"args":{"correlation":)" + id + "}}," +
              R"({"ph":"X","cat":"kernel","name":"add","pid":0,"tid":7,"ts":)" +
              std::to_string(20 * i - 190) + R"(,"dur":5,"args":{"stream":7,"correlation":)" + id +
              "}},";
  }
  return events;
}

// The host launches a gemm at 0 (it runs [10,50) us on stream 7), records an event, lets stream 20
// wait for it and launches an all-reduce at 6 that runs [52,82); then it synchronises [8,85).
const std::string kTwoStreams = R"(
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":0,"dur":2,
  "args":{"correlation":1}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaEventRecord","pid":9,"tid":9,"ts":2,"dur":1,
  "args":{"correlation":2}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaStreamWaitEvent","pid":9,"tid":9,"ts":4,"dur":1,
  "args":{"correlation":3}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":6,"dur":2,
  "args":{"correlation":4}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaDeviceSynchronize","pid":9,"tid":9,"ts":8,"dur":77,
  "args":{"correlation":5}},
 {"ph":"X","cat":"kernel","name":"sm80_gemm","pid":0,"tid":7,"ts":10,"dur":40,
  "args":{"stream":7,"correlation":1}},
 {"ph":"X","cat":"cuda_sync","name":"Stream Wait Event","pid":0,"tid":20,"ts":4,"dur":0,
  "args":{"wait_on_stream":7,"wait_on_cuda_event_record_corr_id":2,"stream":20,"correlation":3}},
 {"ph":"X","cat":"kernel","name":"ncclKernel_AllReduce_RING_LL_Sum_float","pid":0,"tid":20,
  "ts":52,"dur":30,"args":{"stream":20,"correlation":4}})";

TEST(Replay, GivesTheMeasuredTimeBack) {
  const Replay r = replay(read(kTwoStreams));
  EXPECT_EQ(r.measured, 85'000'000);
  EXPECT_EQ(r.replayed, 85'000'000);
  EXPECT_EQ(r.gpu, 2);
  EXPECT_EQ(r.launched, 2);
  EXPECT_EQ(r.waits, 1);
  EXPECT_EQ(r.contradicted, 0);
  EXPECT_EQ(r.explained, 85'000'000);
  EXPECT_EQ(r.late, 0);
}

std::string without(std::string events, const std::string& piece) {
  const std::size_t at = events.find(piece);
  EXPECT_NE(at, std::string::npos) << piece;
  return events.erase(at, piece.size());
}

// Every kernel begins 10 us after its launch, or 2 after the other stream: nothing is late. Without
// the recorded wait the all-reduce depends on its launch at 6 alone, should begin at 16 and ends at
// 46; the gemm ends at 50, 250 us after the first launch instead of 285.
TEST(Replay, ShowsALostWaitOfAStream) {
  const Replay whole = replay(read(warm_up() + kTwoStreams));
  EXPECT_EQ(whole.measured, 285'000'000);
  EXPECT_EQ(whole.explained, 285'000'000);
  EXPECT_EQ(whole.late, 0);
  const Replay lost =
      replay(read(warm_up() + without(kTwoStreams, R"("wait_on_cuda_event_record_corr_id":2,)")));
  EXPECT_EQ(lost.waits, 0);
  EXPECT_EQ(lost.replayed, 285'000'000);  // with its own gaps nothing shows
  EXPECT_EQ(lost.explained, 250'000'000);
  EXPECT_EQ(lost.late, 1);
  EXPECT_EQ(lost.late_by, 36'000'000);
}

// The gemm's launch is not found, and it comes 95 us after the last work of its stream, at -105:
// the one gap of its kind, so typical. Nothing is late, but one launch is missing.
TEST(Replay, ShowsALostLaunch) {
  const Replay lost =
      replay(read(warm_up() + without(kTwoStreams, R"("stream":7,"correlation":1)")));
  EXPECT_EQ(lost.gpu, 7);
  EXPECT_EQ(lost.launched, 6);
}

// A gemm of half the time, 20 us, ends at 30: the all-reduce begins 2 later and ends at 62, the
// synchronisation 3 after it, at 65. Without the recorded wait nothing would move.
TEST(Replay, FollowsEventsAndSynchronisation) {
  ReplayFactors factors;
  factors.fill(1);
  factors[static_cast<std::size_t>(SliceKind::Gemm)] = 0.5;
  EXPECT_EQ(replay(read(kTwoStreams), factors).replayed, 65'000'000);
  factors[static_cast<std::size_t>(SliceKind::OtherComm)] = 2;  // and 30 us more
  EXPECT_EQ(replay(read(kTwoStreams), factors).replayed, 95'000'000);
}

// Profiles of PyTorch that others published; kept outside the repository. Typical gaps give their
// time within 1 % too, so it is explained by what was recorded.
TEST(ReplaySamples, ComeBackToTheirWallTime) {
  const fs::path folder = fs::path(GPUTWIN_SOURCE_DIR) / "../shared/data/files/kineto";
  const fs::path beside = fs::path(GPUTWIN_SOURCE_DIR) / "../../shared/data/files/kineto";
  const fs::path samples = fs::exists(folder) ? folder : beside;
  if (!fs::exists(samples)) GTEST_SKIP() << "no samples here";
  for (const char* name : {"alexnet_trace.json.gz", "nccl_data.json.gz", "sampled_rank-0.json.gz",
                           "simple_add_trace.json.gz"}) {
    const Replay r = replay(open_trace(samples / name));
    EXPECT_GT(r.gpu, 50) << name;
    EXPECT_GT(r.launched, r.gpu * 9 / 10) << name;
    EXPECT_EQ(r.replayed, r.measured) << name;
    EXPECT_NEAR(r.explained_error(), 0, 0.01) << name;
  }
}

}  // namespace
}  // namespace gputwin
