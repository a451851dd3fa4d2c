// Offloaded plans mean what the plan on the GPU means, and hold less of it.
#include "strategies/passes/offload.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "sim/core/memory_profile.h"
#include "sim/core/plan_builder.h"
#include "sim/core/spelling.h"
#include "sim/core/verify.h"
#include "strategies/offload/strategies.h"
#include "strategies/strategy.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

Results interpreted(Plan plan, int bodies, std::uint64_t seed, bool gradients = true,
                    bool clips = true) {
  for (Buffer& b : plan.buffers) {
    if (b.name.find("_shard") != std::string::npos) b.persistent = true;
  }
  for (Program& p : plan.programs) place_memory(plan, p);
  InterpretOptions options;
  options.generic_constants = true;
  options.bodies = bodies;
  options.gradients = gradients;
  if (!clips) options.clip_norm = 1e9;
  options.adam_epsilon = 1e-2;  // gradients that are 0 but for rounding change nothing
  options.seed = seed;
  return interpret(plan, options);
}

double worst_difference(const std::map<std::string, Tensor>& a,
                        const std::map<std::string, Tensor>& b) {
  double worst = a.size() == b.size() ? 0.0 : 1e30;
  for (const auto& [name, tensor] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.values.size() != tensor.values.size()) return 1e30;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      worst = std::max(worst, std::abs(tensor.values[i] - found->second.values[i]));
    }
  }
  return worst;
}

Layout offloaded(Layout layout, std::string_view strategy, std::int64_t bucket_elements = 300) {
  layout.offload = *find_offload_strategy(strategy);
  layout.offload.bucket_elements = bucket_elements;  // a layer of the tiny model has about 800
  return layout;
}

std::vector<Layout> layouts() {
  std::vector<Layout> list(6);
  list[0].micro_batch = 4;
  list[1].micro_batch = 1;
  list[1].recompute = Recompute::Full;
  list[2].tp = 2;
  list[2].dp = 2;
  list[2].zero = 1;
  list[3].pp = 2;
  list[3].recompute = Recompute::Selective;
  list[4].dp = 2;
  list[4].zero = 3;
  list[5].dp = 2;
  list[5].zero = 2;
  for (Layout& l : list) l.bucket_elements = 300;
  return list;
}

// Two iterations: gradients and weights after them are those of the plan that stays on the GPU, so
// the host's step used the right gradients and the second iteration the new weights.
//
// What the interpreter cannot tell where it knows no parameter in a slot, and what is left out
// therefore: gradients that went down as F32 copies, and with ZeRO 1 (the weights alone tell);
// ZeRO 1 and 2 with weights in slots;
// which gradients are copies of others, so that norms of several stages or of tensor-parallel ranks
// do not clip; that master weights start as the weights do where states or weights of several
// buckets pass through one buffer, so that there are few buckets or one iteration, without a tied
// embedding on two stages.
using Change = std::function<void(OffloadSpec&)>;
void expect_one_meaning(std::string_view strategy, const char* stack, int most_bodies = 2,
                        std::int64_t bucket_elements = 300, const Change& change = {},
                        bool never_clips = false, DType gradients_in = DType::F32) {
  Job job = tiny_job(4);
  job.stack = stack;
  job.precision.grads = gradients_in;
  std::uint64_t seed = 0;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(std::string(strategy) + " tp" + std::to_string(layout.tp) + " pp" +
                 std::to_string(layout.pp) + " dp" + std::to_string(layout.dp) + " zero" +
                 std::to_string(layout.zero));
    Layout moved = offloaded(layout, strategy, bucket_elements);
    if (change) change(moved.offload);
    const bool cast = moved.offload.cast != OffloadCast::Host && gradients_in != DType::F32;
    const bool gradients = layout.zero != 1 && !cast;
    const bool swaps = find_offload_strategy(strategy)->params != OffloadPlace::Gpu;
    if (swaps && (layout.zero == 1 || layout.zero == 2)) continue;
    if (most_bodies == 1 && layout.pp > 1) continue;               // a tied embedding is compared
    const bool units = layout.zero >= 2 && bucket_elements > 300;  // as many buckets as layers
    const int bodies = units ? 1 : most_bodies;
    const bool clips = layout.tp * layout.pp == 1 && !never_clips;
    const Results expected =
        interpreted(plan_of(tiny_gpt(), layout, job), bodies, 0, gradients, clips);
    const Plan plan = plan_of(tiny_gpt(), moved, job);
    EXPECT_TRUE(verify(plan, Depth::Races).empty());
    const Results actual = interpreted(plan, bodies, ++seed, gradients, clips);
    EXPECT_NEAR(actual.loss, expected.loss, 1e-9);
    EXPECT_LT(worst_difference(expected.gradients, actual.gradients), 1e-8);
    if (bodies > 1) {
      EXPECT_LT(worst_difference(expected.weights, actual.weights), 1e-8);
    }
  }
}

TEST(OffloadMeaning, OfZeroOffload) { expect_one_meaning("zero-offload", "megatron-core"); }
TEST(OffloadMeaning, OfZeroOffloadWithPassesOfTheOptimizer) {
  expect_one_meaning("zero-offload", "megatron-lm-2021");
}
TEST(OffloadMeaning, OfTheGreedySchedule) { expect_one_meaning("greedy", "megatron-core"); }
TEST(OffloadMeaning, OfStepsThatDoNotWaitForTheNorm) {
  expect_one_meaning("greedy-unclipped", "megatron-core", 2, 300, {}, true);
}
TEST(OffloadMeaning, OfZeroInfinity) { expect_one_meaning("zero-infinity-cpu", "deepspeed"); }
TEST(OffloadMeaning, OfNvme) { expect_one_meaning("zero-infinity-nvme", "deepspeed", 1); }
TEST(OffloadMeaning, OfNvmeWithTwoBuckets) {
  expect_one_meaning("zero-infinity-nvme", "deepspeed", 2, 2000);
}
TEST(OffloadMeaning, OfWeightsOnNvme) {
  const Change weights = [](OffloadSpec& s) { s.params = OffloadPlace::Nvme; };
  expect_one_meaning("zero-infinity-cpu", "deepspeed", 1, 300, weights);
  expect_one_meaning("zero-infinity-cpu", "deepspeed", 2, 2000, weights);
  expect_one_meaning("zero-infinity-nvme", "deepspeed", 1, 300, weights);
  expect_one_meaning("capuchin", "torch", 1, 300, weights);
}
TEST(OffloadMeaning, OfPatrickStar) { expect_one_meaning("patrickstar", "torch"); }
TEST(OffloadMeaning, OfL2l) { expect_one_meaning("l2l", "torch", 1); }
TEST(OffloadMeaning, OfMegatronsHybrid) { expect_one_meaning("megatron-hybrid", "torch"); }
TEST(OffloadMeaning, OfMegatronsHybridWithPassesOfTheOptimizer) {
  expect_one_meaning("megatron-hybrid", "megatron-lm-2021");
}
TEST(OffloadMeaning, OfMegatronsHybridInTheComputeStream) {
  expect_one_meaning("megatron-hybrid", "megatron-lm-2021", 2, 300,
                     [](OffloadSpec& s) { s.overlap_copies = false; });
}
TEST(OffloadMeaning, OfHalfOfMegatronsHybrid) {
  expect_one_meaning("megatron-hybrid", "megatron-core", 2, 300,
                     [](OffloadSpec& s) { s.optimizer_share = 0.5; });
}
TEST(OffloadMeaning, OfTwinFlow) { expect_one_meaning("zero-offload-plus", "megatron-core"); }
// The first layers stay whole, and what leaves of the others is copied down though unchanged.
TEST(OffloadMeaning, OfStrongHold) {
  for (const std::int64_t window : {1, 3, 100}) {
    expect_one_meaning(
        "stronghold", "megatron-core", 2, 300, [&](OffloadSpec& s) { s.window = window; }, true);
  }
}
// F32 goes down and comes up, 16-bit gradients and weights stay on the GPU or leave.
TEST(OffloadMeaning, OfCastsOnTheGpu) {
  const Change casts = [](OffloadSpec& s) { s.cast = OffloadCast::Gpu; };
  const DType half = DType::Bf16;
  expect_one_meaning("superoffload", "megatron-core", 2, 2000, casts, true, half);
  expect_one_meaning("superoffload", "megatron-lm-2021", 2, 2000, casts, true, half);
  expect_one_meaning("zero-offload", "megatron-core", 2, 2000, casts, false, half);
  expect_one_meaning("zero-infinity-cpu", "deepspeed", 2, 2000, casts, false, half);
}
TEST(OffloadMeaning, OfFsdp) { expect_one_meaning("fsdp-offload", "torch"); }
TEST(OffloadMeaning, OfCapuchin) { expect_one_meaning("capuchin", "torch", 1); }

// Copies between kernels of one stream need no waits and mean the same.
TEST(OffloadMeaning, OfCopiesInTheComputeStream) {
  expect_one_meaning("zero-offload", "deepspeed", 2, 300,
                     [](OffloadSpec& s) { s.overlap_copies = false; });
}

TEST(OffloadMeaning, OfActivationsOnTheHost) {
  expect_one_meaning("zero-offload", "megatron-core", 2, 300,
                     [](OffloadSpec& s) { s.activations = OffloadPlace::Cpu; });
}

// Two micro-batches of 2 samples, 4 layers recomputed from their inputs of 2 x 4 x 8 elements in
// 16 bits. The input of the last layer is needed back at once and stays or leaves by how long its
// copies take; those of the first three leave and come back once per micro-batch, and less than
// four of them are on the GPU when the backward pass begins.
TEST(OffloadMemory, HoldsActivationsOnTheHostInBetween) {
  const Job job = tiny_job(4);
  Layout layout;
  layout.micro_batch = 2;
  layout.recompute = Recompute::Full;
  const Plan whole = plan_of(tiny_gpt(), layout, job);
  layout.offload.enabled = true;
  layout.offload.activations = OffloadPlace::Cpu;
  const Plan plan = plan_of(tiny_gpt(), layout, job);
  const auto copies = [&](const char* name) {
    return count(plan, 0, [&](const Instruction& i) {
      return i.kind == Kind::Copy && plan.names[i.name].op == name;
    });
  };
  EXPECT_GE(copies("activation_out"), 2 * 3);
  EXPECT_EQ(copies("activation_out"), copies("activation_in"));
  const auto peak = [](const Plan& p) {
    return memory_profile(p, p.programs[0], ArenaId(0), Bytes(1)).peak;
  };
  EXPECT_LT(peak(plan), peak(whole));
  EXPECT_NEAR(interpreted(plan, 1, 0).loss, interpreted(whole, 1, 0).loss, 1e-9);
}

// A delayed update: the first iteration sees the initial weights, and so does the second, whose
// step is the first that has gradients.
TEST(OffloadMeaning, OfADelayedUpdate) {
  const Job job = tiny_job(4);
  Layout layout;
  layout.bucket_elements = 300;
  const Results expected = interpreted(plan_of(tiny_gpt(), layout, job), 1, 0);
  const Plan plan = plan_of(tiny_gpt(), offloaded(layout, "zero-offload-dpu"), job);
  const Results second = interpreted(plan, 2, 1);
  EXPECT_NEAR(second.loss, expected.loss, 1e-9);
  EXPECT_LT(worst_difference(expected.gradients, second.gradients), 1e-9);
  const Results third = interpreted(plan, 3, 2);
  EXPECT_GT(std::abs(third.loss - expected.loss), 1e-4);
}

// Weights, gradients and states leave the GPU: what stays of them are the slots.
TEST(OffloadMemory, HoldsSlotsInsteadOfStates) {
  const Job job = tiny_job(4);
  const Plan whole = plan_of(tiny_gpt(), Layout{}, job);
  const Plan plan = plan_of(tiny_gpt(), offloaded(Layout{}, "zero-infinity-cpu", 100), job);
  const auto persistent = [](const Plan& p, MemoryClass memory) {
    std::int64_t bytes = 0;
    for (const BufferId id : p.programs[0].buffers) {
      const Buffer& b = p.buffers[id.value];
      if (b.persistent && b.memory == memory && b.arena == ArenaId(0)) bytes += b.bytes.value;
    }
    return bytes;
  };
  EXPECT_EQ(persistent(plan, MemoryClass::Optimizer), 0);
  EXPECT_LT(persistent(plan, MemoryClass::Weights), persistent(whole, MemoryClass::Weights) / 2);
  EXPECT_LT(persistent(plan, MemoryClass::Gradients),
            persistent(whole, MemoryClass::Gradients) / 2);
}

// Megatron's hybrid optimizer takes 8 bytes of each parameter off the GPU, the moments, and leaves
// the 4 of the master there; the host holds those 8, its own F32 weight and an F32 gradient.
TEST(OffloadMemory, KeepsMastersWithMegatronsHybrid) {
  const Job job = tiny_job(4);
  const Plan whole = plan_of(tiny_gpt(), Layout{}, job);
  const Plan plan = plan_of(tiny_gpt(), offloaded(Layout{}, "megatron-hybrid"), job);
  const auto bytes = [](const Plan& p, bool on_gpu, MemoryClass memory) {
    std::int64_t sum = 0;
    for (const BufferId id : p.programs[0].buffers) {
      const Buffer& b = p.buffers[id.value];
      const bool counts = b.persistent && (b.arena == ArenaId(0)) == on_gpu;
      if (counts && b.memory == memory) sum += b.bytes.value;
    }
    return sum;
  };
  const std::int64_t states = bytes(whole, true, MemoryClass::Optimizer);
  EXPECT_EQ(3 * bytes(plan, true, MemoryClass::Optimizer), states);
  EXPECT_EQ(bytes(plan, false, MemoryClass::Optimizer), states);
}

// Two ways to cast: 2 bytes of each parameter that the host steps go each way, or 4, which the host
// keeps as F32 gradients; its masters are what comes up. Nothing is stored of a 16-bit gradient
// that was cast, and two buffers each way hold what is copied.
TEST(OffloadMemory, CopiesFourBytesEachWayWhereTheGpuCasts) {
  Job job = tiny_job(4);
  job.precision.grads = DType::Bf16;
  const auto plan = [&](OffloadCast cast) {
    Layout layout = offloaded(Layout{}, "superoffload", 100);
    layout.micro_batch = 4;
    layout.offload.cast = cast;
    return plan_of(tiny_gpt(), layout, job);
  };
  const auto copied = [](const Plan& p, CopyKind way) {
    std::int64_t bytes = 0;
    for (const Instruction& i : p.programs[0].body) {
      if (i.kind != Kind::Copy || p.call(i).op.copy != way) continue;
      bytes += bytes_of(p.call(i).reads).value;
    }
    return bytes;
  };
  const auto stepped = [](const Plan& p) {
    std::int64_t elements = 0;
    for (const Instruction& i : p.programs[0].body) {
      if (i.kind == Kind::HostTask) elements += p.call(i).op.dims[0];
    }
    return elements;
  };
  const Plan host = plan(OffloadCast::Host), gpu = plan(OffloadCast::Gpu);
  EXPECT_GT(stepped(gpu), 0);
  EXPECT_EQ(stepped(host), stepped(gpu));
  EXPECT_EQ(copied(host, CopyKind::HostToDevice), 2 * stepped(host));
  EXPECT_EQ(copied(gpu, CopyKind::HostToDevice), 4 * stepped(gpu));
  EXPECT_EQ(copied(gpu, CopyKind::DeviceToHost) - copied(host, CopyKind::DeviceToHost),
            2 * stepped(gpu));
  std::int64_t wide = 0;
  for (const BufferId id : gpu.programs[0].buffers) {
    const Buffer& b = gpu.buffers[id.value];
    if (b.name.find(".wide_in") == std::string::npos) continue;
    EXPECT_EQ(b.arena, ArenaId(0));
    ++wide;
  }
  EXPECT_EQ(wide, 2);
}

// The embedding and a window of the first layers' buckets are stepped on the GPU, the others on the
// host.
TEST(OffloadMemory, KeepsTheFirstWindowWhole) {
  const Job job = tiny_job(4);
  const auto host_steps = [&](std::int64_t window) {
    Layout layout = offloaded(Layout{}, "stronghold", 100);
    layout.offload.window = window;
    const Plan plan = plan_of(tiny_gpt(), layout, job);
    return count(plan, 0, [](const Instruction& i) { return i.kind == Kind::HostTask; });
  };
  const auto all = host_steps(0);
  const auto one = host_steps(1);
  EXPECT_LT(one, all - 1);
  EXPECT_EQ(host_steps(5), one - 4);
  EXPECT_EQ(host_steps(1000), 0);
}

// With weights on NVMe five buffers of host memory are all that the host holds of them, however
// many buckets there are; every load is read from the drive first, and every bucket is written back
// once, after its step, which makes it anew from the master copy and so reads nothing.
TEST(OffloadMemory, HoldsFiveBuffersOfWeightsThatLieOnNvme) {
  Layout layout = offloaded(Layout{}, "zero-infinity-cpu", 100);
  layout.offload.params = OffloadPlace::Nvme;
  const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(4));
  const auto copies = [&](CopyKind kind, std::string_view name) {
    return count(plan, 0, [&](const Instruction& i) {
      return i.kind == Kind::Copy && plan.call(i).op.copy == kind && plan.names[i.name].op == name;
    });
  };
  EXPECT_EQ(copies(CopyKind::NvmeToHost, "weight_read"),
            copies(CopyKind::HostToDevice, "weight_in"));
  std::int64_t on_drive = 0, on_host = 0;
  for (const BufferId id : plan.programs[0].buffers) {
    const Buffer& b = plan.buffers[id.value];
    if (b.memory != MemoryClass::Weights) continue;
    on_drive += plan.arenas[b.arena.value].name == "nvme" ? 1 : 0;
    on_host += plan.arenas[b.arena.value].name == "host" ? 1 : 0;
  }
  EXPECT_GT(on_drive, 5);
  EXPECT_EQ(on_host, 5);
  EXPECT_EQ(copies(CopyKind::HostToNvme, "weight_write"), on_drive);
}

TEST(OffloadRefusal, NamesWhatCannotBe) {
  Job job = tiny_job(4);
  Layout layout = offloaded(Layout{}, "zero-infinity-cpu");
  layout.offload.delayed_update = true;
  const auto outcome = make_plan(tiny_gpt(), one_node(1), layout, job);
  ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome));
  EXPECT_NE(std::get<Infeasible>(outcome).fix.find("params to gpu"), std::string::npos);
  job.optimizer = Optimizer::Sgd;
  const auto sgd = make_plan(tiny_gpt(), one_node(1), offloaded(Layout{}, "zero-offload"), job);
  EXPECT_TRUE(std::holds_alternative<Infeasible>(sgd));
}

// Swaps are planned within one iteration: where micro-batches of two are in flight at once, or the
// next begins before the last has ended, addresses and order would not hold.
TEST(Offload, RefusesSchedulesWhoseIterationsOverlap) {
  for (const Schedule schedule : {Schedule::PipedreamAsync, Schedule::ZbH1}) {
    Layout layout = offloaded(Layout{}, "greedy");
    layout.pp = 2;
    layout.schedule = schedule;
    const auto outcome = make_plan(tiny_gpt(), one_node(2), layout, tiny_job(4));
    ASSERT_TRUE(std::holds_alternative<Infeasible>(outcome)) << to_string(schedule);
    EXPECT_NE(std::get<Infeasible>(outcome).reason.find("iterations overlap"), std::string::npos);
  }
}

}  // namespace
}  // namespace gputwin
