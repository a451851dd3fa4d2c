// Mixtures of experts, latent attention and sliding windows on real numbers: whatever the layout,
// loss and gradients equal those of one rank, which are derivatives of the loss.
#include <gtest/gtest.h>

#include <cmath>

#include "sim/core/plan_builder.h"
#include "strategies/strategy.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {
namespace {

// 4 layers, the first dense; 4 experts of which a token takes 2, so that any 2 rows fill all.
Transformer tiny_experts() {
  Transformer m = tiny_llama();
  m.moe = {.experts = 4, .top_k = 2, .ffn = 6, .shared_ffn = 4, .dense_layers = 1};
  return m;
}

Transformer tiny_biased() {
  Transformer m = tiny_experts();
  m.moe.bias = true;
  return m;
}

Transformer tiny_latent() {
  Transformer m = tiny_experts();
  m.mla = {.q_rank = 6, .kv_rank = 4, .nope = 2, .rope = 2, .value = 3};
  m.head_dim = 4;
  m.kv_heads = m.heads;
  return m;
}

Transformer tiny_windowed() {
  Transformer m = tiny_llama();
  m.window = 2;
  m.full_every = 2;
  return m;
}

Job job_of(std::int64_t global_batch) {
  Job job = tiny_job(global_batch);
  job.attention = AttentionKernel::Flash2;
  return job;
}

Results interpreted(const Transformer& model, const Layout& layout, const Job& job,
                    std::uint64_t seed = 0) {
  Plan plan = plan_of(model, layout, job);
  // The interpreter reads shards at the end, so they must outlive their use.
  for (Buffer& b : plan.buffers) {
    if (b.name.find("_shard") != std::string::npos) b.persistent = true;
  }
  for (Program& p : plan.programs) place_memory(plan, p);
  InterpretOptions options;
  options.generic_constants = true;
  options.adam_epsilon = 1e-3;  // so that the clip factor, and with it the norm, shows in weights
  options.clip_norm = 0.01;
  options.seed = seed;
  return interpret(plan, options);
}

void expect_equal(const std::map<std::string, Tensor>& expected,
                  const std::map<std::string, Tensor>& actual) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    ASSERT_NE(found, actual.end()) << name;
    ASSERT_EQ(found->second.values.size(), tensor.values.size()) << name;
    double worst = 0.0;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      worst = std::max(worst, std::abs(tensor.values[i] - found->second.values[i]));
    }
    EXPECT_LT(worst, 1e-9) << name;
  }
}

std::vector<Layout> layouts() {
  const auto of = [](std::int32_t tp, std::int32_t pp, std::int32_t dp, std::int32_t ep,
                     std::int32_t zero) {
    Layout l;
    l.tp = tp;
    l.sp = tp > 1;
    l.pp = pp;
    l.dp = dp;
    l.ep = ep;
    l.zero = zero;
    l.schedule = pp > 1 ? Schedule::OneFOneB : Schedule::None;
    l.bucket_elements = 300;
    return l;
  };
  // Experts whole; one copy over dp; two copies; over tp; over tp x dp; with a pipeline.
  std::vector<Layout> list{of(1, 1, 2, 1, 0), of(1, 1, 2, 2, 0), of(1, 1, 4, 2, 1),
                           of(1, 1, 4, 4, 1), of(2, 1, 1, 2, 0), of(2, 1, 2, 4, 1),
                           of(2, 1, 2, 2, 0), of(1, 2, 2, 2, 1), of(2, 2, 2, 2, 1)};
  list.push_back(of(1, 2, 2, 2, 1));
  list.back().vpp = 2;
  list.back().schedule = Schedule::Interleaved;
  list.back().overlap_shared_experts = true;
  for (const std::uint8_t modules : {kRecomputeMoe, kRecomputeMoeActivation, kRecomputeNorms,
                                     kRecomputeMlp, kRecomputeMlaUp, kRecomputeOps}) {
    list.push_back(of(2, 1, 2, 2, 1));
    list.back().recompute_modules = modules;
  }
  list.push_back(of(1, 1, 2, 2, 1));
  list.back().recompute = Recompute::Full;
  return list;
}

void expect_one_meaning(const Transformer& model, const Job& job) {
  Layout one;
  one.schedule = Schedule::None;
  one.micro_batch = 2;
  const Results expected = interpreted(model, one, job);
  EXPECT_GT(expected.loss, 2.0);  // about ln 16
  std::uint64_t seed = 0;
  for (const Layout& l : layouts()) {
    if (!model.has_experts() && l.ep > 1) continue;
    SCOPED_TRACE("tp" + std::to_string(l.tp) + " pp" + std::to_string(l.pp) + " dp" +
                 std::to_string(l.dp) + " ep" + std::to_string(l.ep) + " zero" +
                 std::to_string(l.zero) + " modules" + std::to_string(l.recompute_modules));
    const Results actual = interpreted(model, l, job, ++seed);
    EXPECT_NEAR(actual.loss, expected.loss, 1e-9);
    expect_equal(expected.gradients, actual.gradients);
    expect_equal(expected.weights, actual.weights);
  }
}

TEST(ExpertsMeaning, OfEveryLayout) { expect_one_meaning(tiny_experts(), job_of(8)); }
TEST(ExpertsMeaning, OfBiases) { expect_one_meaning(tiny_biased(), job_of(8)); }
TEST(ExpertsMeaning, OfLatentAttention) { expect_one_meaning(tiny_latent(), job_of(8)); }
TEST(ExpertsMeaning, OfAPlainQueryProjection) {
  Transformer m = tiny_latent();
  m.mla.q_rank = 0;
  expect_one_meaning(m, job_of(8));
}
// Groups of 2 of 4 ranks, and of 2 and of 4 of 8, one or two experts to a rank.
TEST(ExpertsMeaning, OfAnExchangeWithinNodesFirst) {
  Transformer m = tiny_experts();
  m.moe.experts = 8;
  Layout one;
  one.schedule = Schedule::None;
  one.micro_batch = 2;
  const Results expected = interpreted(m, one, job_of(8));
  for (const auto& [ep, inner] : {std::pair{4, 2}, std::pair{8, 2}, std::pair{8, 4}}) {
    Layout l;
    l.dp = l.ep = ep;
    l.ep_inner = inner;
    l.schedule = Schedule::None;
    l.recompute_modules = inner == 4 ? kRecomputeMoe : 0;
    SCOPED_TRACE("ep" + std::to_string(ep) + " inner" + std::to_string(inner));
    const Results actual = interpreted(m, l, job_of(8), 3);
    EXPECT_NEAR(actual.loss, expected.loss, 1e-9);
    expect_equal(expected.gradients, actual.gradients);
    expect_equal(expected.weights, actual.weights);
  }
}
TEST(ExpertsMeaning, OfWindows) { expect_one_meaning(tiny_windowed(), job_of(8)); }

TEST(ExpertsMeaning, OfNarrowFormats) {
  for (const DType format : {DType::F8, DType::Mxf8}) {
    Job job = job_of(8);
    job.precision.compute = format;
    job.precision.recipe = usual_recipe(format);
    expect_one_meaning(tiny_latent(), job);
    expect_one_meaning(tiny_biased(), job);
  }
}

// Rows of zeros are no tokens: their weight is 0, and so is what they add to a bias's gradient.
TEST(ExpertsMeaning, OfBiasesUnderACapacityNobodyReaches) {
  Layout l;
  l.dp = l.ep = 2;
  l.schedule = Schedule::None;
  Transformer padded = tiny_biased();
  padded.moe.capacity_factor = 2;
  const Results even = interpreted(tiny_biased(), l, job_of(4));
  const Results more = interpreted(padded, l, job_of(4));
  EXPECT_NEAR(even.loss, more.loss, 1e-12);
  expect_equal(even.gradients, more.gradients);
}

// Padding to twice the even share adds rows of zeros and changes nothing.
TEST(ExpertsMeaning, OfACapacityNobodyReaches) {
  Layout l;
  l.dp = l.ep = 2;
  l.schedule = Schedule::None;
  Transformer padded = tiny_experts();
  padded.moe.capacity_factor = 2;
  const Results even = interpreted(tiny_experts(), l, job_of(4));
  const Results more = interpreted(padded, l, job_of(4));
  EXPECT_NEAR(even.loss, more.loss, 1e-12);
  expect_equal(even.gradients, more.gradients);
}

TEST(ExpertsMeaning, GradientsAreDerivativesOfTheLoss) {
  for (const Transformer& model : {tiny_experts(), tiny_biased(), tiny_latent(), tiny_windowed()}) {
    Layout layout;
    layout.dp = 2;
    layout.ep = model.has_experts() ? 2 : 1;
    layout.schedule = Schedule::None;
    const Plan plan = plan_of(model, layout, job_of(2));
    InterpretOptions options;
    options.generic_constants = true;
    const Results at = interpret(plan, options);
    for (const auto& [name, gradient] : at.gradients) {
      if (!name.starts_with("layer1.")) continue;  // one of each kind
      constexpr double kStep = 1e-5;
      options.nudges = {{name, 1, 0, kStep}};
      const double up = interpret(plan, options).loss;
      options.nudges = {{name, 1, 0, -kStep}};
      const double down = interpret(plan, options).loss;
      EXPECT_NEAR((up - down) / (2 * kStep), gradient.at(1, 0), 1e-7) << model.name << " " << name;
    }
  }
}

// 4 rows of 8 features, 2 choices, 4 experts over 2 ranks: 8 rows go out, half of them to the
// other.
TEST(ExpertsLowering, SendsAndHoldsWhatTheRoutingSays) {
  Transformer m = tiny_experts();
  Layout l;
  l.dp = l.ep = 2;
  l.schedule = Schedule::None;
  const Plan plan = plan_of(m, l, job_of(2));
  EXPECT_EQ(count_ops(plan, Phase::Forward, 0, OpKind::AllToAll), 0);  // dense
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::AllToAll), 3);  // weights, rows, back
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::GroupedGemm), 2);
  for (const Call& call : plan.calls) {
    if (call.op.kind != OpKind::AllToAll || call.reads[0].cols != 8) continue;
    EXPECT_EQ(call.reads[0].rows, 8);
  }
  std::int64_t held = 0;
  for (const Parameter& p : plan.programs[0].parameters) {
    if (p.name == "layer1.experts.fc1.weight") held = p.rows;
  }
  EXPECT_EQ(held, 2 * 2 * 6);  // 2 experts, gate and up, width 6
}

// The bias of the second product is a step of its own, each expert launched apart: of 2 experts 2
// kernels and 2 for all, backward 7 and 3. That of the first goes with its products.
TEST(ExpertsLowering, AddsBiasesAsTheyAre) {
  Layout l;
  l.dp = l.ep = 2;
  l.schedule = Schedule::None;
  const Plan plan = plan_of(tiny_biased(), l, job_of(2));
  EXPECT_EQ(count_ops(plan, Phase::Forward, 1, OpKind::ExpertBias), 1);
  EXPECT_EQ(count_ops(plan, Phase::Backward, 1, OpKind::ExpertBias), 1);
  for (const Call& call : plan.calls) {
    if (call.op.kind == OpKind::ExpertBias) {
      EXPECT_EQ(call.op.launches, call.op.inverse ? 7 * 2 + 3 : 2 * 2 + 2);
    }
    if (call.op.kind != OpKind::GroupedGemm) continue;
    const bool first = call.op.dims[1] == 12 || call.op.dims[2] == 12;  // gate and up, width 6
    const bool bias = call.op.trans_a ? call.writes.size() == 2 : call.reads.size() == 3;
    EXPECT_EQ(bias, first && (call.op.trans_a || call.op.trans_b));
  }
  const Plan without = plan_of(tiny_experts(), l, job_of(2));
  EXPECT_EQ(count_ops(without, Phase::Forward, 1, OpKind::ExpertBias), 0);
}

TEST(ExpertsLowering, LoadsExpertsUnevenly) {
  Layout l;
  l.dp = l.ep = 2;
  l.schedule = Schedule::None;
  Job job = job_of(2);
  job.expert_load = {1.5, 0.5};
  const Plan plan = plan_of(tiny_experts(), l, job);
  ASSERT_EQ(plan.loads.size(), 1U);
  EXPECT_EQ(plan.loads[0].factor, job.expert_load);
  for (const Call& call : plan.calls) {
    if (call.op.kind != OpKind::GroupedGemm) continue;
    EXPECT_EQ(call.op.load, 1U);
    EXPECT_TRUE(call.op.slot.valid());
  }
}

TEST(ExpertsLowering, RefusesWhatCannotBe) {
  const auto reason = [](Layout l, Job job) {
    const auto outcome = make_plan(tiny_experts(), one_node(16), l, job);
    const auto* infeasible = std::get_if<Infeasible>(&outcome);
    return infeasible == nullptr ? std::string() : infeasible->reason;
  };
  Layout l;
  l.schedule = Schedule::None;
  l.dp = 8;
  l.ep = 8;
  EXPECT_EQ(reason(l, job_of(8)), "ep 8 does not divide the experts (4)");
  l.dp = 2;
  l.ep = 4;
  EXPECT_EQ(reason(l, job_of(8)), "ep 4 does not divide tp x cp x dp (2)");
  l.ep = 2;
  l.tp = 2;
  EXPECT_EQ(reason(l, job_of(8)), "experts with tensor parallelism need each rank's own tokens");
  l.tp = 1;
  l.zero = 3;
  EXPECT_EQ(reason(l, job_of(8)), "not lowered yet: experts with ZeRO 2 or 3");
}

// Parameters by hand, of a layer of Mixtral 8x7B: see scenarios/models/mixtral_8x7b.json.
TEST(ExpertsLowering, CountsParameters) {
  Transformer m = tiny_experts();
  const std::int64_t attention = 8 * (8 + 2 * 4) + 8 * 8, norms = 16;
  EXPECT_EQ(m.parameters_of_layer(0), attention + norms + 3 * 8 * 12);
  EXPECT_EQ(m.parameters_of_layer(1), attention + norms + 3 * 8 * 4 + 4 * (8 + 3 * 8 * 6));
  EXPECT_EQ(m.parameters() - m.active_parameters(), 3 * 2 * 3 * 8 * 6);
  const std::int64_t of_biases = tiny_biased().parameters_of_layer(1) - m.parameters_of_layer(1);
  EXPECT_EQ(of_biases, 4 * (2 * 6 + 8));
  m = tiny_latent();
  const std::int64_t latent = 6 * (8 + 16) + 8 * (4 + 2) + 4 * 4 * (2 + 3) + 4 * 3 * 8;
  EXPECT_EQ(m.attention_weights(), latent);
}

}  // namespace
}  // namespace gputwin
