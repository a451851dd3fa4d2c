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

/// kTwoStreams without the event that contains `text`.
std::string without(const std::string& text) {
  const std::size_t at = kTwoStreams.find(text);
  const std::size_t begin = kTwoStreams.rfind("{\"ph\"", at), end = kTwoStreams.find("}},", at) + 3;
  return kTwoStreams.substr(0, begin) + kTwoStreams.substr(end);
}

// With their own gaps the times come back whatever is understood: with factors of 1 that is how
// replay() is made, and no check.
TEST(Replay, KeepsGapsAsTheyWere) {
  for (const std::string& events : {kTwoStreams, without("Stream Wait Event")}) {
    const Replay r = replay(read(events));
    EXPECT_EQ(r.measured, 85'000'000);
    EXPECT_EQ(r.replayed, 85'000'000);
    EXPECT_EQ(r.gpu, 2);
    EXPECT_EQ(r.launched, 2);
    EXPECT_EQ(r.contradicted, 0);
  }
}

// Gaps: 10 us from the launch to the gemm, 2 from the gemm to the all-reduce, 3 to the return of
// the synchronisation: each is the only one of its kind, so the typical ones give 85 us again. What
// decides is the GPU's work: [0,10) launch, 40 + 2 + 30 + 3, and none of the host's.
TEST(CheckReplay, GivesTheTimeBackWhereAllIsKnown) {
  const ReplayCheck c = check_replay(read(kTwoStreams));
  EXPECT_EQ(c.replayed, 85'000'000);
  EXPECT_EQ(c.exact.waits, 1);
  EXPECT_EQ(c.exact.unrecorded, 0);
  EXPECT_EQ(c.unexplained, 0);
  EXPECT_EQ(c.moved_p95, 0);
  EXPECT_EQ(c.host, 0);
  EXPECT_EQ(c.gaps[static_cast<std::size_t>(Before::Event)].median, 2'000'000);
}

// Without the record of the wait the all-reduce seems to come 46 us after its launch at 6. Typical
// of {10, 46} is 10: it begins at 16 and ends at 46, the call returns 3 later, and the gemm ends
// last, at 50 of 85. The gap is 36 us too long, within what a launch may take; a call says that a
// stream waited.
TEST(CheckReplay, FailsWithoutAWaitOfAStream) {
  const ReplayCheck c = check_replay(read(without("Stream Wait Event")));
  EXPECT_EQ(c.exact.replayed, 85'000'000);
  EXPECT_EQ(c.replayed, 50'000'000);
  EXPECT_NEAR(c.error(), 50.0 / 85 - 1, 1e-12);
  EXPECT_EQ(c.exact.waits, 0);
  EXPECT_EQ(c.exact.unrecorded, 1);
  EXPECT_EQ(c.moved_p95, 0);  // of two starts, the lower: the gemm's
}

// The launch of the gemm has another number: the gemm has no known cause and stays where it was,
// and nothing else changes; the count says it.
TEST(CheckReplay, CountsWorkWithoutALaunch) {
  std::string broken = kTwoStreams;
  const std::string own = R"("args":{"stream":7,"correlation":1})";
  broken.replace(broken.find(own), own.size(), R"("args":{"stream":7,"correlation":77})");
  const ReplayCheck c = check_replay(read(broken));
  EXPECT_EQ(c.exact.launched, 1);
  EXPECT_EQ(c.exact.gpu, 2);
}

// A copy on a third stream, launched at 7 and begun at 80, waited for something that no event says:
// 63 us beyond the typical 10. It ends at 81, before the all-reduce: the time stays as it was, and
// the copy is named.
TEST(CheckReplay, NamesWaitingThatDecidesNothing) {
  const ReplayCheck c = check_replay(read(kTwoStreams + R"(,
 {"ph":"X","cat":"cuda_runtime","name":"cudaMemcpyAsync","pid":9,"tid":10,"ts":7,"dur":1,
  "args":{"correlation":6}},
 {"ph":"X","cat":"gpu_memcpy","name":"Memcpy DtoD","pid":0,"tid":21,"ts":80,"dur":1,
  "args":{"stream":21,"correlation":6}})"));
  EXPECT_EQ(c.replayed, 85'000'000);
  EXPECT_EQ(c.unexplained, 1);
  EXPECT_EQ(c.unexplained_time, 63'000'000);
  EXPECT_EQ(c.longest, 63'000'000);
}

// The host works 20 us between two launches of 2: the second kernel comes 22 + 10 after the first
// launch. Of the 37 us, 22 are the host's: its launch and what it did then.
TEST(CheckReplay, SaysWhatIsTheHosts) {
  const ReplayCheck c = check_replay(read(R"(
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":0,"dur":2,
  "args":{"correlation":1}},
 {"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":9,"tid":9,"ts":22,"dur":2,
  "args":{"correlation":2}},
 {"ph":"X","cat":"kernel","name":"a","pid":0,"tid":7,"ts":10,"dur":5,
  "args":{"stream":7,"correlation":1}},
 {"ph":"X","cat":"kernel","name":"b","pid":0,"tid":7,"ts":32,"dur":5,
  "args":{"stream":7,"correlation":2}})"));
  EXPECT_EQ(c.replayed, 37'000'000);
  EXPECT_EQ(c.host, 22'000'000);
}

// A profile without work of a GPU holds calls, and no kernels.
TEST(CheckReplay, TakesNoCallForAKernel) {
  const ReplayCheck c = check_replay(read(R"(
 {"ph":"X","cat":"cuda_runtime","name":"cudaMalloc","pid":9,"tid":9,"ts":0,"dur":2,"args":{}},
 {"ph":"X","cat":"cuda_profiler_range","name":"sm80_gemm","pid":0,"tid":0,"ts":4,"dur":9,
  "args":{}},
 {"ph":"X","cat":"cpu_op","name":"aten::mm","pid":9,"tid":9,"ts":0,"dur":9,"args":{}})"));
  EXPECT_EQ(c.exact.gpu, 0);
  EXPECT_EQ(c.exact.calls, 1);
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

// Profiles of PyTorch that others published; kept outside the repository. All four are bound by the
// host, whose own work is taken as measured, so that their wall time says little; what the GPU
// waited for is told apart. Waiting of unknown cause, of the wall time: two runs of seconds with
// one kernel that came 3 and 4 s after its launch, a profile of which four kernels wait, and one
// without any record of events between its streams, where most of the time is unexplained.
TEST(ReplaySamples, SayHowMuchIsUnderstood) {
  const fs::path folder = fs::path(GPUTWIN_SOURCE_DIR) / "../shared/data/files/kineto";
  const fs::path beside = fs::path(GPUTWIN_SOURCE_DIR) / "../../shared/data/files/kineto";
  const fs::path samples = fs::exists(folder) ? folder : beside;
  if (!fs::exists(samples)) GTEST_SKIP() << "no samples here";
  struct Sample {
    const char* name;
    std::int64_t gpu, unexplained;
    double share;
  };
  for (const Sample& sample : {Sample{"alexnet_trace.json.gz", 98, 8, 0.0712},
                               Sample{"nccl_data.json.gz", 3774, 4, 0.0025},
                               Sample{"sampled_rank-0.json.gz", 1204, 392, 0.863},
                               Sample{"simple_add_trace.json.gz", 98, 9, 0.1028},
                               Sample{"cupti_trace.json.gz", 0, 0, 0}}) {
    const ReplayCheck c = check_replay(open_trace(samples / sample.name));
    EXPECT_EQ(c.exact.gpu, sample.gpu) << sample.name;
    EXPECT_EQ(c.exact.launched, sample.gpu) << sample.name;
    EXPECT_EQ(c.exact.replayed, c.exact.measured) << sample.name;
    EXPECT_NEAR(c.error(), 0, 0.01) << sample.name;
    EXPECT_EQ(c.unexplained, sample.unexplained) << sample.name;
    EXPECT_NEAR(static_cast<double>(c.unexplained_time) / static_cast<double>(c.exact.measured),
                sample.share, 0.001)
        << sample.name;
  }
}

}  // namespace
}  // namespace gputwin
