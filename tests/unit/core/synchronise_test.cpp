#include "sim/core/plan_builder.h"
#include "sim/core/plan_text.h"
#include "sim/core/verify.h"

namespace gputwin {
namespace {

// A GEMM writes y, an all-reduce on another stream sums it, a second GEMM reads it.
constexpr const char* kProducerReduceConsumer = R"(
buffer x 4x8 f32 framed
buffer y 4x8 f32 framed
buffer z 4x8 f32 framed
communicator tp0 0 1
program p frames=1
  stream compute compute
  stream tp communication
  slot tp tp
body
  kernel compute F/L0/fc1 @0 gemm m=4 n=8 k=8 : x x : y
  collective tp F/L0/sum @0 all_reduce n=32 slot=tp : y : y
  kernel compute F/L0/other @0 gemm m=4 n=8 k=8 : x x : z
  kernel compute F/L0/fc2 @0 gemm m=4 n=8 k=8 : y x : z
rank p gpu=0 tp=tp0
rank p gpu=1 tp=tp0
)";

std::string body_after_synchronise(const char* text) {
  Plan plan = parse_plan(text);
  synchronise(plan, plan.programs[0]);
  std::string kinds;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind == Kind::Record)
      kinds += " r" + std::to_string(i.stream) + "e" + std::to_string(i.event);
    if (i.kind == Kind::Wait)
      kinds += " w" + std::to_string(i.stream) + "e" + std::to_string(i.event);
    if (is_task(i.kind)) kinds += " t" + std::to_string(i.stream);
  }
  return kinds;
}

// The reduction waits for the first GEMM; only the consumer waits for the reduction, not the GEMM
// between.
TEST(Synchronise, WaitsOnlyWhereViewsConflict) {
  EXPECT_EQ(body_after_synchronise(kProducerReduceConsumer), " t0 r0e0 w1e0 t1 r1e1 t0 w0e1 t0");
}

TEST(Synchronise, IsIdempotent) {
  Plan once = parse_plan(kProducerReduceConsumer);
  synchronise(once, once.programs[0]);
  Plan twice = once;
  synchronise(twice, twice.programs[0]);
  EXPECT_EQ(once, twice);
}

// Row chunks of one buffer do not conflict: chunk 1's GEMM needs no wait for chunk 0's reduction.
TEST(Synchronise, TellsChunksOfABufferApart) {
  const std::string body = body_after_synchronise(R"(
buffer x 4x8 f32 framed
buffer y 4x8 f32 framed
communicator tp0 0 1
program p frames=1
  stream compute compute
  stream tp communication
  slot tp tp
body
  kernel compute F/L0/fc @0 gemm m=2 n=8 k=8 : x[0:2] x : y[0:2]
  collective tp F/L0/sum @0 all_reduce n=16 slot=tp : y[0:2] : y[0:2]
  kernel compute F/L0/fc#1 @0 gemm m=2 n=8 k=8 : x[2:4] x : y[2:4]
  collective tp F/L0/sum#1 @0 all_reduce n=16 slot=tp : y[2:4] : y[2:4]
rank p gpu=0 tp=tp0
rank p gpu=1 tp=tp0
)");
  EXPECT_EQ(body, " t0 r0e0 w1e0 t1 t0 r0e1 w1e1 t1");
}

TEST(PlaceMemory, LivesFromFirstToLastUse) {
  Plan plan = parse_plan(kProducerReduceConsumer);
  place_memory(plan, plan.programs[0]);
  synchronise(plan, plan.programs[0]);
  const std::string text = to_text(plan, plan.programs[0]);
  EXPECT_LT(text.find("alloc y"), text.find("fc1"));
  EXPECT_GT(text.find("free y"), text.find("fc2"));
  EXPECT_LT(text.find("alloc z"), text.find("other"));
  EXPECT_TRUE(verify(plan, Depth::Races).empty());
}

// Three streams in a chain: compute -> a -> b. b needs only a's event, which carries compute's
// order along.
TEST(Synchronise, LeavesOutWaitsThatAChainImplies) {
  const std::string body = body_after_synchronise(R"(
buffer x 1x8 f32 framed
program p frames=1
  stream compute compute
  stream a copy_in
  stream b copy_out
body
  kernel compute F/one @0 zero n=8 : : x
  copy a F/two @0 cast_copy n=8 : x : x
  copy b F/three @0 cast_copy n=8 : x : x
rank p gpu=0
)");
  EXPECT_EQ(body, " t0 r0e0 w1e0 t1 r1e1 w2e1 t2");
}

}  // namespace
}  // namespace gputwin
