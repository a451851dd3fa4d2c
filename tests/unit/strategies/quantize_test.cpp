// Copies in 8 and 4 bits: which kernels a recipe launches, what is gathered and what stays.
#include <gtest/gtest.h>

#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

struct Format {
  DType compute;
  Recipe recipe;
};

Plan with(const Format& format, std::int32_t tp = 1, const char* stack = "megatron-core",
          DType params = DType::Bf16) {
  Layout layout;
  layout.tp = tp;
  layout.sp = tp > 1;
  Job job = tiny_job(2);
  job.precision.compute = format.compute;
  job.precision.recipe = format.recipe;
  job.precision.params = params;
  job.stack = stack;
  return plan_of(tiny_gpt(), layout, job);
}

struct Kernels {
  std::int64_t copies, measured;
  bool operator==(const Kernels&) const = default;
};

Kernels kernels(const Plan& plan, Phase phase) {
  return {count_ops(plan, phase, 1, OpKind::Quantize), count_ops(plan, phase, 1, OpKind::AbsMax)};
}

// Four linear layers: one input each forward, one gradient each backward.
TEST(Quantize, KernelsOfALayerByRecipe) {
  const auto expect = [](const Format& format, Kernels each_way) {
    SCOPED_TRACE(static_cast<int>(format.recipe));
    const Plan plan = with(format);
    EXPECT_EQ(kernels(plan, Phase::Forward), each_way);
    EXPECT_EQ(kernels(plan, Phase::Backward), each_way);
  };
  expect({DType::F8, Recipe::Delayed}, {4, 0});  // after norms a transpose of what they wrote
  expect({DType::F8, Recipe::Current}, {4, 4});
  expect({DType::F8, Recipe::Tensorwise}, {4, 4});
  expect({DType::F8, Recipe::Blockwise}, {4, 0});
  expect({DType::F8, Recipe::Rowwise}, {8, 0});
  expect({DType::Mxf8, Recipe::Mx}, {4, 0});
  expect({DType::Nvf4, Recipe::Nvfp4}, {8, 4});
  expect({DType::Bf16, Recipe::None}, {0, 0});
}

DType norm_output(const Plan& plan) {
  for (const Instruction& i : plan.programs[0].body) {
    if (!is_task(i.kind)) continue;
    const Name& name = plan.names[i.name];
    if (name.layer == 1 && name.op == "norm1" && name.phase == Phase::Forward) {
      return plan.calls[i.call].op.out;
    }
  }
  return DType::I64;
}

// With delayed scaling the scale is known before the norm ends.
TEST(Quantize, NormsWriteEightBitsWithDelayedScaling) {
  EXPECT_EQ(norm_output(with({DType::F8, Recipe::Delayed})), DType::F8);
  EXPECT_EQ(norm_output(with({DType::F8, Recipe::Current})), DType::Bf16);
  EXPECT_EQ(norm_output(with({DType::Mxf8, Recipe::Mx})), DType::Bf16);
  EXPECT_EQ(norm_output(with({DType::F8, Recipe::Delayed}, 1, "torch")), DType::Bf16);
}

// Two kernels sum bias gradients apart where the copy kernel does not: those of qkv and fc1.
TEST(Quantize, CopiesSumBiasGradients) {
  const auto sums = [](const Format& format) {
    return count_ops(with(format), Phase::WeightGrad, 1, OpKind::BiasGrad);
  };
  EXPECT_EQ(sums({DType::Bf16, Recipe::None}), 4);
  EXPECT_EQ(sums({DType::F8, Recipe::Delayed}), 2);
  EXPECT_EQ(sums({DType::Mxf8, Recipe::Mx}), 2);
  EXPECT_EQ(sums({DType::F8, Recipe::Current}), 4);
}

std::int64_t gathered_bytes(const Plan& plan) {
  std::int64_t bytes = 0;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind != Kind::Collective || i.frame() != 0 || plan.names[i.name].layer != 1) continue;
    const Call& call = plan.calls[i.call];
    if (call.op.kind == OpKind::AllGather) bytes += bytes_of(call.writes).value;
  }
  return bytes;
}

// 4 tokens x 8: 64 B in BF16, gathered twice forward (qkv, fc1) and four times backward (their
// inputs again, the gradients of proj and fc2): 384 B. FP8 gathers half. MX needs both copies of
// the gradients: 2 + 2 + 2 x 2 gathers of 32 + 1 B.
TEST(Quantize, GathersCopies) {
  EXPECT_EQ(gathered_bytes(with({DType::Bf16, Recipe::None}, 2)), 384);
  EXPECT_EQ(gathered_bytes(with({DType::F8, Recipe::Delayed}, 2)), 192);
  EXPECT_EQ(gathered_bytes(with({DType::Mxf8, Recipe::Mx}, 2)), 8 * 33);
}

// Largest magnitudes are those of all token shards where shards are gathered: the inputs of qkv and
// fc1, the gradients of proj and fc2.
TEST(Quantize, AgreesOnScalesOverTokenShards) {
  const auto agreed = [](const Format& format) {
    const Plan plan = with(format, 2);
    return count_ops(plan, Phase::Forward, 1, OpKind::AllReduce) +
           count_ops(plan, Phase::Backward, 1, OpKind::AllReduce);
  };
  EXPECT_EQ(agreed({DType::F8, Recipe::Current}), 4);
  EXPECT_EQ(agreed({DType::F8, Recipe::Delayed}), 0);
}

std::int64_t bytes_of_buffers(const Plan& plan, const std::string& name) {
  std::int64_t bytes = 0;
  for (const Buffer& b : plan.buffers) {
    if (b.memory == MemoryClass::Weights && b.name.find(name) != std::string::npos) {
      bytes += b.bytes.value;
    }
  }
  return bytes;
}

// Linear weights of 4 layers: 8 x 24 + 8 x 8 + 2 x 8 x 32 = 768 each. Two copies of one byte stay
// beside the BF16 weights; with 8-bit parameters the weights are the first copy.
TEST(Quantize, KeepsTwoCopiesOfWeights) {
  const std::int64_t linear = 4 * 768;
  const Plan plan = with({DType::F8, Recipe::Delayed});
  EXPECT_EQ(bytes_of_buffers(plan, "weight"), 2 * tiny_gpt().parameters() + 2 * linear);
  const Plan narrow = with({DType::F8, Recipe::Delayed}, 1, "megatron-core", DType::F8);
  EXPECT_EQ(bytes_of_buffers(narrow, "weight"),
            2 * (tiny_gpt().parameters() - linear) + 2 * linear);
}

// Once per iteration, outside micro-batches: four weights of each layer.
TEST(Quantize, CastsWeightsOncePerIteration) {
  const auto casts = [](const Plan& plan) {
    return count(plan, 0, [&](const Instruction& i) {
      return is_task(i.kind) && i.frame() == kNoFrame &&
             plan.calls[i.call].op.kind == OpKind::Quantize;
    });
  };
  EXPECT_EQ(casts(with({DType::F8, Recipe::Delayed})), 16);
  EXPECT_EQ(casts(with({DType::F8, Recipe::Rowwise})), 32);
  EXPECT_EQ(casts(with({DType::Bf16, Recipe::None})), 0);
}

// Products of the layers alone are narrow, and read both operands along the sum.
TEST(Quantize, OnlyLayersMultiplyInEightBits) {
  const Plan plan = with({DType::F8, Recipe::Current});
  for (const Instruction& i : plan.programs[0].body) {
    if (!is_task(i.kind) || plan.calls[i.call].op.kind != OpKind::Gemm) continue;
    const Op& op = plan.calls[i.call].op;
    const bool of_layer = plan.names[i.name].layer >= 0;
    EXPECT_EQ(op.dtype, of_layer ? DType::F8 : DType::Bf16);
    EXPECT_TRUE(!of_layer || (op.trans_b && !op.trans_a));
  }
}

// A layer gathers two inputs forward, both again and two gradients backward.
TEST(Quantize, RowwiseGathersWhatOthersGatherAsCopies) {
  const auto gathers = [](Recipe recipe) {
    const Plan plan = with({DType::F8, recipe}, 2);
    std::map<DType, std::int64_t> by_type;
    for (const Instruction& i : plan.programs[0].body) {
      if (!is_task(i.kind) || plan.names[i.name].layer != 1 || i.frame() != 0) continue;
      const Call& call = plan.call(i);
      if (call.op.kind == OpKind::AllGather) ++by_type[call.writes[0].dtype];
    }
    return by_type;
  };
  EXPECT_EQ(gathers(Recipe::Rowwise), (std::map<DType, std::int64_t>{{DType::Bf16, 6}}));
  EXPECT_EQ(gathers(Recipe::Tensorwise), (std::map<DType, std::int64_t>{{DType::F8, 6}}));
}

}  // namespace
}  // namespace gputwin
