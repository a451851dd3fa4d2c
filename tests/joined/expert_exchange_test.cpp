// Rows of experts exchanged within the nodes first: what it costs beside the flat exchange, by
// hand, by the chooser, and on both executors.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/engine/reference_executor.h"
#include "sim/engine/simgrid_executor.h"
#include "strategies/passes/choose_exchange.h"
#include "strategies/strategy.h"
#include "tests/joined/pipeline_world.h"
#include "tests/support/table_cost_model.h"

namespace gputwin::test {
namespace {

// Kernels free; a collective starts after `step` for every other member.
struct StepCosts final : CostModel {
  TableCostModel table;
  Seconds step{};

  Cost kernel(const Op&, Bytes, Bytes, DeviceKindId) const override { return {}; }
  Cost copy(CopyKind k, Bytes b, bool p, GpuId g) const override { return table.copy(k, b, p, g); }
  CollectiveSchedule collective(OpKind kind, Bytes bytes,
                                std::span<const GpuId> members) const override {
    CollectiveSchedule schedule = table.collective(kind, bytes, members);
    schedule.latency = step * static_cast<double>(members.size() - 1);
    return schedule;
  }
  Interference interference(DeviceKindId) const override { return {}; }
  HostCost host(DeviceKindId) const override { return {}; }
  MemoryCost memory(DeviceKindId, std::span<const std::int32_t>) const override { return {}; }
};

// Two layers of 8 experts over 8 GPUs on two nodes of 4, an adapter of 12.5 GB/s (80 ps/B) for each
// GPU, NVLink of 250 GB/s (4 ps/B).
struct World {
  Transformer model = small_gpt(2);
  Cluster cluster = small_cluster({.nodes = 2, .gpus = 4, .nics = 4});
  Topology topology{cluster};
  Job job = small_job(8);
  Layout layout;

  World() {
    model.moe = {.experts = 8, .top_k = 2, .ffn = 64};
    model.dropout = 0;
    layout.dp = layout.ep = 8;
    layout.schedule = Schedule::None;
  }
  Plan plan(ExpertComm exchange, const CostModel* costs = nullptr) const {
    Layout l = layout;
    l.ep_comm = exchange;
    auto outcome = make_plan(model, cluster, l, job, nullptr, costs);
    return std::move(std::get<Plan>(outcome));
  }
  Outcome<Layout> chosen(ExpertComm exchange, const CostModel* costs) const {
    Layout l = layout;
    l.ep_comm = exchange;
    return choose_exchange(model, cluster, l, job, {.costs = costs, .topology = &topology});
  }
};

// Exchanges of experts' rows in an iteration of a rank, and the bytes of each one's rows together.
std::pair<std::int64_t, std::int64_t> exchanges(const Plan& plan) {
  std::int64_t count = 0, bytes = 0;
  const Program& program = plan.programs[0];
  for (const Instruction& i : program.body) {
    if (i.kind != Kind::Collective) continue;
    const Call& call = plan.call(i);
    if (program.slots[call.op.slot.value].domain != Domain::Ep) continue;
    ++count;
    bytes += bytes_of(call.reads).value;
  }
  return {count, bytes};
}

// Flat, S bytes: 7 steps, and half of S through an adapter: 7 a + 40 ps S. Within nodes first: 3
// steps and 3/4 of S over NVLink, then one step and half of S through an adapter: 4 a + 43 ps S. So
// it is faster while a step takes more than 1 ps for each byte, on the mean.
TEST(ExpertExchange, WithinNodesFirstIsTakenWhereItsFewerStepsPay) {
  const World w;
  const auto [count, bytes] = exchanges(w.plan(ExpertComm::Flat));
  // Rows and their weights there and back, forward and backward, in two layers.
  EXPECT_EQ(count, 2 * (3 + 3));
  const double even = static_cast<double>(bytes) / static_cast<double>(count) * 1e-12;
  for (const double share : {0.99, 1.01}) {
    StepCosts costs;
    costs.step = Seconds(share * even);
    const auto chosen = w.chosen(ExpertComm::Auto, &costs);
    EXPECT_EQ(std::get<Layout>(chosen).ep_inner, share > 1 ? 4 : 0) << share;
  }
  EXPECT_EQ(std::get<Layout>(w.chosen(ExpertComm::Auto, nullptr)).ep_inner, 0);
  EXPECT_EQ(std::get<Layout>(w.chosen(ExpertComm::Hierarchical, nullptr)).ep_inner, 4);
}

// One adapter for the four GPUs of a node: either way 4 x S / 2 go through it, 160 ps S, so that
// nothing changes but the steps. Were the groups of a place priced alone, its four would have the
// adapter to themselves: 3 a + a + 3 ps S + 40 ps S beside 7 a + 160 ps S.
TEST(ExpertExchange, CountsThatItsGroupsShareAnAdapter) {
  World w;
  w.cluster = small_cluster({.nodes = 2, .gpus = 4, .nics = 1});
  w.topology = Topology(w.cluster);
  const auto [count, bytes] = exchanges(w.plan(ExpertComm::Flat));
  StepCosts costs;
  costs.step = Seconds(0.99e-12 * static_cast<double>(bytes) / static_cast<double>(count));
  EXPECT_EQ(std::get<Layout>(w.chosen(ExpertComm::Auto, &costs)).ep_inner, 0);
}

// Each of 12 exchanges is waited for, and all else is alike: the difference is 3 a - 3 ps S each.
TEST(ExpertExchange, TakesWhatItsTwoHalvesTakeOnBothExecutors) {
  const World w;
  StepCosts costs;
  costs.step = Seconds(5e-6);
  const Plan flat = w.plan(ExpertComm::Flat), inside = w.plan(ExpertComm::Hierarchical);
  const auto [count, bytes] = exchanges(flat);
  EXPECT_EQ(exchanges(inside).first, 2 * count);
  ReferenceExecutor reference;
  SimgridExecutor simgrid;
  for (Executor* executor :
       {static_cast<Executor*>(&reference), static_cast<Executor*>(&simgrid)}) {
    const auto iteration = [&](const Plan& plan) {
      const ExecutionOutcome outcome = executor->run(plan, costs, w.topology, {}, nullptr);
      return std::get<Execution>(outcome).iteration;
    };
    const Ps saved = 3 * (count * 5'000'000 - bytes);
    EXPECT_NEAR(static_cast<double>(iteration(flat) - iteration(inside)),
                static_cast<double>(saved), 100.0);
  }
}

// A rank with twice the rows of the others: its kernels take longer, either way alike.
TEST(ExpertExchange, GoesWithUnevenLoads) {
  World w;
  w.job.expert_load = {2, 1, 1, 1, 1, 1, 1, 0};
  const Plan flat = w.plan(ExpertComm::Flat), inside = w.plan(ExpertComm::Hierarchical);
  ASSERT_EQ(flat.loads.size(), 1u);
  const auto loaded = [](const Plan& plan) {
    const auto& body = plan.programs[0].body;
    return std::count_if(body.begin(), body.end(), [&](const Instruction& i) {
      return i.kind == Kind::Kernel && plan.call(i).op.load != 0;
    });
  };
  EXPECT_GT(loaded(flat), 0);
  EXPECT_EQ(loaded(inside), loaded(flat));
}

TEST(ExpertExchange, SaysWhereThereIsNoNodeToStartWith) {
  World w;
  w.cluster = small_cluster({.gpus = 8});
  w.topology = Topology(w.cluster);
  EXPECT_EQ(std::get<Layout>(w.chosen(ExpertComm::Auto, nullptr)).ep_inner, 0);
  const auto refused = w.chosen(ExpertComm::Hierarchical, nullptr);
  EXPECT_EQ(std::get<Infeasible>(refused).fix, "set layout.ep_comm to flat or auto");
  // A node of three: groups of 8 ranks have 3, 3 and 2 on a node.
  w.cluster = small_cluster({.nodes = 3, .gpus = 3, .nics = 3});
  EXPECT_EQ(experts_ranks_in_node(w.layout, Topology(w.cluster)), 0);
}

}  // namespace
}  // namespace gputwin::test
