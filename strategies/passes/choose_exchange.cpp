#include "strategies/passes/choose_exchange.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "strategies/lowering/transformer.h"

namespace gputwin {
namespace {

// All communicators that the ranks of a stage have in a slot, which exchange at the same time.
struct Siblings {
  std::vector<std::vector<GpuId>> groups;

  Siblings(const Plan& plan, ProgramId program, SlotId slot) {
    std::set<std::uint32_t> seen;
    for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
      if (plan.ranks[r].program != program) continue;
      const CommunicatorId id = plan.communicator(RankId(r), slot);
      if (!seen.insert(id.value).second) continue;
      groups.emplace_back();
      for (const RankId member : plan.communicators[id.value].members) {
        groups.back().push_back(plan.ranks[member.value].gpu);
      }
    }
  }

  // Time until all are done: their flows share links.
  double seconds(const StagePrices& prices, OpKind kind, Bytes bytes) const {
    CollectiveSchedule all;
    std::vector<GpuId> members;
    for (const std::vector<GpuId>& group : groups) {
      const CollectiveSchedule one = prices.costs->collective(kind, bytes, group);
      const auto first = static_cast<std::uint32_t>(members.size());
      for (const FlowEdge& e : one.edges) {
        all.edges.push_back({first + e.from, first + e.to, e.bytes});
      }
      members.insert(members.end(), group.begin(), group.end());
      all.latency = std::max(all.latency, one.latency);
      all.rate_cap = one.rate_cap;
    }
    return closed_form(all, members, *prices.topology).value;
  }
};

bool exchanges(const Program& program, const Plan& plan, const SegmentOp& op) {
  return op.kind == Kind::Collective &&
         program.slots[plan.calls[op.call.value].op.slot.value].domain == Domain::Ep;
}

// Of all layers of the first stage that has experts, one micro-batch forward and backward; kernels
// of both ways are alike but for those that align blocks.
double layer_seconds(const Lowered& lowered, const StagePrices& prices) {
  const Plan& plan = lowered.plan;
  for (std::size_t s = 0; s < lowered.stages.size(); ++s) {
    const StageSegments& stage = lowered.stages[s];
    const Program& program = plan.programs[stage.program.value];
    const StageClock clock(lowered, static_cast<std::int32_t>(s), prices);
    std::map<std::uint32_t, double> by_call;
    double seconds = 0;
    bool found = false;
    for (const Chunk& chunk : stage.chunks) {
      for (const auto* list : {&chunk.forward, &chunk.backward}) {
        for (const Segment& segment : *list) {
          for (const SegmentOp& op : segment.ops) {
            const bool exchange = exchanges(program, plan, op);
            if (op.kind != Kind::Kernel && !exchange) continue;
            found = found || exchange;
            const Call& call = plan.calls[op.call.value];
            const auto [known, added] = by_call.try_emplace(op.call.value, 0.0);
            if (added && exchange) {
              const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
              known->second =
                  Siblings(plan, stage.program, call.op.slot).seconds(prices, call.op.kind, bytes);
            } else if (added) {
              known->second = clock.kernel(call);
            }
            seconds += known->second;
          }
        }
      }
    }
    if (found) return seconds;
  }
  return 0;
}

}  // namespace

std::int32_t experts_ranks_in_node(const Layout& layout, const Topology& topology) {
  std::vector<std::vector<std::int32_t>> stages(static_cast<std::size_t>(layout.pp));
  for (std::uint32_t r = 0; r < static_cast<std::uint32_t>(layout.ranks()); ++r) {
    const GpuId gpu = layout.devices.empty() ? GpuId(r) : layout.devices[r];
    const std::int32_t stage = layout.coordinates(RankId(r)).pp;
    stages[static_cast<std::size_t>(stage)].push_back(topology.node_of(gpu));
  }
  const auto ep = static_cast<std::size_t>(layout.ep);
  std::size_t inner = ep;
  for (const std::vector<std::int32_t>& nodes : stages) {
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      if (i % ep != 0 && nodes[i] != nodes[i - 1]) inner = std::min(inner, i % ep);
    }
  }
  if (ep % inner != 0) return 0;
  for (const std::vector<std::int32_t>& nodes : stages) {
    for (std::size_t group = 0; group + ep <= nodes.size(); group += ep) {
      std::set<std::int32_t> seen;
      for (std::size_t i = group; i < group + ep; i += inner) {
        if (!seen.insert(nodes[i]).second) return 0;
        for (std::size_t j = i; j < i + inner; ++j) {
          if (nodes[j] != nodes[i]) return 0;
        }
      }
    }
  }
  return static_cast<std::int32_t>(inner);
}

Outcome<Layout> choose_exchange(const Transformer& model, const Cluster& cluster,
                                const Layout& layout, const Job& job, const StagePrices& prices) {
  Layout flat = layout, first_inside = layout;
  flat.ep_inner = 0;
  if (layout.ep_comm == ExpertComm::Flat) return layout;
  const bool asked = layout.ep_comm == ExpertComm::Hierarchical;
  const std::int32_t inner = layout.ep > 1 && layout.ranks() <= cluster.gpus()
                                 ? experts_ranks_in_node(layout, *prices.topology)
                                 : 0;
  if (inner < 2 || inner == layout.ep) {
    if (!asked) return flat;
    return Infeasible{
        .reason =
            "ep_comm hierarchical needs as many ranks of an expert group, two or more, on "
            "each of several nodes",
        .fix = "set layout.ep_comm to flat or auto"};
  }
  first_inside.ep_inner = inner;
  if (asked) return first_inside;
  if (prices.costs == nullptr) return flat;
  double seconds[2] = {0, 0};
  const Layout* const ways[2] = {&flat, &first_inside};
  for (std::size_t way = 0; way < 2; ++way) {
    auto lowered = lower(model, cluster, *ways[way], job);
    if (std::holds_alternative<Infeasible>(lowered)) return flat;  // said by whoever lowers it
    seconds[way] = layer_seconds(std::get<Lowered>(lowered), prices);
  }
  return seconds[1] < seconds[0] ? first_inside : flat;
}

}  // namespace gputwin
