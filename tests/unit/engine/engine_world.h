// A world for engine tests: one clause per fact, plan text in, figures out.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "sim/core/plan_text.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"

namespace gputwin::test {

/// Kernels: 1 us per 1e6 flops. NVLink 4 ps/B, PCIe 40 ps/B, adapters 80 ps/B (small_cluster.h).
struct World {
  SmallCluster shape{};
  TableCostModel costs{};
  RunOptions options{.fold = Fold::Off};

  ExecutionOutcome outcome(const std::string& plan, EventSink* sink = nullptr) const {
    SimgridExecutor executor;
    const Topology topology(small_cluster(shape));
    return executor.run(parse_plan(plan), costs, topology, options, sink);
  }
  /// Runs ahead and by the calendar; both must say the same.
  Execution run(const std::string& plan) const {
    World calendar = *this;
    calendar.options.advance = Advance::Calendar;
    const ExecutionOutcome one = outcome(plan), other = calendar.outcome(plan);
    if (!std::holds_alternative<Execution>(one) || !std::holds_alternative<Execution>(other)) {
      ADD_FAILURE() << "the plan does not end";
      return {};
    }
    const auto& a = std::get<Execution>(one);
    const auto& b = std::get<Execution>(other);
    EXPECT_EQ(a.rank_end, b.rank_end);
    EXPECT_EQ(a.breakdown, b.breakdown);
    EXPECT_EQ(a.iteration, b.iteration);
    for (const Breakdown& parts : a.breakdown) {
      Ps sum = 0;
      for (const Ps part : parts) sum += part;
      EXPECT_EQ(sum, a.iteration);
    }
    return a;
  }
  Deadlock deadlock(const std::string& plan) const {
    const ExecutionOutcome result = outcome(plan);
    if (const auto* found = std::get_if<Deadlock>(&result)) return *found;
    ADD_FAILURE() << "the plan ends";
    return {};
  }
};

inline constexpr Ps kUs = 1'000'000;

inline Ps part(const Execution& run, std::size_t rank, Part which) {
  return run.breakdown[rank][static_cast<std::size_t>(which)];
}

}  // namespace gputwin::test
