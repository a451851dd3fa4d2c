// What lowering makes of a layer: collectives, kernels, parameters, buckets.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "strategies/lowering/stack_kernels.h"
#include "strategies/lowering/transformer.h"
#include "tests/support/small_cluster.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

Layout layout_of(std::int32_t tp, std::int32_t pp, std::int32_t dp) {
  Layout l;
  l.tp = tp;
  l.pp = pp;
  l.dp = dp;
  l.bucket_elements = 500;
  return l;
}

std::int64_t collectives(const Plan& plan, OpKind kind) {
  std::int64_t n = 0;
  for (const Phase phase : {Phase::Forward, Phase::Recompute, Phase::Backward}) {
    n += count_ops(plan, phase, 1, kind);
  }
  return n;
}

// After each row-parallel layer forward and each column-parallel layer backward: 2 + 2. Full
// recomputation repeats the forward ones.
TEST(Lowering, AllReducesOfALayer) {
  Layout layout = layout_of(2, 1, 1);
  EXPECT_EQ(collectives(plan_of(tiny_gpt(), layout, tiny_job(2)), OpKind::AllReduce), 4);
  layout.recompute = Recompute::Full;
  EXPECT_EQ(collectives(plan_of(tiny_gpt(), layout, tiny_job(2)), OpKind::AllReduce), 6);
}

// Sequence parallelism: 2 gathers and 2 scatters forward; backward 2 gathers of gradients, 2 of
// inputs again for the weight gradients, 2 scatters.
TEST(Lowering, CollectivesOfASequenceParallelLayer) {
  Layout layout = layout_of(2, 1, 1);
  layout.sp = true;
  const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(2));
  EXPECT_EQ(collectives(plan, OpKind::AllReduce), 0);
  EXPECT_EQ(collectives(plan, OpKind::AllGather), 2 + 4);
  EXPECT_EQ(collectives(plan, OpKind::ReduceScatter), 2 + 2);
}

// Context parallelism over 2 ranks, a layer. Gathered: keys and values before the kernel, again
// before its backward, and their gradients scattered. Traded: q, k, v and the context, forward and
// backward. Ring: one message of keys and values each way, and backward two of their gradients.
TEST(Lowering, ExchangesOfAContextParallelLayer) {
  const auto of_layer = [](ContextComm comm, OpKind kind) {
    Layout layout = layout_of(1, 1, 1);
    layout.cp = 2;
    layout.cp_comm = comm;
    Job job = tiny_job(2);
    job.attention = AttentionKernel::Flash2;
    return collectives(plan_of(tiny_gpt(), layout, job), kind);
  };
  EXPECT_EQ(of_layer(ContextComm::AllGather, OpKind::AllGather), 1 + 1);
  EXPECT_EQ(of_layer(ContextComm::AllGather, OpKind::ReduceScatter), 1);
  EXPECT_EQ(of_layer(ContextComm::AllGather, OpKind::FlashBackward), 1);
  EXPECT_EQ(of_layer(ContextComm::AllToAll, OpKind::AllToAll), 2 + 2);
  EXPECT_EQ(of_layer(ContextComm::Ring, OpKind::SendTo), 1 + 3);
  EXPECT_EQ(of_layer(ContextComm::Ring, OpKind::RecvFrom), 1 + 3);
  EXPECT_EQ(of_layer(ContextComm::Ring, OpKind::FlashForward), 2);
  EXPECT_EQ(of_layer(ContextComm::Ring, OpKind::AttentionMerge), 1);
}

// User buffers over tp 2: what stands before or after a product of sequence parallelism is cut in
// two, so that one half moves under the other's product: the gathers of qkv's and fc1's inputs and
// of proj's and fc2's gradients, the scatters of proj and fc2. Input gradients' scatters and the
// second gathers of inputs run whole under other products.
TEST(Lowering, UserbuffersCutCollectives) {
  Layout layout = layout_of(2, 1, 1);
  layout.sp = true;
  layout.tp_overlap = TpOverlap::Userbuffers;
  const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(2));
  EXPECT_EQ(collectives(plan, OpKind::AllGather), 2 * 2 + 2 * 2 + 2);
  EXPECT_EQ(collectives(plan, OpKind::ReduceScatter), 2 * 2 + 2);
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::Gemm), 4 * 2);
  EXPECT_EQ(count_ops(plan, Phase::Backward, 1, OpKind::Gemm), 2 * 2 + 2);
}

TEST(Lowering, StacksDifferInPointwiseKernels) {
  const auto forward = [](const char* stack, double dropout) {
    Transformer model = tiny_gpt();
    model.dropout = dropout;
    Job job = tiny_job(1);
    job.stack = stack;
    const Plan plan = plan_of(model, layout_of(1, 1, 1), job);
    return count(plan, 0, [&](const Instruction& i) {
      return is_task(i.kind) && plan.names[i.name].phase == Phase::Forward &&
             plan.names[i.name].layer == 1;
    });
  };
  // norm, qkv, scores, softmax, context, proj, add, norm, fc1, activation, fc2, add
  EXPECT_EQ(forward("megatron-lm-2021", 0.1), 12);
  // also the mask, and twice bias and dropout apart from the addition
  EXPECT_EQ(forward("megatron-lm-2019", 0.1), 12 + 1 + 4);
  EXPECT_EQ(forward("megatron-lm-2019", 0.0), 12 + 1 + 2);
}

TEST(Lowering, FindsAStackByItsLongestPrefix) {
  EXPECT_EQ(find_stack("megatron-core-0.12")->family, "megatron");
  EXPECT_EQ(find_stack("megatron-lm-2021-04")->family, "megatron-lm-2021");
  EXPECT_EQ(find_stack("megatron-deepspeed-2022")->family, "megatron-deepspeed");
  EXPECT_EQ(find_stack("nemo-automodel-2026")->family, "nemo-automodel");
  EXPECT_EQ(find_stack("pencil-and-paper"), nullptr);
  EXPECT_EQ(nearest_stack("pencil-and-paper", 1).family, "megatron");
  EXPECT_EQ(nearest_stack("pencil-and-paper", 3).family, "torch");
}

std::int64_t global_parameters(const Plan& plan) {
  std::map<std::string, std::int64_t> elements;
  for (const Rank& rank : plan.ranks) {
    for (const Parameter& p : plan.programs[rank.program.value].parameters) {
      std::int64_t n = p.rows * p.cols;
      if (p.sharding.axis != Axis::None) {
        const auto slot = rank.slots[p.sharding.slot.value];
        n *= static_cast<std::int64_t>(plan.communicators[slot].members.size());
      }
      elements[p.name] = n;
    }
  }
  std::int64_t sum = 0;
  for (const auto& [name, n] : elements) sum += n;
  return sum;
}

TEST(Lowering, ParametersAreThoseOfTheModel) {
  for (const std::int32_t tp : {1, 2}) {
    for (const std::int32_t pp : {1, 2}) {
      for (const Transformer& model : {tiny_gpt(), tiny_llama()}) {
        const Plan plan = plan_of(model, layout_of(tp, pp, 1), tiny_job(2));
        EXPECT_EQ(global_parameters(plan), model.parameters()) << model.name;
      }
    }
  }
}

// Every parameter lies in its bucket, none overlap, and gradients lie as weights do.
TEST(Lowering, BucketsHoldParametersSideBySide) {
  Layout layout = layout_of(2, 2, 2);
  layout.sp = true;
  layout.zero = 1;
  const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(4));
  for (const Program& program : plan.programs) {
    std::map<std::uint32_t, std::map<std::int64_t, std::int64_t>> ranges;  // buffer: begin, end
    for (const Parameter& p : program.parameters) {
      EXPECT_EQ(p.weight.offset, p.gradient.offset);
      ranges[p.weight.buffer.value][p.weight.offset] = p.weight.offset + p.rows * p.cols;
    }
    EXPECT_GT(ranges.size(), 1u);
    for (const auto& [buffer, parts] : ranges) {
      std::int64_t next = 0;
      for (const auto& [begin, end] : parts) {
        EXPECT_EQ(begin, next);
        next = end;
      }
      // Padded to a multiple of the two data-parallel shards; BF16.
      EXPECT_EQ(plan.buffers[buffer].bytes.value, (next + next % 2) * 2);
    }
  }
}

// The first bucket of the last stage is reduced before the last micro-batch's backward has ended.
TEST(Lowering, ReducesBucketsUnderTheBackwardPass) {
  const auto tasks_between = [](bool overlap) {
    Layout layout = layout_of(1, 1, 2);
    layout.overlap_grad_reduce = overlap;
    const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(4));
    std::int64_t after = 0;
    bool reduced = false;
    for (const Instruction& i : plan.programs[0].body) {
      if (!is_task(i.kind)) continue;
      if (plan.names[i.name].op == "grad_all_reduce") reduced = true;
      if (reduced && plan.names[i.name].phase == Phase::Backward) ++after;
    }
    return after;
  };
  EXPECT_GT(tasks_between(true), 0);
  EXPECT_EQ(tasks_between(false), 0);
}

// ZeRO 1 over 2 ranks: every bucket is scattered once and gathered once, and each rank updates half
// of it.
TEST(Lowering, ZeroOneShardsTheOptimizer) {
  Layout layout = layout_of(1, 1, 2);
  layout.zero = 1;
  const Plan plan = plan_of(tiny_gpt(), layout, tiny_job(4));
  const auto of_kind = [&](OpKind kind) {
    return count(plan, 0, [&](const Instruction& i) {
      return is_task(i.kind) && plan.calls[i.call].op.kind == kind;
    });
  };
  EXPECT_GT(of_kind(OpKind::ReduceScatter), 1);
  EXPECT_EQ(of_kind(OpKind::ReduceScatter), of_kind(OpKind::AllGather));
  EXPECT_EQ(of_kind(OpKind::ReduceScatter), of_kind(OpKind::AdamStep));
  std::int64_t bucket_bytes = 0, master_bytes = 0;
  for (const Buffer& b : plan.buffers) {
    if (b.name.find("_dummy_grad") != std::string::npos) continue;  // of fused gradients
    if (b.memory == MemoryClass::Weights) bucket_bytes += b.bytes.value;
    if (b.name.find("master") != std::string::npos) master_bytes += b.bytes.value;
  }
  EXPECT_EQ(master_bytes, bucket_bytes / 2 * 4 / 2);  // BF16 weights, F32 masters, half of them
}

std::int64_t bytes_of_buffers(const Plan& plan, const std::string& name) {
  std::int64_t bytes = 0;
  for (const Buffer& b : plan.buffers) {
    if (b.name.find(name) != std::string::npos) bytes += b.bytes.value;
  }
  return bytes;
}

// BF16 weights: master, m and v of 4 bytes each. SGD keeps a momentum in place of m and v; without
// master the states are BF16 like the weights.
TEST(Lowering, StatesOfTheOptimizer) {
  Job job = tiny_job(1);
  const auto plan_with = [&](Optimizer optimizer, bool master) {
    job.optimizer = optimizer;
    job.precision.master = master;
    return plan_of(tiny_gpt(), layout_of(1, 1, 1), job);
  };
  const Plan adam = plan_with(Optimizer::Adam, true), sgd = plan_with(Optimizer::Sgd, true);
  const Plan lamb = plan_with(Optimizer::Lamb, true), bare = plan_with(Optimizer::Adam, false);
  const std::int64_t weights = bytes_of_buffers(adam, "weights");
  EXPECT_EQ(bytes_of_buffers(adam, "master"), 2 * weights);
  EXPECT_EQ(bytes_of_buffers(adam, "adam_"), 4 * weights);
  EXPECT_EQ(bytes_of_buffers(lamb, "adam_"), 4 * weights);
  EXPECT_EQ(bytes_of_buffers(sgd, "master"), 2 * weights);
  EXPECT_EQ(bytes_of_buffers(sgd, "momentum"), 2 * weights);
  EXPECT_EQ(bytes_of_buffers(sgd, "adam_"), 0);
  EXPECT_EQ(bytes_of_buffers(bare, "master"), 0);
  EXPECT_EQ(bytes_of_buffers(bare, "adam_"), 2 * weights);
  const auto steps = [](const Plan& plan, OpKind kind) {
    return count(plan, 0, [&](const Instruction& i) {
      return is_task(i.kind) && plan.calls[i.call].op.kind == kind;
    });
  };
  EXPECT_EQ(steps(sgd, OpKind::SgdStep), 1);
  EXPECT_EQ(steps(lamb, OpKind::LambStep), 1);
  EXPECT_EQ(steps(lamb, OpKind::AdamStep), 0);
}

// Logits of 4 tokens x 16 words: 2 bytes each kept, and 4 more in F32 unless the loss is fused.
TEST(Lowering, FusedCrossEntropyKeepsNoF32Logits) {
  Job job = tiny_job(1);
  const Plan apart = plan_of(tiny_gpt(), layout_of(1, 1, 1), job);
  job.fused_cross_entropy = true;
  const Plan fused = plan_of(tiny_gpt(), layout_of(1, 1, 1), job);
  EXPECT_EQ(bytes_of_buffers(apart, "logits_f32"), 4 * 16 * 4);
  EXPECT_EQ(bytes_of_buffers(fused, "logits_f32"), 0);
  EXPECT_EQ(bytes_of_buffers(fused, "head.logits_grad"), 0);
  EXPECT_FALSE(fused.cuda_graph);
  job.cuda_graph = true;
  EXPECT_TRUE(plan_of(tiny_gpt(), layout_of(1, 1, 1), job).cuda_graph);
}

// A pipeline message is [tokens, hidden] = 4 x 8 BF16; cut over tp by sequence parallelism or by
// the stack.
TEST(Lowering, PipelineMessages) {
  const auto message_elements = [](bool sp, const char* stack) {
    Layout layout = layout_of(2, 2, 1);
    layout.sp = sp;
    Job job = tiny_job(2);
    job.stack = stack;
    const Plan plan = plan_of(tiny_gpt(), layout, job);
    std::set<std::int64_t> sizes;
    for (const Program& program : plan.programs) {
      for (const Instruction& i : program.body) {
        if (i.kind == Kind::Send) sizes.insert(plan.calls[i.call].op.dims[0]);
      }
    }
    return sizes;
  };
  EXPECT_EQ(message_elements(false, "megatron-core"), std::set<std::int64_t>{32});
  EXPECT_EQ(message_elements(true, "megatron-core"), std::set<std::int64_t>{16});
  EXPECT_EQ(message_elements(false, "megatron-lm-2021"), std::set<std::int64_t>{16});
}

/// Ranks of the communicator, or the peer, that a slot of a rank means.
std::vector<std::uint32_t> members(const Plan& plan, std::uint32_t rank, const char* slot) {
  const Program& program = plan.program_of(RankId(rank));
  std::vector<std::uint32_t> list;
  for (std::uint32_t s = 0; s < program.slots.size(); ++s) {
    if (program.slots[s].name != slot) continue;
    if (program.slots[s].peer) return {plan.ranks[rank].slots[s]};
    for (const RankId m : plan.communicators[plan.ranks[rank].slots[s]].members) {
      list.push_back(m.value);
    }
  }
  return list;
}

// Rank order tp, cp, dp, pp: rank 3 of tp 2, dp 2, pp 2 is tp 1, dp 1, stage 0.
TEST(Lowering, RanksFormTheirCommunicators) {
  const Plan plan = plan_of(tiny_gpt(), layout_of(2, 2, 2), tiny_job(4));
  EXPECT_EQ(members(plan, 3, "tp"), (std::vector<std::uint32_t>{2, 3}));
  EXPECT_EQ(members(plan, 3, "dp"), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(members(plan, 3, "next"), (std::vector<std::uint32_t>{7}));
  EXPECT_EQ(members(plan, 7, "previous"), (std::vector<std::uint32_t>{3}));
  EXPECT_EQ(members(plan, 3, "embedding"), (std::vector<std::uint32_t>{3, 7}));
  EXPECT_EQ(members(plan, 3, "grad_norm"), (std::vector<std::uint32_t>{2, 3, 6, 7}));
}

// tp 2, cp 2, dp 2: rank 3 is tp 1, cp 1, dp 0. Gradients are summed over cp and dp.
TEST(Lowering, ContextParallelRanksAreReplicasOfTheWeights) {
  Layout layout = layout_of(2, 1, 2);
  layout.cp = 2;
  layout.cp_comm = ContextComm::Ring;
  Job job = tiny_job(4);
  job.attention = AttentionKernel::Flash2;
  const Plan plan = plan_of(tiny_gpt(), layout, job);
  EXPECT_EQ(members(plan, 3, "cp"), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(members(plan, 3, "dp"), (std::vector<std::uint32_t>{1, 3, 5, 7}));
  EXPECT_EQ(members(plan, 3, "cp_next"), (std::vector<std::uint32_t>{1}));
  EXPECT_EQ(members(plan, 7, "cp_previous"), (std::vector<std::uint32_t>{5}));
  EXPECT_EQ(plan.programs[0].inputs.at(0).sequence, job.sequence / 2);
}

// One bucket holds all layers of the first stage and one, closed before it, the tied embedding,
// whose gradient comes last.
TEST(Lowering, ReductionsStandInTheirOrderOfIssueBesideATiedTensor) {
  Layout layout = layout_of(1, 2, 2);
  layout.bucket_elements = 40'000'000;
  Transformer model = tiny_gpt();
  model.positions = Positions::Rope;  // no table of positions is complete with the embedding
  model.max_positions = 0;
  const auto lowered = lower(model, test::small_cluster({.gpus = 4}), layout, tiny_job(8));
  const std::vector<Reduction>& first = std::get<Lowered>(lowered).stages[0].reductions;
  ASSERT_EQ(first.size(), 2U);
  EXPECT_LT(first[0].segment, first[1].segment);
}

// 25 MiB of F32 gradients, or of 16-bit ones, in torch; 40 million parameters elsewhere.
TEST(Lowering, BucketsAreTheStacksUnlessStated) {
  Layout layout;
  layout.bucket_elements = 0;
  Job job = tiny_job(8);
  job.precision.grads = DType::F32;
  job.stack = "torch-1.6-ddp";
  EXPECT_EQ(bucket_elements(layout, job), 6'553'600);
  job.precision.grads = DType::Bf16;
  EXPECT_EQ(bucket_elements(layout, job), 13'107'200);
  job.stack = "megatron-core";
  EXPECT_EQ(bucket_elements(layout, job), 40'000'000);
  layout.bucket_elements = 7;
  EXPECT_EQ(bucket_elements(layout, job), 7);
}

}  // namespace
}  // namespace gputwin
