#include "sim/engine/fold.h"

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/engine/jitter.h"
#include "sim/engine/reference_executor.h"

namespace gputwin {
namespace {

// A colour is a 64-bit hash of all that has been seen of a thing so far. Of the 10^5 things of a
// large job two different ones collide with a probability below 10^-9.
using Colour = std::uint64_t;

constexpr Colour mix(Colour h, std::integral auto x) {
  return splitmix64(std::rotl(h, 5) + static_cast<std::uint64_t>(x));
}
Colour mix(Colour h, double x) { return mix(h, std::bit_cast<std::uint64_t>(x)); }

/// Number of different colours: an open hash table, since sorting took half of the time of a fold.
std::size_t distinct(const std::vector<Colour>& colours) {
  const std::size_t mask = std::bit_ceil(2 * colours.size() + 1) - 1;
  std::vector<Colour> table(mask + 1, 0);
  std::size_t found = 0;
  for (const Colour colour : colours) {
    const Colour key = colour | 1;  // 0 marks an empty place
    std::size_t at = (key >> 1) & mask;
    while (table[at] != 0 && table[at] != key) at = (at + 1) & mask;
    found += table[at] == 0;
    table[at] = key;
  }
  return found;
}

/// A communication of a program, apart from the rank: the same for all ranks of the program.
struct Use {
  std::uint32_t slot;
  OpKind op;
  Bytes bytes;
  bool operator==(const Use&) const = default;
};

struct ProgramUses {
  std::vector<Use> collectives, sends;
  std::vector<CallId> copies, loaded;  // copies; kernels with a load table
  std::vector<std::uint32_t> slots;    // used, ascending
};

/// Schedules of all uses of one communicator, edges between the same two members taken together.
struct Shape {
  struct Edge {
    std::uint32_t from, to;
    Colour tag;  // operations and bytes
  };
  Colour colour = 0;
  std::vector<Edge> edges;
};

/// Ranks, owners of flows (communicators, then pairs, then copying ranks) and links as one
/// structure, whose colours are refined until things of one colour see the same colours everywhere.
class Refinement {
 public:
  Refinement(const Plan& plan, const Topology& topology, const CostModel& costs);
  Folding fold();

 private:
  void read_program(std::size_t p);
  void colour_ranks();
  void add_communicators();
  void add_pairs();
  void add_copies();
  void add_flow(std::uint32_t owner, Colour tag, const Route& route);
  Colour placement(const std::vector<GpuId>& gpus);
  const Shape& shape(const std::vector<Use>& uses, const std::vector<GpuId>& gpus);
  void refine();
  void refine_once();
  Colour flow_colour(std::size_t f) const;
  bool repair();
  bool repair_rank(std::uint32_t r);
  bool repair_links();
  void split(Colour ranks, const std::string& why);
  Folding result() const;

  const Plan& plan_;
  const Topology& topology_;
  const CostModel& costs_;
  std::vector<ProgramUses> uses_;  // by program
  std::vector<Colour> rank_, owner_, link_;
  std::vector<std::vector<std::uint32_t>> owner_ranks_;   // members; sender and receiver; copier
  std::vector<std::vector<std::uint32_t>> member_slots_;  // by communicator: slot of each member
  std::vector<std::vector<std::uint32_t>> rank_owners_;   // pairs and copies of a rank
  std::vector<std::uint32_t> first_flow_;                 // by owner, and one more
  std::vector<Colour> flow_tag_;
  std::vector<std::uint32_t> flow_owner_, first_link_, flow_links_;  // first_link_: and one more
  std::vector<char> link_used_;
  std::unordered_map<Colour, Shape> shapes_;
  std::vector<std::int32_t> node_row_;                          // row of cluster.groups, by node
  std::vector<std::pair<std::uint32_t, std::uint32_t>> label_;  // scratch: stamp and label
  std::uint32_t stamp_ = 0;
  std::string because_;    // the first reason to take a class apart
  bool hopeless_ = false;  // a class of one rank was to be taken apart
};

Refinement::Refinement(const Plan& plan, const Topology& topology, const CostModel& costs)
    : plan_(plan), topology_(topology), costs_(costs) {
  const Cluster& cluster = topology.cluster();
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    node_row_.insert(node_row_.end(), static_cast<std::size_t>(cluster.groups[g].count),
                     static_cast<std::int32_t>(g));
  }
  label_.resize(static_cast<std::size_t>(topology.gpus()) + 1);
  for (std::size_t p = 0; p < plan.programs.size(); ++p) read_program(p);
  for (const Link& link : topology.links()) {
    link_.push_back(mix(static_cast<Colour>(link.kind), link.capacity.value));
  }
  link_used_.assign(link_.size(), 0);
  rank_owners_.resize(plan.ranks.size());
  first_link_.push_back(0);
  colour_ranks();
  add_communicators();
  add_pairs();
  add_copies();
  first_flow_.push_back(static_cast<std::uint32_t>(flow_tag_.size()));
}

void Refinement::read_program(std::size_t p) {
  const Program& program = plan_.programs[p];
  std::vector<char> seen(plan_.calls.size());
  ProgramUses uses;
  const auto add = [](std::vector<Use>& to, Use use) {
    if (std::find(to.begin(), to.end(), use) == to.end()) to.push_back(use);
  };
  for (const auto* part : {&program.prologue, &program.body}) {
    for (const Instruction& i : *part) {
      if (!is_task(i.kind) || std::exchange(seen[i.call], 1)) continue;
      const Call& call = plan_.call(i);
      const Use use{call.op.slot.value, call.op.kind, transfer_bytes(call)};
      if (i.kind == Kind::Collective) add(uses.collectives, use);
      if (i.kind == Kind::Send) add(uses.sends, {use.slot, OpKind::SendTo, use.bytes});
      if (i.kind == Kind::Copy) uses.copies.push_back(i.call_id());
      if (i.kind == Kind::Kernel && call.op.load != 0) uses.loaded.push_back(i.call_id());
      const bool talks = i.kind == Kind::Collective || i.kind == Kind::Send || i.kind == Kind::Recv;
      if (talks) uses.slots.push_back(use.slot);
    }
  }
  std::sort(uses.slots.begin(), uses.slots.end());
  uses.slots.erase(std::unique(uses.slots.begin(), uses.slots.end()), uses.slots.end());
  uses_.push_back(std::move(uses));
}

void Refinement::colour_ranks() {
  for (std::uint32_t r = 0; r < plan_.ranks.size(); ++r) {
    const Rank& rank = plan_.ranks[r];
    Colour colour = mix(rank.program.value, topology_.device_kind(rank.gpu).value);
    colour = mix(colour, rank.slowdown);
    for (const CallId call : uses_[rank.program.value].loaded) {
      const Op& op = plan_.calls[call.value].op;
      if (!op.slot.valid()) continue;
      const auto member = plan_.member_index(plan_.communicator(RankId(r), op.slot), RankId(r));
      colour = mix(colour, plan_.loads[op.load - 1].factor.at(static_cast<std::size_t>(member)));
    }
    rank_.push_back(colour);
  }
}

// ---- flows
// ---------------------------------------------------------------------------------------

/// How the GPUs of a group lie to each other: two groups that differ in the names of their nodes
/// and switches alone have the same schedules.
Colour Refinement::placement(const std::vector<GpuId>& gpus) {
  const auto& levels = topology_.cluster().fabric.levels;
  std::vector<Colour> colours(gpus.size(), gpus.size());
  const auto relabel = [&](auto place_of) {
    ++stamp_;
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      auto& [stamp, label] = label_[static_cast<std::size_t>(place_of(gpus[i]))];
      if (stamp != stamp_) label = next++;
      stamp = stamp_;
      colours[i] = mix(colours[i], label);
    }
  };
  relabel([&](GpuId gpu) { return topology_.node_of(gpu); });
  for (const FabricLevel& level : levels) {
    relabel([&](GpuId gpu) { return topology_.node_of(gpu) / std::max(1, level.nodes_per_group); });
  }
  relabel([&](GpuId gpu) {
    const std::int32_t domain = topology_.node_type(gpu).intra.domain_gpus;
    return domain > 0 ? static_cast<std::int32_t>(gpu.value) / domain : 0;
  });
  Colour result = gpus.size();
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto row = node_row_[static_cast<std::size_t>(topology_.node_of(gpus[i]))];
    result = mix(result, colours[i]);
    result = mix(result, static_cast<std::uint64_t>(row));
    result = mix(result, static_cast<std::uint64_t>(topology_.index_in_node(gpus[i])));
  }
  return result;
}

const Shape& Refinement::shape(const std::vector<Use>& uses, const std::vector<GpuId>& gpus) {
  Colour key = placement(gpus);
  for (const Use& use : uses) {
    key = mix(mix(key, static_cast<std::uint64_t>(use.op)),
              static_cast<std::uint64_t>(use.bytes.value));
  }
  const auto [it, is_new] = shapes_.try_emplace(key);
  Shape& shape = it->second;
  if (!is_new) return shape;
  std::unordered_map<std::uint64_t, std::size_t> edge_of;  // looked up, never iterated
  for (const Use& use : uses) {
    const CollectiveSchedule schedule = costs_.collective(use.op, use.bytes, gpus);
    shape.colour = mix(mix(shape.colour, schedule.latency.value), schedule.rate_cap.value);
    shape.colour = mix(shape.colour, static_cast<std::uint64_t>(use.op));
    shape.colour = mix(shape.colour, static_cast<std::uint64_t>(use.bytes.value));
    const Colour tag = shape.colour;
    for (const FlowEdge& edge : schedule.edges) {
      if (edge.bytes.value == 0) continue;
      const auto [at, unseen] =
          edge_of.emplace((std::uint64_t{edge.from} << 32) | edge.to, shape.edges.size());
      if (unseen) shape.edges.push_back({edge.from, edge.to, 0});
      Colour& of_edge = shape.edges[at->second].tag;
      of_edge = mix(mix(of_edge, tag), static_cast<std::uint64_t>(edge.bytes.value));
    }
  }
  return shape;
}

void Refinement::add_flow(std::uint32_t owner, Colour tag, const Route& route) {
  flow_owner_.push_back(owner);
  flow_tag_.push_back(tag);
  for (const LinkId link : route) {
    flow_links_.push_back(link.value);
    link_used_[link.value] = 1;
  }
  first_link_.push_back(static_cast<std::uint32_t>(flow_links_.size()));
}

void Refinement::add_communicators() {
  member_slots_.resize(plan_.communicators.size());
  std::vector<std::uint32_t> at(plan_.ranks.size());  // scratch: member index of a rank
  for (std::uint32_t c = 0; c < plan_.communicators.size(); ++c) {
    const std::vector<RankId>& members = plan_.communicators[c].members;
    std::vector<GpuId> gpus;
    std::vector<std::uint32_t> ranks;
    for (const RankId member : members) {
      gpus.push_back(plan_.ranks[member.value].gpu);
      ranks.push_back(member.value);
    }
    // The first member's uses are everybody's: verify() demands one sequence of all members.
    std::vector<Use> uses;
    for (std::size_t m = 0; m < members.size(); ++m) {
      const Rank& rank = plan_.ranks[members[m].value];
      std::uint32_t slot = SlotId::kNone;
      for (const Use& use : uses_[rank.program.value].collectives) {
        if (rank.slots[use.slot] != c) continue;
        slot = use.slot;
        if (m == 0) uses.push_back(use);
      }
      member_slots_[c].push_back(slot);
    }
    first_flow_.push_back(static_cast<std::uint32_t>(flow_tag_.size()));
    const Shape& known = shape(uses, gpus);
    for (const Shape::Edge& edge : known.edges) {
      add_flow(c, edge.tag, topology_.route(gpus[edge.from], gpus[edge.to]));
    }
    owner_.push_back(mix(known.colour, members.size()));
    owner_ranks_.push_back(std::move(ranks));
  }
}

void Refinement::add_pairs() {
  for (std::uint32_t r = 0; r < plan_.ranks.size(); ++r) {
    const Rank& rank = plan_.ranks[r];
    std::vector<std::pair<std::uint32_t, std::vector<Use>>> by_peer;
    for (const Use& use : uses_[rank.program.value].sends) {
      const std::uint32_t peer = rank.slots[use.slot];
      const auto same = [peer](const auto& p) { return p.first == peer; };
      auto it = std::find_if(by_peer.begin(), by_peer.end(), same);
      if (it == by_peer.end()) it = by_peer.insert(by_peer.end(), {peer, {}});
      it->second.push_back(use);
    }
    for (const auto& [peer, uses] : by_peer) {
      const auto owner = static_cast<std::uint32_t>(owner_.size());
      const std::vector<GpuId> gpus{rank.gpu, plan_.ranks[peer].gpu};
      first_flow_.push_back(static_cast<std::uint32_t>(flow_tag_.size()));
      const Shape& known = shape(uses, gpus);
      for (const Shape::Edge& edge : known.edges) {
        add_flow(owner, edge.tag, topology_.route(gpus[edge.from], gpus[edge.to]));
      }
      owner_.push_back(known.colour);
      owner_ranks_.push_back({r, peer});
      rank_owners_[r].push_back(owner);
      rank_owners_[peer].push_back(owner);
    }
  }
}

void Refinement::add_copies() {
  for (std::uint32_t r = 0; r < plan_.ranks.size(); ++r) {
    const Rank& rank = plan_.ranks[r];
    const std::vector<CallId>& copies = uses_[rank.program.value].copies;
    if (copies.empty()) continue;
    const auto owner = static_cast<std::uint32_t>(owner_.size());
    first_flow_.push_back(static_cast<std::uint32_t>(flow_tag_.size()));
    for (const CallId id : copies) {
      const Call& call = plan_.calls[id.value];
      const Bytes bytes = transfer_bytes(call);
      const Cost cost = costs_.copy(call.op.copy, bytes, call.op.pinned, rank.gpu);
      Colour tag = mix(mix(id.value, cost.time.value), cost.term(Term::StartUp).value);
      tag = mix(tag, static_cast<std::uint64_t>(bytes.value));
      add_flow(owner, tag, topology_.copy_route(rank.gpu, call.op.copy));
    }
    owner_.push_back(copies.size());
    owner_ranks_.push_back({r});
    rank_owners_[r].push_back(owner);
  }
}

// ---- refinement
// ----------------------------------------------------------------------------------

Colour Refinement::flow_colour(std::size_t f) const {
  Colour colour = mix(owner_[flow_owner_[f]], flow_tag_[f]);
  for (std::uint32_t i = first_link_[f]; i < first_link_[f + 1]; ++i) {
    colour = mix(colour, link_[flow_links_[i]]);
  }
  return colour;
}

/// Everything takes on the colours of what it touches: links of their flows (as a multiset), owners
/// of their ranks in order and of their flows, ranks of what their slots mean and of their own
/// flows.
void Refinement::refine_once() {
  std::vector<Colour> flows(flow_tag_.size());
  std::vector<Colour> on_link(link_.size());
  for (std::size_t f = 0; f < flows.size(); ++f) {
    flows[f] = flow_colour(f);
    for (std::uint32_t i = first_link_[f]; i < first_link_[f + 1]; ++i) {
      on_link[flow_links_[i]] += splitmix64(flows[f]);
    }
  }
  std::vector<Colour> owners = owner_;
  for (std::size_t o = 0; o < owners.size(); ++o) {
    for (std::size_t m = 0; m < owner_ranks_[o].size(); ++m) {
      owners[o] = mix(owners[o], rank_[owner_ranks_[o][m]]);
      if (o < member_slots_.size()) owners[o] = mix(owners[o], member_slots_[o][m]);
    }
    for (std::uint32_t f = first_flow_[o]; f < first_flow_[o + 1]; ++f) {
      owners[o] = mix(owners[o], flows[f]);
    }
  }
  for (std::size_t l = 0; l < link_.size(); ++l) {
    if (link_used_[l]) link_[l] = mix(link_[l], on_link[l]);
  }
  std::vector<Colour> ranks = rank_;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const Rank& rank = plan_.ranks[r];
    const auto& slots = plan_.programs[rank.program.value].slots;
    for (const std::uint32_t s : uses_[rank.program.value].slots) {
      ranks[r] = mix(ranks[r], slots[s].peer ? rank_[rank.slots[s]] : owner_[rank.slots[s]]);
    }
    Colour own = 0;
    for (const std::uint32_t o : rank_owners_[r]) own += splitmix64(owner_[o]);
    ranks[r] = mix(ranks[r], own);
  }
  rank_ = std::move(ranks);
  owner_ = std::move(owners);
}

void Refinement::refine() {
  std::size_t before = 0;
  for (std::size_t r = 0; r <= rank_.size() + owner_.size() + link_.size(); ++r) {
    const std::size_t now = distinct(rank_) + distinct(owner_) + distinct(link_);
    if (now == before) return;
    before = now;
    refine_once();
  }
}

// ---- what one representative cannot stand for
// --------------------------------------------------------

void Refinement::split(Colour ranks, const std::string& why) {
  if (because_.empty()) because_ = why;
  hopeless_ = std::count(rank_.begin(), rank_.end(), ranks) < 2;
  for (std::size_t r = 0; r < rank_.size(); ++r) {
    if (rank_[r] == ranks) rank_[r] = mix(ranks, r + 1);
  }
}

/// In the quotient a rank meets one rank per colour of its peers and one communicator per colour of
/// its communicators; where it would have to meet several, or itself, its class is taken apart.
bool Refinement::repair_rank(std::uint32_t r) {
  const Rank& rank = plan_.ranks[r];
  const auto& slots = plan_.programs[rank.program.value].slots;
  const auto& used = uses_[rank.program.value].slots;
  const std::string name = "rank " + std::to_string(r);
  for (std::size_t i = 0; i < used.size(); ++i) {
    const std::uint32_t a = rank.slots[used[i]];
    const bool peer = slots[used[i]].peer;
    if (peer && a != r && rank_[a] == rank_[r]) {
      split(rank_[r], name + " exchanges with a rank it would be folded with");
      return true;
    }
    for (std::size_t j = 0; j < i; ++j) {
      const std::uint32_t b = rank.slots[used[j]];
      if (slots[used[j]].peer != peer || a == b) continue;
      if (peer ? rank_[a] != rank_[b] : owner_[a] != owner_[b]) continue;
      split(peer ? rank_[a] : rank_[r],
            name + (peer ? " exchanges with two ranks that would be folded into one"
                         : " is in two communicators that would be folded into one"));
      return true;
    }
  }
  return false;
}

/// One flow on a class of links stands for all flows of its colour on a link of the class; the
/// link's capacity is divided by their number. That needs the same number for all colours, and per
/// owner and path one colour.
bool Refinement::repair_links() {
  std::unordered_map<Colour, std::uint32_t> first_of_class;  // links: looked up, never iterated
  std::vector<std::uint32_t> representative(link_.size(), LinkId::kNone);
  for (std::uint32_t l = 0; l < link_.size(); ++l) {
    if (link_used_[l]) representative[l] = first_of_class.emplace(link_[l], l).first->second;
  }
  struct OnLink {
    std::uint32_t link;
    Colour path, flow;  // path: owner and links, as the stream core merges flows
    std::uint32_t rank;
  };
  std::vector<OnLink> entries;
  for (std::size_t f = 0; f < flow_tag_.size(); ++f) {
    Colour path = owner_[flow_owner_[f]];
    const Colour flow = flow_colour(f);
    const bool copy = owner_ranks_[flow_owner_[f]].size() == 1;
    if (copy) path = mix(path, flow_tag_[f]);  // copies are never merged
    for (std::uint32_t i = first_link_[f]; i < first_link_[f + 1]; ++i) {
      path = mix(path, link_[flow_links_[i]]);
    }
    for (std::uint32_t i = first_link_[f]; i < first_link_[f + 1]; ++i) {
      const std::uint32_t l = flow_links_[i];
      if (representative[l] != l) continue;
      entries.push_back({l, path, flow, owner_ranks_[flow_owner_[f]].front()});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const OnLink& a, const OnLink& b) {
    return std::tie(a.link, a.path, a.flow, a.rank) < std::tie(b.link, b.path, b.flow, b.rank);
  });
  std::uint32_t link = LinkId::kNone, flows = 0;
  for (std::size_t i = 0; i < entries.size();) {
    std::size_t end = i;
    while (end < entries.size() && entries[end].link == entries[i].link &&
           entries[end].path == entries[i].path) {
      ++end;
    }
    const auto count = static_cast<std::uint32_t>(end - i);
    const bool same_flows = entries[i].flow == entries[end - 1].flow;
    const bool same_count = entries[i].link != link || count == flows;
    if (!same_flows || !same_count) {
      const std::size_t culprit = count > 1 ? i : i - 1;
      const Colour ranks = rank_[entries[culprit].rank];
      split(ranks, topology_.link_name(LinkId(entries[i].link)) +
                       " carries different numbers of flows that would be folded");
      return true;
    }
    link = entries[i].link;
    flows = count;
    i = end;
  }
  return false;
}

bool Refinement::repair() {
  for (std::uint32_t r = 0; r < rank_.size(); ++r) {
    if (repair_rank(r)) return true;
  }
  return repair_links();
}

// ---- result
// --------------------------------------------------------------------------------------

/// By thing: the first of its colour.
template <class IdType>
std::vector<IdType> representatives(const std::vector<Colour>& colours, std::size_t count) {
  std::unordered_map<Colour, std::uint32_t> first;  // looked up, never iterated
  std::vector<IdType> result;
  for (std::uint32_t i = 0; i < count; ++i) {
    result.emplace_back(first.emplace(colours[i], i).first->second);
  }
  return result;
}

Folding Refinement::result() const {
  Folding result;
  result.folded = true;
  result.representative = representatives<RankId>(rank_, rank_.size());
  for (std::uint32_t r = 0; r < rank_.size(); ++r) {
    if (result.representative[r] == RankId(r)) result.simulated.emplace_back(r);
  }
  result.communicator = representatives<CommunicatorId>(owner_, plan_.communicators.size());
  for (const Communicator& communicator : plan_.communicators) {
    std::vector<RankId> met;
    for (const RankId m : communicator.members) met.push_back(result.representative[m.value]);
    std::sort(met.begin(), met.end());
    met.erase(std::unique(met.begin(), met.end()), met.end());
    result.participants.push_back(std::move(met));
  }
  result.link = representatives<LinkId>(link_, link_.size());
  for (std::uint32_t l = 0; l < link_.size(); ++l) {
    if (!link_used_[l]) result.link[l] = LinkId(l);
  }
  // Flows of the first colour met on each link; repair_links has made the others as many.
  std::vector<Colour> colour(link_.size());
  result.link_flows.assign(link_.size(), 0.0);
  for (std::size_t f = 0; f < flow_tag_.size(); ++f) {
    const Colour of_flow = flow_colour(f);
    for (std::uint32_t i = first_link_[f]; i < first_link_[f + 1]; ++i) {
      const std::uint32_t l = flow_links_[i];
      if (result.link_flows[l] == 0) colour[l] = of_flow;
      if (colour[l] == of_flow) result.link_flows[l] += 1;
    }
  }
  for (double& flows : result.link_flows) flows = std::max(flows, 1.0);
  return result;
}

Folding Refinement::fold() {
  do {
    refine();
    if (!hopeless_ && distinct(rank_) < rank_.size()) continue;
    Folding result = identity_folding(plan_, topology_);
    result.unfolded_because = because_.empty() ? "no two ranks are alike" : because_;
    return result;
  } while (repair());
  return result();
}

}  // namespace

Folding identity_folding(const Plan& plan, const Topology& topology) {
  Folding result;
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) result.representative.emplace_back(r);
  result.simulated = result.representative;
  for (std::uint32_t c = 0; c < plan.communicators.size(); ++c) {
    result.communicator.emplace_back(c);
    result.participants.push_back(plan.communicators[c].members);
    std::sort(result.participants.back().begin(), result.participants.back().end());
  }
  for (std::uint32_t l = 0; l < topology.links().size(); ++l) result.link.emplace_back(l);
  result.link_flows.assign(topology.links().size(), 1.0);
  return result;
}

Folding fold(const Plan& plan, const Topology& topology, const CostModel& costs) {
  if (plan.jitter.sigma > 0) {
    Folding result = identity_folding(plan, topology);
    result.unfolded_because = "jitter makes every rank's kernels last differently";
    return result;
  }
  return Refinement(plan, topology, costs).fold();
}

}  // namespace gputwin
