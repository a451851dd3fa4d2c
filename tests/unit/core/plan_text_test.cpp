#include "sim/core/plan_text.h"

#include "sim/core/error.h"

namespace gputwin {
namespace {

constexpr const char* kTwoRanks = R"(
arena gpu capacity=1000
buffer x 4x8 f32 class=activations framed
buffer w 8x8 f32 class=weights persistent
buffer dw 8x8 f32 class=gradients persistent
buffer y 4x8 f32 class=activations framed
communicator tp0 0 1
program stage0 frames=2
  stream compute compute
  stream tp communication
  slot tp tp
  slot next pp peer
  param layer0.fc1 8x8 weight=w gradient=dw axis=rows slot=tp
body
  alloc x @0
  alloc y @0
  kernel compute F/L0/fc1 @0 gemm m=2 n=8 k=8 tb : x[0:2,0:8] w : y[0:2]
  record compute e0
  wait tp e0
  collective tp F/L0/all_reduce#1 @0 all_reduce n=32 slot=tp : y : y
  free x @0
  free y @0
  host_wait e0
rank stage0 gpu=0 tp=tp0 next=1
rank stage0 gpu=1 tp=tp0 next=0 slowdown=1.25
)";

TEST(PlanText, PrintsWhatItParses) {
  const Plan plan = parse_plan(kTwoRanks);
  const std::string text = to_text(plan);
  EXPECT_EQ(parse_plan(text), plan);
  EXPECT_EQ(to_text(parse_plan(text)), text);
}

// What a context-parallel plan adds: the cut of an input and of an op, and the step of a ring.
TEST(PlanText, KeepsHowSequencesAreCut) {
  const Plan plan = parse_plan(R"(
buffer x 2x1 i64 class=activations framed persistent
buffer q 2x8 bf16 class=activations persistent
communicator cp0 0 1
program p frames=1
  stream c compute
  slot cp cp
  input x samples=1 sequence=2 vocab=8 data=cp cp=cp
body
  kernel c F/L0/f @0 flash_forward b=1 a=1 g=1 s=2 u=2 d=8 cp=cp ring_step=1 causal : q q q : q q
rank p gpu=0 cp=cp0
rank p gpu=1 cp=cp0
)");
  EXPECT_EQ(plan.calls[0].op.cp_slot, SlotId(0));
  EXPECT_EQ(plan.calls[0].op.ring_step, 1u);
  EXPECT_EQ(plan.programs[0].inputs[0].cp_slot, SlotId(0));
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
}

TEST(PlanText, ReadsViewsAsRectanglesOfTheDeclaredShape) {
  const Plan plan = parse_plan(kTwoRanks);
  // y[0:2] of a 4x8 buffer: two rows of eight, pitch eight.
  const View expected{BufferId(3), 0, 2, 8, 8, DType::F32};
  EXPECT_EQ(plan.calls[0].writes[0], expected);
  EXPECT_EQ(plan.ranks[1].slowdown, 1.25);
  EXPECT_EQ(plan.programs[0].events, 1u);
}

TEST(PlanText, NamesLineAndWayOutOfABadPlan) {
  try {
    parse_plan("arena gpu\nprogram p frames=1\n  stream c compute\nbody\n  kernel d F/x gemm\n");
    FAIL() << "an unknown stream was accepted";
  } catch (const InputError& error) {
    EXPECT_EQ(error.pointer, "line 5");
    EXPECT_EQ(error.value, "d");
    EXPECT_FALSE(error.fix.empty());
  }
}

}  // namespace
}  // namespace gputwin
