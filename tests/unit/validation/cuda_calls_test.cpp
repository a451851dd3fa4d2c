// The CUDA backend's calls against a double of the libraries: order, errors, time-outs. No GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "tests/support/cuda_double/cuda_double.h"
#include "validation/executors/cuda/communicator.h"
#include "validation/executors/cuda/gemm.h"

namespace gputwin::cuda {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "";
}

// Stream b waits for what stream a did before the record: record on a, then wait on b.
TEST(CudaCalls, AnEventOrdersTwoStreams) {
  cuda_double::start({});
  {
    Stream a, b;
    Event event;
    event.record(a);
    event.wait_on(b);
  }
  EXPECT_THAT(cuda_double::calls(),
              ElementsAre("cudaStreamCreateWithFlags", "cudaStreamCreateWithFlags",
                          "cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent",
                          "cudaEventDestroy", "cudaStreamDestroy", "cudaStreamDestroy"));
  EXPECT_EQ(cuda_double::alive(), 0);
}

// A stream that hangs is named within its limit, and the host goes on.
TEST(CudaCalls, AHungStreamIsReportedWithinItsLimit) {
  cuda_double::start({.hung = true});
  Stream stream;
  Event event;
  event.record(stream);
  EXPECT_THAT(error_of([&] { wait(event, 0.01, "rank 1, compute: F/mb0/L3/fc1"); }),
              HasSubstr("rank 1, compute: F/mb0/L3/fc1 did not end within"));
}

// The other member never joins. Once aborted, a communicator ends what waits and takes no calls.
TEST(CudaCalls, AnAbortedCommunicatorEndsWhatWaits) {
  cuda_double::start({});
  {
    use_device(0);
    Stream stream;
    Event event;
    const auto tp = join_all(std::array{0, 1});
    float x = 0;
    tp[0]->collective(OpKind::AllReduce, &x, &x, 1, ncclFloat32, false, 0, stream);
    event.record(stream);
    EXPECT_THAT(error_of([&] { wait(event, 0.01, "all_reduce #17"); }),
                HasSubstr("all_reduce #17 did not end within"));
    tp[0]->abort();
    wait(event, 60, "what waited for a member");
    EXPECT_TRUE(tp[0]->aborted());
    EXPECT_THAT(error_of([&] { tp[0]->send(&x, 4, 1, stream); }), HasSubstr("has been aborted"));
  }
  EXPECT_THAT(cuda_double::calls(), Contains("ncclCommAbort").Times(1));
  EXPECT_THAT(cuda_double::calls(), Contains("ncclCommDestroy").Times(1));
  EXPECT_EQ(cuda_double::alive(), 0);
}

TEST(CudaCalls, ALostMemberIsKnownAtOnce) {
  cuda_double::start({.member_lost = true});
  const auto tp = join_all(std::array{0, 1});
  EXPECT_THAT(tp[1]->trouble(), HasSubstr("remote process exited"));
  cuda_double::start({});
  EXPECT_EQ(join_all(std::array{0, 1})[0]->trouble(), "");
}

// Each call that a product, a copy and a message make may fail: each is named, nothing leaks.
TEST(CudaCalls, EveryFailureNamesItsCall) {
  const auto everything = [] {
    use_device(1);
    Stream stream;
    Event event;
    Arena arena(4096);
    HostBuffer host(256, true);
    void* const place = arena.take(256);
    copy(place, host.data(), 256, cudaMemcpyHostToDevice, stream);
    Gemm gemm(256);
    gemm.run({4, 4, 4, false, true, false, 4, 4, 4}, place, place, place, stream);
    const auto joined = join_all(std::array{0, 1});
    Communicator& comm = *joined[1];
    for (const OpKind kind : {OpKind::AllReduce, OpKind::AllGather, OpKind::ReduceScatter,
                              OpKind::Broadcast, OpKind::AllToAll}) {
      comm.collective(kind, place, place, 4, ncclFloat32, false, 0, stream);
    }
    Group group;
    comm.send(place, 4, 0, stream);
    comm.receive(place, 4, 0, stream);
    group.end();
    event.record(stream);
    event.wait_on(stream);
    for (const auto& member : joined) member->abort();  // the other one never joins
    wait(event, 60, "all");
    static_cast<void>(seconds_between(event, event));
  };
  cuda_double::start({});
  everything();
  EXPECT_EQ(cuda_double::alive(), 0);
  int tried = 0;
  for (const std::string& call : cuda_double::calls()) {
    if (call.find("Destroy") != std::string::npos || call.find("Free") != std::string::npos) {
      continue;  // ends of lives: destructors do not throw
    }
    cuda_double::start({.failing = call});
    EXPECT_THAT(error_of(everything), HasSubstr(call)) << call;
    EXPECT_EQ(cuda_double::alive(), 0) << call;
    ++tried;
  }
  EXPECT_GT(tried, 30);
}

TEST(CudaCalls, TheArenaSaysByHowMuchItIsTooSmall) {
  cuda_double::start({});
  Arena arena(1024);
  arena.take(1);  // 256 with its alignment
  EXPECT_THAT(error_of([&] { arena.take(1000); }), HasSubstr("256 bytes too small"));
  EXPECT_EQ(arena.used(), 256u);
}

TEST(CudaCalls, RanksThatShareAGpuAreRefused) {
  cuda_double::start({.devices = 2});
  EXPECT_THAT(error_of([] {
                need_distinct(std::array{0, 1, 0});
              }),
              HasSubstr("ranks 0 and 2 share GPU 0"));
  EXPECT_THAT(error_of([] {
                need_distinct(std::array{0, 2});
              }),
              HasSubstr("rank 1 wants GPU 2, and this machine has 2"));
  EXPECT_EQ(error_of([] { need_distinct(std::array{1, 0}); }), "");
}

// No driver is no error: there are no GPUs.
TEST(CudaCalls, AMachineWithoutGpusHasNone) {
  cuda_double::start({.devices = 0});
  EXPECT_EQ(device_count(), 0);
  EXPECT_THAT(error_of([] { use_device(0); }), HasSubstr("there is no GPU 0"));
}

}  // namespace
}  // namespace gputwin::cuda
