// ZeRO 2 and 3: what a rank keeps, what it gathers and reduces, how far gathers run ahead.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "sim/core/plan_text.h"
#include "sim/core/verify.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

// tiny_gpt: a layer has 192 + 24 (q, k, v) + 64 + 8 (projection) + 256 + 32 + 256 + 8 (perceptron)
// + 32 (norms) = 872 parameters, the ends 128 (words, also the head) + 32 (positions) + 16 (final
// norm) = 176: 3,664 in all. Over 4 ranks: 218 and 44, 916 in all.
constexpr std::int64_t kLayer = 872, kEnds = 176, kAll = 4 * kLayer + kEnds;

Layout sharded(std::int32_t zero, std::int32_t dp = 4) {
  Layout l;
  l.dp = dp;
  l.zero = zero;
  l.schedule = Schedule::None;
  return l;
}

Plan plan_with(const Layout& layout, std::int64_t micro_batches) {
  return plan_of(tiny_gpt(), layout, tiny_job(layout.dp * micro_batches));
}

// Dummies of fused weight gradients, one for each shape, are no parameters.
std::map<MemoryClass, std::int64_t> persistent_bytes(const Plan& plan) {
  std::map<MemoryClass, std::int64_t> bytes;
  for (const BufferId id : plan.programs[0].buffers) {
    const Buffer& b = plan.buffers[id.value];
    const bool dummy = b.name.find("_dummy_grad") != std::string::npos;
    if (b.persistent && !dummy) bytes[b.memory] += b.bytes.value;
  }
  return bytes;
}

// BF16 weights, F32 gradients, three F32 states of the optimizer.
TEST(Sharding, KeepsShardsOfWhatTheLevelNames) {
  const auto two = persistent_bytes(plan_with(sharded(2), 1));
  EXPECT_EQ(two.at(MemoryClass::Weights), 2 * kAll);
  EXPECT_EQ(two.at(MemoryClass::Gradients), 4 * kAll / 4);
  EXPECT_EQ(two.at(MemoryClass::Optimizer), 12 * kAll / 4);
  const auto three = persistent_bytes(plan_with(sharded(3), 1));
  EXPECT_EQ(three.at(MemoryClass::Weights), 2 * kAll / 4);
  EXPECT_EQ(three.at(MemoryClass::Gradients), 4 * kAll / 4);
  EXPECT_EQ(three.at(MemoryClass::Optimizer), 12 * kAll / 4);
}

TEST(Sharding, HybridGroupsKeepACopyEach) {
  Layout layout = sharded(3, 8);
  layout.hsdp_group = 4;
  EXPECT_EQ(persistent_bytes(plan_with(layout, 1)), persistent_bytes(plan_with(sharded(3), 1)));
}

// 872 parameters do not divide by 3 ranks: 873 and 177 elements are kept, gathered and reduced.
TEST(Sharding, PadsUnitsToTheShards) {
  const auto three = persistent_bytes(plan_with(sharded(3, 3), 1));
  EXPECT_EQ(three.at(MemoryClass::Weights), 2 * (4 * 873 + 177) / 3);
}

/// Bytes of the larger side of all collectives of one kind on one slot.
std::int64_t volume(const Plan& plan, OpKind kind, const char* slot) {
  std::int64_t bytes = 0;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind != Kind::Collective) continue;
    const Call& call = plan.call(i);
    if (call.op.kind != kind || plan.programs[0].slots[call.op.slot.value].name != slot) continue;
    bytes += std::max(bytes_of(call.reads), bytes_of(call.writes)).value;
  }
  return bytes;
}

// Layers are gathered for forward and for backward, the ends once; gradients are reduced by every
// micro-batch.
TEST(Sharding, MovesEveryUnitInEveryMicroBatch) {
  for (const std::int64_t micro_batches : {1, 3}) {
    for (const Recompute recompute : {Recompute::None, Recompute::Full}) {
      Layout layout = sharded(3);
      layout.recompute = recompute;
      const Plan plan = plan_with(layout, micro_batches);
      EXPECT_EQ(volume(plan, OpKind::AllGather, "dp"),
                micro_batches * 2 * (2 * 4 * kLayer + kEnds));
      EXPECT_EQ(volume(plan, OpKind::ReduceScatter, "dp"), micro_batches * 4 * kAll);
    }
  }
}

TEST(Sharding, GathersWholeParametersOnceAnIteration) {
  const Plan plan = plan_with(sharded(2), 3);
  EXPECT_EQ(volume(plan, OpKind::AllGather, "dp"), 2 * kAll);
  EXPECT_EQ(volume(plan, OpKind::ReduceScatter, "dp"), 3 * 4 * kAll);
}

// 8 ranks in groups of 4: a unit is gathered and scattered within a group, its shard of gradients
// summed over the 2 groups.
TEST(Sharding, HybridGroupsReduceTheirShardsOverTheCopies) {
  Layout layout = sharded(3, 8);
  layout.hsdp_group = 4;
  const Plan plan = plan_with(layout, 1);
  EXPECT_EQ(volume(plan, OpKind::AllGather, "dp_shard"), 2 * (2 * 4 * kLayer + kEnds));
  EXPECT_EQ(volume(plan, OpKind::ReduceScatter, "dp_shard"), 4 * kAll);
  EXPECT_EQ(volume(plan, OpKind::AllReduce, "dp_replica"), 4 * kAll / 4);
  EXPECT_EQ(volume(plan, OpKind::AllGather, "dp"), 0);
  for (const Communicator& c : plan.communicators) {
    const auto first = c.members.front().value;
    if (c.name.starts_with("dp_shard")) {
      EXPECT_EQ(c.members, (std::vector{RankId(first), RankId(first + 1), RankId(first + 2),
                                        RankId(first + 3)}));
    }
    if (c.name.starts_with("dp_replica")) {
      EXPECT_EQ(c.members, (std::vector{RankId(first), RankId(first + 4)}));
    }
  }
}

// MiCS sums over the groups once an iteration, whatever the micro-batches.
TEST(Sharding, SomeStacksSumTheCopiesOnce) {
  Layout layout = sharded(3, 8);
  layout.hsdp_group = 4;
  Job job = tiny_job(8 * 3);
  const auto summed = [&](const char* stack) {
    job.stack = stack;
    return volume(plan_of(tiny_gpt(), layout, job), OpKind::AllReduce, "dp_replica");
  };
  EXPECT_EQ(summed("torch-fsdp-2024"), 3 * 4 * kAll / 4);
  EXPECT_EQ(summed("sagemaker-mics"), 4 * kAll / 4);
}

/// Largest sum of live temporary buffers of a class.
std::int64_t peak(const Plan& plan, MemoryClass memory) {
  std::int64_t now = 0, most = 0;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind != Kind::Alloc && i.kind != Kind::Free) continue;
    const Buffer& b = plan.buffers[i.call];
    if (b.memory != memory) continue;
    now += i.kind == Kind::Alloc ? b.bytes.value : -b.bytes.value;
    most = std::max(most, now);
  }
  return most;
}

// Two layers and the ends at a time; without overlap one layer. The same holds for gradients.
TEST(Sharding, HoldsTwoLayersAtATime) {
  Layout layout = sharded(3);
  for (const Recompute recompute : {Recompute::None, Recompute::Full}) {
    layout.recompute = recompute;
    const Plan plan = plan_with(layout, 2);
    EXPECT_EQ(peak(plan, MemoryClass::Weights), 2 * (2 * kLayer + kEnds));
    EXPECT_EQ(peak(plan, MemoryClass::Gradients), 4 * (2 * kLayer + kEnds));
  }
  layout.overlap_param_gather = layout.overlap_grad_reduce = false;
  const Plan plan = plan_with(layout, 2);
  EXPECT_EQ(peak(plan, MemoryClass::Weights), 2 * (kLayer + kEnds));
  EXPECT_EQ(peak(plan, MemoryClass::Gradients), 4 * (kLayer + kEnds));
}

/// Body index of the first task with this phase, layer and op name; or of the last.
std::size_t find(const Plan& plan, Phase phase, std::int32_t layer, const std::string& op,
                 bool last = false) {
  const auto& body = plan.programs[0].body;
  std::size_t found = body.size();
  for (std::size_t i = 0; i < body.size(); ++i) {
    if (!is_task(body[i].kind)) continue;
    const Name& name = plan.names[body[i].name];
    if (name.phase != phase || name.layer != layer || (!op.empty() && name.op != op)) continue;
    found = i;
    if (!last) break;
  }
  EXPECT_LT(found, body.size()) << op << " " << layer;
  return found;
}

// While layer 2 computes forward, layer 3 is gathered; while it computes backward, layer 1. Its own
// gradients are reduced behind that gather, under the backward of layer 1.
TEST(Sharding, GathersTheNextLayerUnderTheCurrentOne) {
  const Plan plan = plan_with(sharded(3), 1);
  const auto gather = [&](std::int32_t layer) {
    return find(plan, Phase::Gather, layer, "param_all_gather");
  };
  const auto again = [&](std::int32_t layer) {
    return find(plan, Phase::Gather, layer, "param_all_gather_again");
  };
  EXPECT_LT(gather(3), find(plan, Phase::Forward, 2, ""));
  EXPECT_GT(gather(3), find(plan, Phase::Forward, 1, "", true));
  EXPECT_LT(again(1), find(plan, Phase::Backward, 2, ""));
  EXPECT_GT(again(1), find(plan, Phase::Reduce, 3, "grad_reduce_scatter"));
  EXPECT_LT(find(plan, Phase::Reduce, 2, "grad_reduce_scatter"),
            find(plan, Phase::Backward, 1, ""));
}

// With one micro-batch the reduction writes the shard that stays; with more it is added.
TEST(Sharding, AddsTheGradientsOfMicroBatches) {
  const auto adds = [](const Plan& plan) {
    return count(plan, 0, [&](const Instruction& i) {
      return is_task(i.kind) && plan.names[i.name].op == "grad_accumulate";
    });
  };
  EXPECT_EQ(adds(plan_with(sharded(3), 1)), 0);
  EXPECT_EQ(adds(plan_with(sharded(3), 3)), 3 * 5);  // 4 layers and the ends
}

TEST(Sharding, OfOneRankIsNone) {
  const Plan plan = plan_with(sharded(3, 1), 2), plain = plan_with(sharded(0, 1), 2);
  EXPECT_EQ(plan.tasks_per_body(), plain.tasks_per_body());
}

TEST(Sharding, SurvivesBeingPrintedAndParsed) {
  Layout layout = sharded(3);
  layout.hsdp_group = 2;
  const std::string text = to_text(plan_with(layout, 2));
  EXPECT_NE(text.find("weight_shards=dp_shard gradient_shards=dp_shard"), std::string::npos);
  EXPECT_EQ(to_text(parse_plan(text)), text);
}

}  // namespace
}  // namespace gputwin
