// Bytes that one layer keeps for backward, against Korthikanti et al. 2022, table 2.
#include <gtest/gtest.h>

#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

struct World {
  std::int64_t s = 64, b = 2, h = 32, a = 4, t = 2;
};

Transformer model_of(const World& w) {
  Transformer m = tiny_gpt();
  m.hidden = w.h;
  m.heads = m.kv_heads = w.a;
  m.head_dim = w.h / w.a;
  m.ffn = 4 * w.h;
  m.max_positions = w.s;
  m.dropout = 0.1;
  return m;
}

// Activations that live from forward into backward, of layer 1: those allocated by its forward and
// freed after the first backward operation, and its input, which the layer before it made.
std::int64_t kept(const World& w, std::int32_t tp, bool sp, Recompute recompute,
                  std::int32_t cp = 1, ContextComm comm = ContextComm::AllGather,
                  DType compute = DType::Bf16) {
  Layout layout;
  layout.tp = tp;
  layout.sp = sp;
  layout.cp = cp;
  layout.cp_comm = comm;
  layout.micro_batch = w.b;
  layout.recompute = recompute;
  Job job = tiny_job(w.b);
  job.sequence = w.s;
  if (cp > 1) job.attention = AttentionKernel::Flash2;
  job.precision.compute = compute;
  const Plan plan = plan_of(model_of(w), layout, job);
  std::vector<char> live(plan.buffers.size(), 0);
  std::int64_t bytes = 0;
  for (const Instruction& i : plan.programs[0].body) {
    if (i.kind == Kind::Alloc) live[i.call] = 1;
    if (i.kind == Kind::Free) live[i.call] = 0;
    if (is_task(i.kind) && plan.names[i.name].op == "cross_entropy") break;
  }
  for (std::size_t n = 0; n < plan.buffers.size(); ++n) {
    const Buffer& buffer = plan.buffers[n];
    const bool own = buffer.name.starts_with("layer1.") && buffer.name != "layer1.fc2_residual";
    const bool is_stats = buffer.name.ends_with("_stats");  // mean and deviation: not in the table
    if (live[n] != 0 && !is_stats && (own || buffer.name == "layer0.fc2_residual")) {
      bytes += buffer.bytes.value;
    }
  }
  return bytes;
}

// sbh (34 + 5 a s / h), 2-byte activations and 1-byte masks.
TEST(ActivationMemory, WithoutParallelism) {
  const World w;
  EXPECT_EQ(kept(w, 1, false, Recompute::None), w.s * w.b * w.h * 34 + 5 * w.a * w.s * w.s * w.b);
}

// Tensor parallelism: sbh (10 + 24 / t + 5 a s / (h t)).
TEST(ActivationMemory, WithTensorParallelism) {
  const World w;
  EXPECT_EQ(kept(w, 2, false, Recompute::None),
            w.s * w.b * w.h * (10 + 24 / w.t) + 5 * w.a * w.s * w.s * w.b / w.t);
}

// With sequence parallelism everything is divided by t.
TEST(ActivationMemory, WithSequenceParallelism) {
  const World w;
  EXPECT_EQ(kept(w, 2, true, Recompute::None),
            w.s * w.b * w.h * 34 / w.t + 5 * w.a * w.s * w.s * w.b / w.t);
}

// In 8 bits the inputs of the four linear layers are kept as copies of half the size: 2 sbh for
// qkv, proj and fc1 and 8 sbh for fc2 become half. MX adds a byte per 32 elements of the 7 sbh.
TEST(ActivationMemory, OfEightBitCopies) {
  const World w;
  const std::int64_t sbh = w.s * w.b * w.h, scores = 5 * w.a * w.s * w.s * w.b;
  EXPECT_EQ(kept(w, 1, false, Recompute::None, 1, ContextComm::AllGather, DType::F8),
            sbh * (34 - 7) + scores);
  EXPECT_EQ(kept(w, 2, true, Recompute::None, 1, ContextComm::AllGather, DType::F8),
            (sbh * (34 - 7) + scores) / w.t);
  EXPECT_EQ(kept(w, 1, false, Recompute::None, 1, ContextComm::AllGather, DType::Mxf8),
            sbh * (34 - 7) + scores + 7 * sbh / 32);
}

// Selective recomputation drops the quadratic term, full keeps the layer's input.
TEST(ActivationMemory, WithRecomputation) {
  const World w;
  EXPECT_EQ(kept(w, 2, true, Recompute::Selective), w.s * w.b * w.h * 34 / w.t);
  EXPECT_EQ(kept(w, 1, false, Recompute::Full), w.s * w.b * w.h * 2);
}

// Context parallelism with a flash kernel: 1 / cp of everything, and a log-sum-exp of 4 bytes for
// each query and head. Keys and values are gathered, or passed on, again in the backward pass.
// Traded heads keep the context twice: for the kernel and for the projection.
TEST(ActivationMemory, WithContextParallelism) {
  const World w;
  const std::int64_t sums = 4 * w.a * w.s * w.b / 2, rest = w.s * w.b * w.h * 34 / 2;
  EXPECT_EQ(kept(w, 1, false, Recompute::None, 2, ContextComm::AllGather), rest + sums);
  EXPECT_EQ(kept(w, 1, false, Recompute::None, 2, ContextComm::Ring), rest + sums);
  EXPECT_EQ(kept(w, 1, false, Recompute::None, 2, ContextComm::AllToAll),
            rest + sums + w.s * w.b * w.h * 2 / 2);
  // Recomputing the attention core repeats the exchange before it: q, k and v are kept as they
  // were, and no log-sum-exp.
  EXPECT_EQ(kept(w, 1, false, Recompute::Selective, 2, ContextComm::AllGather), rest);
  EXPECT_EQ(kept(w, 1, false, Recompute::Selective, 2, ContextComm::Ring), rest);
}

}  // namespace
}  // namespace gputwin
