// The closed form of the search against the executors, and its pieces against worked numbers.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "hwmodels/hardware_model.h"
#include "sim/app/run.h"
#include "sim/engine/reference_executor.h"
#include "strategies/offload/strategies.h"
#include "strategies/search/balance.h"
#include "strategies/search/layout_space.h"
#include "strategies/search/methods.h"
#include "strategies/search/offload_costs.h"
#include "tests/joined/pipeline_world.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

const std::vector<fs::path> kData{fs::path(GPUTWIN_SOURCE_DIR) / "scenarios"};

// One node whose GPUs, links and launches cost nothing but 4 us forward and 8 us backward a layer.
struct SmallWorld {
  SmallWorld(std::int64_t layers, const Layout& layout, std::int64_t global_batch)
      : model(test::small_gpt(layers)),
        cluster(test::small_cluster({.gpus = layout.ranks()})),
        job(test::small_job(global_batch)),
        topology(cluster) {}

  Estimate estimate(const Layout& layout) { return std::get<Estimate>(estimator.estimate(layout)); }
  double executed(const Layout& layout) {
    const Plan plan = std::get<Plan>(make_plan(model, cluster, layout, job));
    const ExecutionOutcome outcome = ReferenceExecutor().run(plan, costs, topology, {}, nullptr);
    return to_seconds(std::get<Execution>(outcome).iteration).value;
  }

  Transformer model;
  Cluster cluster;
  Job job;
  Topology topology;
  test::LayerCosts costs;
  LayoutEstimator estimator{model, cluster, job, costs, topology};
};

Layout pipeline(std::int32_t pp, Schedule schedule, std::int32_t vpp = 1) {
  Layout l;
  l.pp = pp;
  l.vpp = vpp;
  l.schedule = pp > 1 ? schedule : Schedule::None;
  return l;
}

// 8 layers on 4 stages: F = 8 us, B = 16 us, 8 micro-batches. (M + p - 1)(F + B) = 264 us;
// interleaved twice M (F + B) + (p - 1)(f + b) = 192 + 36 = 228 us.
TEST(LayoutEstimate, IsTheBubbleFormulaOfEvenStages) {
  SmallWorld w(8, pipeline(4, Schedule::Gpipe), 8);
  EXPECT_NEAR(w.estimate(pipeline(4, Schedule::Gpipe)).iteration.value, 264e-6, 1e-11);
  EXPECT_NEAR(w.estimate(pipeline(4, Schedule::OneFOneB)).iteration.value, 264e-6, 1e-11);
  EXPECT_NEAR(w.estimate(pipeline(4, Schedule::Interleaved, 2)).iteration.value, 228e-6, 1e-11);
}

// Uneven stages, with the slowest at the front, in the middle and at the end: as executed.
TEST(LayoutEstimate, FollowsUnevenStages) {
  const std::vector<std::vector<std::int32_t>> cuts{{2, 2, 2, 2}, {5, 1, 1, 1}, {1, 4, 2, 1},
                                                    {1, 1, 1, 5}, {1, 2, 3, 2}, {3, 2, 2, 1}};
  SmallWorld w(8, pipeline(4, Schedule::Gpipe), 12);
  for (const Schedule schedule : {Schedule::Gpipe, Schedule::OneFOneB}) {
    for (const std::vector<std::int32_t>& cut : cuts) {
      Layout l = pipeline(4, schedule);
      l.stage_layers = cut;
      const double executed = w.executed(l);
      EXPECT_NEAR(w.estimate(l).iteration.value, executed, 0.02 * executed)
          << static_cast<int>(schedule) << " " << cut[0] << cut[1] << cut[2] << cut[3];
    }
  }
}

// Full recomputation repeats the forward pass: F = 4, B = 12 us a layer; block that of 1 of 2
// layers.
TEST(LayoutEstimate, CountsRecomputation) {
  SmallWorld w(8, pipeline(4, Schedule::Gpipe), 8);
  Layout l = pipeline(4, Schedule::OneFOneB);
  l.recompute = Recompute::Full;
  EXPECT_NEAR(w.estimate(l).iteration.value, w.executed(l), 1e-11);
  l.recompute = Recompute::Block;
  l.recompute_layers = {1};
  EXPECT_NEAR(w.estimate(l).iteration.value, w.executed(l), 1e-11);
}

// Time within 3 % of the event simulator's, memory within 6 % of what the allocator hands out plus
// context and communicators. Printed for the record.
void expect_agreement(const Scenario& s, double error = 0.03, double memory_error = 0.06) {
  const Topology topology(s.cluster);
  const HardwareModel costs(topology, s.job, fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels");
  LayoutEstimator estimator(std::get<Transformer>(s.workload), s.cluster, s.job, costs, topology);
  const Estimate e = std::get<Estimate>(estimator.estimate(s.layout));
  const RunOutcome outcome = run(s, {});
  const RunResult& result = std::get<RunResult>(outcome);
  const double simulated = to_seconds(result.execution.iteration).value;
  std::int64_t allocated = 0;
  for (const RoleMemory& role : result.memory) {
    const MemoryFigures& f = role.figures;
    allocated = std::max(allocated, (f.allocated + f.device - f.reserved).value);
  }
  std::printf("  %s: closed form %.4f s, simulated %.4f s (%+.2f %%); memory %+.2f %%\n",
              s.name.c_str(), e.iteration.value, simulated,
              100 * (e.iteration.value / simulated - 1),
              100.0 * (static_cast<double>(e.memory.value) / static_cast<double>(allocated) - 1));
  EXPECT_NEAR(e.iteration.value, simulated, error * simulated);
  EXPECT_NEAR(static_cast<double>(e.memory.value), static_cast<double>(allocated),
              memory_error * static_cast<double>(allocated));
}

class ShippedEstimate : public ::testing::TestWithParam<const char*> {};

TEST_P(ShippedEstimate, AgreesWithTheSimulator) {
  expect_agreement(load_scenario(GetParam(), {}, kData));
}

// One GPU of a box. 13B on 40 GB, batches of 16: weights and gradients leave; 2.7B on 24 GB: states
// alone; 10B of BERT on 32 GB with 2 samples at a time: copies bound passes. Clipping shows the
// host's step, without it it is hidden.
TEST(LayoutEstimate, SeesWhatOffloadHides) {
  struct Case {
    std::string cluster, model, micro_batch, sequence;
    std::vector<std::string> strategies;
  };
  const std::vector<Case> cases{
      {"a100_40gb_1x8", "gpt3_13b", "16", "1024", {"greedy", "greedy-unclipped", "l2l"}},
      {"rtx3090_1x4", "gpt3_2_7b", "4", "1024", {"greedy", "greedy-unclipped", "zero-offload"}},
      {"v100_32gb_1x8", "bert_10b", "8", "512", {"greedy", "greedy-unclipped", "l2l"}}};
  for (const Case& c : cases) {
    for (const std::string& strategy : c.strategies) {
      SCOPED_TRACE(c.model + " " + strategy);
      expect_agreement(
          load_scenario(
              "gpt3_6_7b__a100_40gb_1x8__tp1_pp1_dp1_greedy",
              {"cluster=" + c.cluster, "model=" + c.model, "layout.micro_batch=" + c.micro_batch,
               "job.sequence=" + c.sequence, "passes.0.offload.strategy=" + strategy},
              kData),
          0.08, 0.12);
    }
  }
}

// 2 + 2 + 12 bytes a parameter, 8 layers. 3 bytes too many: 4 sixteenths of the states or more, or
// 3 of them, 2.25 bytes, and 0.375 of the gradients (2 sixteenths and all but 3 layers of the
// gradients are 1.5 + 1.25). Last, with all states gone, neither gradients nor weights need leave.
TEST(LayoutEstimate, ListsWhatMayLeave) {
  SmallWorld w(8, Layout(), 8);
  w.job.precision = {.grads = DType::Bf16};
  Layout l;
  l.offload = *find_offload_strategy("greedy");
  const std::vector<Absent> found = choices({w.model, w.cluster, w.job}, l, 1e9, 3e9);
  ASSERT_EQ(found.size(), 15u);
  EXPECT_NEAR(found[0].states, 0.1875, 1e-12);
  EXPECT_NEAR(found[0].gradients, 0.375, 1e-12);
  EXPECT_NEAR(found[1].states, 0.25, 1e-12);
  EXPECT_EQ(found[1].gradients, 0);
  EXPECT_EQ(found[13].states, 1);
  EXPECT_EQ(found[14].gradients, 0);
  EXPECT_EQ(found[14].weights, 0);
  // All fits: what clips leaves all where it is, what does not may use the host.
  EXPECT_EQ(choices({w.model, w.cluster, w.job}, l, 1e9, -1.0).size(), 1u);
  l.offload = *find_offload_strategy("greedy-unclipped");
  EXPECT_EQ(choices({w.model, w.cluster, w.job}, l, 1e9, -1.0).size(), 18u);
}

// 12 of the 32 layers have no experts: all 8 of the first stage, half of the second.
TEST(LayoutEstimate, TellsLayersBeforeTheExpertsApart) {
  expect_agreement(
      load_scenario("mixtral_8x7b__h100_8x8__tp1_pp4_dp16_ep8",
                    {"model.moe.dense_layers=12", "layout.vpp=1", "layout.schedule=1f1b"}, kData));
}

INSTANTIATE_TEST_SUITE_P(
    Runs, ShippedEstimate,
    ::testing::Values(
        "gpt2_124m__a100_1x8__tp1_pp1_dp8", "gpt2_1_5b__a100_25gbe_4x8__tp1_pp1_dp32",
        "gpt3_13b__a100_4x8__tp4_pp4_dp2_gpipe", "gpt3_175b__a100_128x8__tp8_pp16_dp8",
        "gpt3_175b__a100_8x8__tp8_pp8_dp1_sp_selective", "gpt_22b__a100_1x8__tp8_pp1_dp1_full",
        "llama2_7b__a100_1x8__tp1_pp1_dp8_zero1", "llama2_7b__a100_1x8__tp1_pp1_dp8_zero3",
        "llama3_70b__b200_8x8__tp4_pp4_dp4_zero1", "llama3_8b__h100_1x8__tp2_pp2_dp2_block",
        "llama3_8b__h100_4x8__tp2_pp1_dp4_cp4", "mixtral_8x7b__h100_8x8__tp1_pp4_dp16_ep8"));

// 7 equal layers on 3 stages: no cut has a slowest stage of fewer than 3 layers.
TEST(Balanced, CutsTheChainOfTheLayout) {
  SmallWorld w(7, pipeline(3, Schedule::OneFOneB), 6);
  const Layout even = pipeline(3, Schedule::OneFOneB);
  const auto moved = balanced(even, w.model, w.cluster, w.job, w.topology, w.costs, w.estimator);
  ASSERT_TRUE(moved.has_value());
  const std::vector<std::int32_t>& cut = moved->stage_layers;
  ASSERT_EQ(cut.size(), 3u);
  EXPECT_EQ(cut[0] + cut[1] + cut[2], 7);
  EXPECT_EQ(*std::max_element(cut.begin(), cut.end()), 3);
}

// Experts of one rank are a share of all: 8 experts a layer, 4 layers, 8 ranks. With ep 4 a rank
// holds 2 experts of a layer: weights, gradients, master copies and moments of 6 less than with
// ep 1.
TEST(LayoutEstimate, HoldsTheExpertsOfTheRankAlone) {
  SmallWorld w(4, pipeline(8, Schedule::OneFOneB), 16);
  w.model.moe = {.experts = 8, .top_k = 2, .ffn = 128};
  Layout all = pipeline(1, Schedule::None), spread = all;
  all.dp = spread.dp = 8;
  spread.ep = 4;
  const double fewer = 4.0 * 6.0 * static_cast<double>(w.model.expert_parameters());
  const Precision& p = w.job.precision;
  const double bytes = (bits(p.params) + bits(p.grads)) / 8.0 + 12;  // master and two moments
  const Estimate a = w.estimate(all), b = w.estimate(spread);
  const auto less = static_cast<double>((a.memory - b.memory).value);
  EXPECT_NEAR(less, fewer * bytes, 0.02 * fewer * bytes);
}

// Of layouts that fit, in ascending closed form: 0 is the best, a pipeline with tensor parallelism;
// replicas alone are 2.
TEST(Methods, ChooseAmongWhatTheyCanExpress) {
  SmallWorld w(8, pipeline(8, Schedule::OneFOneB), 16);
  const MethodWorld world{w.model, w.cluster, w.job, w.estimator};
  std::vector<Layout> layouts(4, pipeline(2, Schedule::OneFOneB));
  layouts[0].tp = layouts[0].dp = 2;
  layouts[1].dp = 4;
  layouts[2] = pipeline(1, Schedule::None);
  layouts[2].dp = 8;
  layouts[3] = pipeline(4, Schedule::Gpipe);
  layouts[3].dp = 2;
  std::vector<const Layout*> list;
  for (const Layout& l : layouts) list.push_back(&l);
  EXPECT_EQ(choose("alpa", list, world), 0u);
  EXPECT_EQ(choose("1f1b", list, world), 1u);
  EXPECT_EQ(choose("data-parallel", list, world), 2u);
  EXPECT_EQ(choose("gpipe", list, world), 3u);
  EXPECT_EQ(choose("fsdp", list, world), std::nullopt);
  EXPECT_EQ(choose("tensor-in-node", list, world), std::nullopt);
  // Tensor parallelism of less than the node comes before stages: 1 and 0 are not its kind.
  EXPECT_EQ(choose("megatron", list, world), 2u);
  EXPECT_THROW(choose("alap", list, world), std::invalid_argument);
}

// 8 equal layers of 4 us forward and 8 us backward: without messages and reductions AMP's estimate
// is that of even 1F1B, (M + p - 1)(F + B) = (8 + 3) x 24 us.
TEST(Methods, AmpsEstimateIsTheFillAndTheSlowestStage) {
  SmallWorld w(8, pipeline(4, Schedule::OneFOneB), 8);
  const MethodWorld world{w.model, w.cluster, w.job, w.estimator};
  const Layout l = pipeline(4, Schedule::OneFOneB);
  EXPECT_NEAR(amp_seconds(l, world), 264e-6, 2e-6);
}

// A device that holds less than the job needs: layers are computed again one by one until it fits,
// most on the first stage, which keeps 4 micro-batches where the last keeps 1.
TEST(Methods, RecomputeAsFewLayersAsFit) {
  SmallWorld w(16, pipeline(4, Schedule::OneFOneB), 16);
  Layout l = pipeline(4, Schedule::OneFOneB);
  const Bytes whole = w.estimate(l).memory;
  l.recompute = Recompute::Full;
  const Bytes least = w.estimate(l).memory;
  w.costs.capacity = Bytes((whole.value + least.value) / 2);
  LayoutEstimator tight(w.model, w.cluster, w.job, w.costs, w.topology);
  const auto fits = recomputed_as_needed(l, w.model, tight);
  ASSERT_TRUE(fits.has_value());
  const std::vector<std::int32_t>& again = fits->recompute_layers;
  ASSERT_EQ(again.size(), 4u);
  EXPECT_GT(again[0], again[3]);
  EXPECT_LT(again[0], 4);
  Layout one_less = *fits;
  --one_less.recompute_layers[0];
  EXPECT_FALSE(std::get<Estimate>(tight.estimate(one_less)).fits());
  w.costs.capacity = Bytes(whole.value + 1);
  LayoutEstimator roomy(w.model, w.cluster, w.job, w.costs, w.topology);
  EXPECT_FALSE(recomputed_as_needed(l, w.model, roomy).has_value());
}

// Every layout of a tiny job is looked at once, and what is refused is counted under its reason: of
// the divisors of 8 GPUs tp = 8 alone does not divide 4 heads.
TEST(LayoutSpace, CountsReasons) {
  SmallWorld w(8, pipeline(8, Schedule::OneFOneB), 16);
  std::int64_t found = 0;
  const SpaceWatcher watcher{.found = [&](const Layout&, const Estimate&) { ++found; },
                             .keep_on = [](double) { return true; }};
  const SpaceCount count = enumerate({}, Layout{}, w.model, w.cluster, w.job, w.estimator, watcher);
  EXPECT_EQ(count.feasible, found);
  std::int64_t rejected = 0;
  for (const auto& [reason, r] : count.rejected) rejected += r.layouts;
  EXPECT_EQ(count.looked_at, found + rejected);
  const auto heads = count.rejected.find("tp # does not divide the attention heads (#)");
  ASSERT_NE(heads, count.rejected.end());
  EXPECT_NE(heads->second.example.find("tp8"), std::string::npos);
}

}  // namespace
}  // namespace gputwin
