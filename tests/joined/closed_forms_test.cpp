// What whole plans of a small Transformer take, in time and in memory, against the closed forms of
// pipeline schedules.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "hwmodels/memory/closed_forms.h"
#include "sim/core/memory_profile.h"
#include "sim/core/spelling.h"
#include "sim/engine/reference_executor.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/joined/pipeline_world.h"

namespace gputwin::test {
namespace {

constexpr Ps kUs = 1'000'000;

// ---- bubble ----

// Eight layers on four stages. A layer has four linear layers (qkv, proj, fc1, fc2): 4 us forward;
// backward twice that, for the gradients of input and of weight. Two layers per stage: F = 8 us, B
// = 16 us. Recomputation repeats qkv, proj and fc1, and fc2 too, since the next layer's input is
// its output: 8 us more, B = 24 us.
struct Pipeline {
  const char* name;
  Schedule schedule;
  std::int32_t vpp;
  std::int64_t micro_batches;
  Recompute recompute;
  Ps useful_us, bubble_us;
};

// p = 4: GPipe and 1F1B idle (p - 1)(F + B), interleaved a v-th of it; useful is M (F + B).
constexpr std::array kPipelines{
    // 8 x 24 = 192, 3 x 24 = 72: bubble / useful = 3/8 = (p-1)/M
    Pipeline{"Gpipe", Schedule::Gpipe, 1, 8, Recompute::None, 192, 72},
    Pipeline{"OneFOneB", Schedule::OneFOneB, 1, 8, Recompute::None, 192, 72},
    // 3 x 24 / 2 = 36: bubble / useful = 3/16 = (p-1)/(M v)
    Pipeline{"Interleaved", Schedule::Interleaved, 2, 8, Recompute::None, 192, 36},
    // 12 x 24 = 288: the bubble does not grow with M
    Pipeline{"OneFOneBTwelve", Schedule::OneFOneB, 1, 12, Recompute::None, 288, 72},
    Pipeline{"InterleavedTwelve", Schedule::Interleaved, 2, 12, Recompute::None, 288, 36},
    // M (F + B) = 8 x 32 = 256. In plain orders nothing of a backward pass starts before its
    // gradient has come: 3 x 32 = 96. Interleaved messages are not awaited: the last layer of a
    // chunk is recomputed from what the stage has, 4 us that run while it waits for a gradient, so
    // with one layer per chunk the bubble is 3 x (16 - 4) = 36.
    Pipeline{"GpipeFull", Schedule::Gpipe, 1, 8, Recompute::Full, 256, 96},
    Pipeline{"OneFOneBFull", Schedule::OneFOneB, 1, 8, Recompute::Full, 256, 96},
    Pipeline{"InterleavedFull", Schedule::Interleaved, 2, 8, Recompute::Full, 256, 36},
};

class Bubble : public ::testing::TestWithParam<Pipeline> {
 protected:
  /// Runs the pipeline, checks its time, and returns the breakdown by stage.
  static std::vector<Breakdown> expect_closed_form(Executor& executor) {
    const Pipeline& p = GetParam();
    Layout layout;
    layout.pp = 4;
    layout.vpp = p.vpp;
    layout.schedule = p.schedule;
    layout.recompute = p.recompute;
    const Plan plan = small_plan(8, layout, p.micro_batches);
    const Topology topology(small_cluster({.gpus = 4}));
    const ExecutionOutcome outcome = executor.run(plan, LayerCosts(), topology, {}, nullptr);
    const Execution& run = std::get<Execution>(outcome);
    EXPECT_EQ(run.makespan, (p.useful_us + p.bubble_us) * kUs);
    EXPECT_EQ(run.iteration, (p.useful_us + p.bubble_us) * kUs);
    EXPECT_EQ(run.breakdown.size(), 4u);
    for (const Breakdown& parts : run.breakdown) {
      EXPECT_EQ(parts[static_cast<std::size_t>(Part::Compute)], p.useful_us * kUs);
    }
    return run.breakdown;
  }
};

TEST_P(Bubble, OnReferenceExecutor) {
  ReferenceExecutor executor;
  expect_closed_form(executor);
}

// Messages take no time: all that a stage does not compute is bubble.
TEST_P(Bubble, OnSimgrid) {
  SimgridExecutor executor;
  for (const Breakdown& parts : expect_closed_form(executor)) {
    EXPECT_EQ(parts[static_cast<std::size_t>(Part::Bubble)], GetParam().bubble_us * kUs);
  }
}

INSTANTIATE_TEST_SUITE_P(ClosedForms, Bubble, ::testing::ValuesIn(kPipelines),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- zero bubble ----

// Eight layers on eight stages, 32 micro-batches. The weight gradients of a layer's four linear
// layers are passes of their own: F = B = W = 4 us.
struct ZeroBubble {
  const char* name;
  Schedule schedule;
  std::int32_t vpp;
  Ps makespan_units, period_units;  // of 4 us
};

constexpr std::array kZeroBubble{
    // 32 x 3 + 7 x 3
    ZeroBubble{"OneFOneB", Schedule::OneFOneB, 1, 117, 117},
    // 32 x 3 + 7 (F + B - W)
    ZeroBubble{"ZbH1", Schedule::ZbH1, 1, 103, 103},
    // No stage waits: the last starts 7 F late. Iterations follow one another without a flush.
    ZeroBubble{"ZbH2", Schedule::ZbH2, 1, 103, 96},
    ZeroBubble{"Zb1p", Schedule::Zb1p, 1, 105, 105},
    ZeroBubble{"Zb2p", Schedule::Zb2p, 1, 103, 96},
};

class ZeroBubbles : public ::testing::TestWithParam<ZeroBubble> {
 protected:
  static Execution run(Executor& executor, bool flush) {
    Layout layout;
    layout.pp = 8;
    layout.vpp = GetParam().vpp;
    layout.schedule = GetParam().schedule;
    // Untied: a sum of the embedding's gradients over the first and last stage would be a flush.
    Transformer model = small_gpt(8 * GetParam().vpp);
    model.tied_embeddings = false;
    Plan plan = std::get<Plan>(make_plan(model, small_cluster({.gpus = 8}), layout, small_job(32)));
    if (flush) remove_crossings(plan);
    const Topology topology(small_cluster({.gpus = 8}));
    const ExecutionOutcome outcome = executor.run(plan, LayerCosts(), topology, {}, nullptr);
    return std::get<Execution>(outcome);
  }
  // Every stage begins with the body.
  static void remove_crossings(Plan& plan) {
    for (Program& p : plan.programs) {
      p.prologue.clear();
      std::erase_if(p.body, [](const Instruction& i) { return (i.flags & kPreviousBody) != 0; });
    }
  }
};

TEST_P(ZeroBubbles, HaveTheMakespanOfOneIteration) {
  SimgridExecutor executor;
  EXPECT_EQ(run(executor, true).makespan, GetParam().makespan_units * 4 * kUs);
}

TEST_P(ZeroBubbles, HaveThePeriodOfManyIterations) {
  SimgridExecutor executor;
  EXPECT_EQ(run(executor, false).iteration, GetParam().period_units * 4 * kUs);
}

TEST_P(ZeroBubbles, HaveThePeriodOnTheReferenceExecutor) {
  ReferenceExecutor executor;
  EXPECT_EQ(run(executor, false).iteration, GetParam().period_units * 4 * kUs);
}

INSTANTIATE_TEST_SUITE_P(ClosedForms, ZeroBubbles, ::testing::ValuesIn(kZeroBubble),
                         [](const auto& info) { return std::string(info.param.name); });

// PipeDream-2BW, the same stages: F = 4 us, B and W together 8. Stages never drain, so that a
// period of 32 micro-batches is 32 x 12 us, and hold a second version of their weights.
TEST(PipedreamAsync, HasNoBubbleAndTwoVersionsOfTheWeights) {
  Transformer model = small_gpt(8);
  model.tied_embeddings = false;  // a tied embedding's gradients would be summed in a flush
  const Cluster cluster = small_cluster({.gpus = 8});
  const auto plan_of = [&](Schedule schedule) {
    Layout layout;
    layout.pp = 8;
    layout.schedule = schedule;
    return std::get<Plan>(make_plan(model, cluster, layout, small_job(32)));
  };
  const auto weights = [](const Plan& plan, const Program& program) {
    Bytes sum{};
    for (const BufferId id : program.buffers) {
      const Buffer& b = plan.buffers[id.value];
      if (b.memory == MemoryClass::Weights && !b.in_place) sum += b.bytes;
    }
    return sum.value;
  };
  const Plan endless = plan_of(Schedule::PipedreamAsync), flushed = plan_of(Schedule::OneFOneB);
  SimgridExecutor executor;
  const auto outcome = executor.run(endless, LayerCosts(), Topology(cluster), {}, nullptr);
  EXPECT_EQ(std::get<Execution>(outcome).iteration, 32 * 12 * kUs);
  for (std::size_t s = 0; s < 8; ++s) {
    EXPECT_EQ(weights(endless, endless.programs[s]), 2 * weights(flushed, flushed.programs[s]));
  }
}

// The interleaved schedule of the same model, two chunks of half a unit: 32 x 3 + 7 x 3 / 2.
TEST(Interleaved, HalvesTheBubble) {
  Layout layout;
  layout.pp = 8;
  layout.vpp = 2;
  layout.schedule = Schedule::Interleaved;
  const Plan plan = small_plan(16, layout, 32);
  const Topology topology(small_cluster({.gpus = 8}));
  SimgridExecutor executor;
  const ExecutionOutcome outcome = executor.run(plan, LayerCosts(), topology, {}, nullptr);
  // A chunk is a layer of 4 us forward and 8 us backward: half a unit is 4 us.
  EXPECT_EQ(std::get<Execution>(outcome).makespan, 213 * 4 * kUs);  // 106.5 x 8 us
}

// ---- activation memory ----

struct Kept {
  const char* name;
  std::int32_t tp;
  bool sp;
  Recompute recompute;
};

constexpr std::array kKept{
    Kept{"None", 1, false, Recompute::None},
    Kept{"Selective", 1, false, Recompute::Selective},
    Kept{"Full", 1, false, Recompute::Full},
    Kept{"TpNone", 2, false, Recompute::None},
    Kept{"TpSelective", 2, false, Recompute::Selective},
    Kept{"TpFull", 2, false, Recompute::Full},
    Kept{"SpNone", 2, true, Recompute::None},
    Kept{"SpSelective", 2, true, Recompute::Selective},
};

// 16 layers of hidden 32, 4 heads, ffn 128 on four stages; micro-batches of one sample of 64
// tokens.
constexpr std::int64_t kLayers = 16, kLayersPerStage = 4, kTokens = 64;

class ActivationMemory : public ::testing::TestWithParam<Kept> {
 protected:
  static Plan plan_of(Schedule schedule, std::int64_t micro_batches) {
    Layout layout;
    layout.tp = GetParam().tp;
    layout.sp = GetParam().sp;
    layout.recompute = GetParam().recompute;
    layout.pp = 4;
    layout.schedule = schedule;
    layout.vpp = schedule == Schedule::Interleaved ? 2 : 1;
    return small_plan(kLayers, layout, micro_batches);
  }
  static std::int64_t layer_bytes(Recompute recompute) {
    const ActivationShape shape{kTokens, 1, GetParam().tp, GetParam().sp, false, recompute};
    return static_cast<std::int64_t>(activation_bytes_per_layer(small_gpt(kLayers), shape));
  }
  /// What a stage keeps of one micro-batch: Korthikanti's bytes of its layers, and what his table
  /// leaves out, mean and deviation of two norms: 16 B per token and layer, sharded with sp.
  static std::int64_t micro_batch_bytes() {
    std::int64_t norms = 16 * kTokens / (GetParam().sp ? GetParam().tp : 1);
    if (GetParam().recompute == Recompute::Full) norms = 0;
    return kLayersPerStage * (layer_bytes(GetParam().recompute) + norms);
  }
  static MemoryProfile profile(const Plan& plan, std::size_t stage) {
    return memory_profile(plan, plan.programs[stage], ArenaId(0), Bytes(1));
  }
  static std::int64_t of_class(const MemoryProfile& p, MemoryClass c) {
    return p.at_peak[static_cast<std::size_t>(c)].value;
  }
  static std::int64_t activations(const Plan& plan, std::size_t stage) {
    return of_class(profile(plan, stage), MemoryClass::Activations);
  }
};

// The closed forms in numbers, so that a slip in them does not pass unseen: s b h = 64 x 32 =
// 2,048, a s / h = 8.
TEST(ActivationBytes, OfOneLayer) {
  const Transformer m = small_gpt(1);
  const auto bytes = [&](std::int32_t tp, bool sp, Recompute recompute) {
    return activation_bytes_per_layer(m, {64, 1, tp, sp, false, recompute});
  };
  EXPECT_EQ(bytes(1, false, Recompute::None), 2048 * (34 + 5 * 8));        // 151,552
  EXPECT_EQ(bytes(2, false, Recompute::None), 2048 * (10 + 24 / 2 + 20));  // 86,016
  EXPECT_EQ(bytes(2, true, Recompute::None), 2048 * (34 + 5 * 8) / 2);     // 75,776
  EXPECT_EQ(bytes(1, false, Recompute::Selective), 2048 * 34);             // 69,632
  EXPECT_EQ(bytes(2, true, Recompute::Selective), 2048 * 34 / 2);          // 34,816
  EXPECT_EQ(bytes(2, false, Recompute::Full), 2048 * 2);                   // 4,096
}

// GPipe holds all M micro-batches: eight hold four more than four do, on both inner stages.
TEST_P(ActivationMemory, OfGpipeGrowsWithEveryMicroBatch) {
  const Plan four = plan_of(Schedule::Gpipe, 4), eight = plan_of(Schedule::Gpipe, 8);
  for (const std::size_t stage : {1u, 2u}) {
    EXPECT_EQ(activations(eight, stage) - activations(four, stage), 4 * micro_batch_bytes());
  }
}

// 1F1B holds p - i: stage 1 three, stage 2 two, whatever M is. (The outer stages hold the token ids
// of all micro-batches besides.)
TEST_P(ActivationMemory, OfOneFOneBFallsFromStageToStage) {
  const Plan eight = plan_of(Schedule::OneFOneB, 8), twelve = plan_of(Schedule::OneFOneB, 12);
  EXPECT_EQ(activations(eight, 1) - activations(eight, 2), micro_batch_bytes());
  for (const std::size_t stage : {1u, 2u}) {
    EXPECT_EQ(activations(eight, stage), activations(twelve, stage));
  }
}

// Interleaved, v = 2, holds (p (v-1) + 2 (p-i) - 1) / v: stage 1 (4 + 6 - 1) / 2 = 4.5, stage
// 2 3.5.
TEST_P(ActivationMemory, OfInterleavedFallsFromStageToStage) {
  const Plan plan = plan_of(Schedule::Interleaved, 8);
  EXPECT_EQ(activations(plan, 1) - activations(plan, 2), micro_batch_bytes());
}

// At the peak lie the micro-batches in flight and what one layer's backward needs for itself: less
// than a layer without recomputation keeps, and some gradients of activations.
TEST_P(ActivationMemory, IsThatOfTheMicroBatchesInFlight) {
  for (const Schedule schedule : {Schedule::Gpipe, Schedule::OneFOneB, Schedule::Interleaved}) {
    const std::int32_t vpp = schedule == Schedule::Interleaved ? 2 : 1;
    const Plan plan = plan_of(schedule, 8);
    for (const std::int32_t stage : {1, 2}) {
      const double live = live_micro_batches(schedule, stage, 4, vpp, 8);
      const double kept = live * static_cast<double>(micro_batch_bytes());
      const MemoryProfile peak = profile(plan, static_cast<std::size_t>(stage));
      const auto found = static_cast<double>(of_class(peak, MemoryClass::Activations) +
                                             of_class(peak, MemoryClass::Temporary));
      EXPECT_GE(found, kept) << to_string(schedule) << " stage " << stage;
      EXPECT_LE(found, kept + 1.25 * static_cast<double>(layer_bytes(Recompute::None)))
          << to_string(schedule) << " stage " << stage;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ClosedForms, ActivationMemory, ::testing::ValuesIn(kKept),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace gputwin::test
