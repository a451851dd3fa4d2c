// Small random plans that cannot deadlock: a global order of steps is drawn first, then each rank
// gets its part of it, so that everything a step waits for stands before it.
#pragma once

#include <rapidcheck.h>

#include "sim/core/plan.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"

namespace gputwin::test {

struct PlanCase {
  Plan plan;
  Cluster cluster;
  TableCostModel costs;
};

enum class Contention { None, Any };

/// Plans of 2-8 ranks with a program each, 1-3 streams plus a CPU stream, kernels, host tasks,
/// collectives on up to four communicators, Sends and Recvs alone and grouped, copies, events, host
/// waits; now and then waits for the previous body, launch costs, a short launch queue, stragglers,
/// jitter and interference.
///
/// None  all communication of a rank is on one stream and all its copies on another, with an
/// adapter per GPU:
///       no two transfers ever want the same link.
/// Any   every task on any stream, adapters shared, PCIe switches shared, fabrics oversubscribed.
rc::Gen<PlanCase> plan_case(Contention contention);

/// The case that `seed` draws.
PlanCase draw(Contention contention, std::uint64_t seed);

}  // namespace gputwin::test
