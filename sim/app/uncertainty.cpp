#include "sim/app/uncertainty.h"

#include <cmath>
#include <map>
#include <set>

#include "sim/core/spelling.h"

namespace gputwin {
namespace {

struct Deviation {
  double time = 0, below = 0, above = 0;  // seconds
  void add(double t, double low, double high) {
    time += t;
    below += t * (1.0 - low);
    above += t * (high - 1.0);
  }
};

/// Times of the operations of one rank, by op class and by communication domain.
struct Classes {
  std::map<std::string, Deviation> compute;
  std::map<Domain, Deviation> communication;
  std::set<std::string> extrapolated;
};

Classes classify(const Plan& plan, RankId id, const CostModel& costs, const Topology& topology) {
  const Rank& rank = plan.ranks[id.value];
  const Program& program = plan.programs[rank.program.value];
  std::vector<std::int64_t> uses(plan.calls.size(), 0);
  std::vector<const Instruction*> example(plan.calls.size(), nullptr);
  for (const Instruction& i : program.body) {
    if (!is_task(i.kind)) continue;
    ++uses[i.call];
    example[i.call] = &i;
  }
  Classes classes;
  for (std::size_t c = 0; c < plan.calls.size(); ++c) {
    if (uses[c] == 0) continue;
    const Call& call = plan.calls[c];
    const auto n = static_cast<double>(uses[c]);
    const std::string op =
        example[c]->name < plan.names.size() ? plan.names[example[c]->name].op : "";
    const Bytes read = bytes_of(call.reads), written = bytes_of(call.writes);
    if (example[c]->kind == Kind::Kernel || example[c]->kind == Kind::HostTask) {
      const Cost cost = costs.kernel(call.op, read, written, topology.device_kind(rank.gpu));
      classes.compute[cost.op_class].add(n * cost.time.value * rank.slowdown, cost.low, cost.high);
      if (cost.extrapolated) classes.extrapolated.insert(op);
    } else if (example[c]->kind == Kind::Collective) {
      std::vector<GpuId> members;
      const CommunicatorId comm = plan.communicator(id, call.op.slot);
      for (const RankId m : plan.communicators[comm.value].members)
        members.push_back(plan.ranks[m.value].gpu);
      const CollectiveSchedule s = costs.collective(call.op.kind, std::max(read, written), members);
      const double time = closed_form(s, members, topology).value;
      classes.communication[program.slots[call.op.slot.value].domain].add(n * time, s.low, s.high);
      if (s.extrapolated) classes.extrapolated.insert(op);
    }
  }
  return classes;
}

}  // namespace

Uncertainty uncertainty(const Plan& plan, const Execution& execution, const CostModel& costs,
                        const Topology& topology, double shared_deviation) {
  const RankId last = execution.last_rank;
  const Classes classes = classify(plan, last, costs, topology);
  const Breakdown& parts = execution.breakdown[last.value];
  const auto seconds = [&](Part p) { return to_seconds(parts[static_cast<std::size_t>(p)]).value; };
  double below = 0, above = 0, work = 0;
  const auto add = [&](const Deviation& d, double share) {
    below += std::pow(d.below * share, 2);
    above += std::pow(d.above * share, 2);
    work += d.time * share;
  };
  for (const auto& [name, deviation] : classes.compute) add(deviation, 1.0);
  for (const auto& [domain, deviation] : classes.communication) {
    const auto part =
        static_cast<Part>(static_cast<int>(Part::ExposedTp) + static_cast<int>(domain));
    if (deviation.time > 0) add(deviation, std::min(1.0, seconds(part) / deviation.time));
  }
  const double iteration = to_seconds(execution.iteration).value;
  const double stretch = work > 0 ? iteration / work : 0.0;
  const double shared = std::pow(shared_deviation * iteration, 2);
  Uncertainty result;
  result.low = Seconds(iteration - std::sqrt(std::pow(stretch, 2) * below + shared));
  result.high = Seconds(iteration + std::sqrt(std::pow(stretch, 2) * above + shared));
  result.extrapolated.assign(classes.extrapolated.begin(), classes.extrapolated.end());
  return result;
}

}  // namespace gputwin
