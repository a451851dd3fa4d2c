#include "strategies/lowering/wiring.h"

#include <algorithm>
#include <map>

namespace gputwin {
namespace {

SlotId add_slot(Program& program, const char* name, Domain domain, bool peer = false) {
  program.slots.push_back({.name = name, .domain = domain, .peer = peer});
  return SlotId(static_cast<std::uint32_t>(program.slots.size() - 1));
}

std::uint8_t add_stream(Program& program, const char* name, StreamKind kind) {
  program.streams.push_back({.name = name, .kind = kind});
  return static_cast<std::uint8_t>(program.streams.size() - 1);
}

void wire_pipeline(const Layout& layout, std::int32_t stage, Program& program, StageWiring& w) {
  if (layout.pp == 1) return;
  const bool ring = layout.vpp > 1 && placement(layout.schedule) == Placement::RoundRobin;
  if (ring || stage < layout.pp - 1) w.next = add_slot(program, "next", Domain::Pp, true);
  if (ring || stage > 0) w.previous = add_slot(program, "previous", Domain::Pp, true);
  const auto stream = [&](const char* name) {
    return add_stream(program, name, StreamKind::Communication);
  };
  if (ring && layout.pp == 2) {
    // Both neighbours are the same rank: activations and gradients share one ordered channel each
    // way.
    w.send_stream = w.gradient_send_stream = stream("pp_send");
    w.receive_stream = w.gradient_receive_stream = stream("pp_receive");
    return;
  }
  if (w.next.valid()) {
    w.send_stream = stream("pp_send");
    w.gradient_receive_stream = stream("pp_receive_grad");
  }
  if (w.previous.valid()) {
    w.receive_stream = stream("pp_receive");
    w.gradient_send_stream = stream("pp_send_grad");
  }
}

void wire_context(const Layout& layout, Program& program, StageWiring& w) {
  if (layout.cp == 1) return;
  w.cp = add_slot(program, "cp", Domain::Cp);
  const bool ring = layout.cp_comm == ContextComm::Ring;
  w.cp_stream = add_stream(program, ring ? "cp_send" : "cp", StreamKind::Communication);
  if (!ring) return;
  w.cp_next = add_slot(program, "cp_next", Domain::Cp, true);
  w.cp_previous = add_slot(program, "cp_previous", Domain::Cp, true);
  w.cp_receive_stream = add_stream(program, "cp_receive", StreamKind::Communication);
}

void wire_ring(const Layout& layout, Program& program, StageWiring& w) {
  if (!is_ring(layout.tp_overlap) || layout.tp == 1) return;
  w.tp_next = add_slot(program, "tp_next", Domain::Tp, true);
  w.tp_previous = add_slot(program, "tp_previous", Domain::Tp, true);
  const auto stream = [&](const char* name) {
    return add_stream(program, name, StreamKind::Communication);
  };
  w.ring_send_stream = stream("tp_send");
  w.ring_receive_stream = stream("tp_receive");
  if (layout.tp_overlap != TpOverlap::RingBothWays) return;
  w.ring_send_back_stream = stream("tp_send_back");
  w.ring_receive_back_stream = stream("tp_receive_back");
}

// Experts span the dp x cp x tp ranks of a stage, consecutive ones in rank order.
void wire_experts(const Layout& layout, Program& program, StageWiring& w) {
  if (layout.ep > 1) {
    w.ep = add_slot(program, "ep", Domain::Ep);
    if (layout.ep_inner > 0) {
      w.ep_inner = add_slot(program, "ep_inner", Domain::Ep);
      w.ep_outer = add_slot(program, "ep_outer", Domain::Ep);
    }
    w.ep_stream = add_stream(program, "ep", StreamKind::Communication);
  }
  if (expert_replicas(layout) > 1) w.expert_dp = add_slot(program, "expert_dp", Domain::Dp);
}

std::uint32_t ring_neighbour(const Layout& layout, Coordinates at, std::int32_t step) {
  at.tp = (at.tp + step + layout.tp) % layout.tp;
  return layout.rank(at).value;
}

// Ranks that agree on `key` form one communicator, in rank order.
class Groups {
 public:
  Groups(PlanBuilder& builder, const char* name) : builder_(builder), name_(name) {}

  struct Place {
    std::uint32_t communicator = 0;
    std::int32_t member = 0;
  };
  Place place(std::array<std::int32_t, 4> key, RankId rank) {
    const auto [found, added] = by_key_.try_emplace(key, CommunicatorId());
    if (added) {
      found->second = builder_.communicator(
          {.name = name_ + std::to_string(by_key_.size() - 1), .members = {}});
    }
    std::vector<RankId>& members = builder_.plan().communicators[found->second.value].members;
    members.push_back(rank);
    return {found->second.value, static_cast<std::int32_t>(members.size()) - 1};
  }
  std::uint32_t join(std::array<std::int32_t, 4> key, RankId rank) {
    return place(key, rank).communicator;
  }

 private:
  PlanBuilder& builder_;
  std::string name_;
  std::map<std::array<std::int32_t, 4>, CommunicatorId> by_key_;
};

// Of ranks that share experts, by their index in the stage, and of those that hold the same ones.
class ExpertGroups {
 public:
  ExpertGroups(PlanBuilder& builder, const Layout& layout)
      : layout_(layout),
        all_(builder, "ep"),
        inner_(builder, "ep_inner"),
        outer_(builder, "ep_outer"),
        replicas_(builder, "expert_dp") {}

  // In the order in which wire_experts adds the slots.
  void join(const StageWiring& w, std::int32_t stage, std::int32_t index, Rank& rank, RankId id) {
    const std::int32_t ep = layout_.ep, inner = layout_.ep_inner;
    const auto add = [&](Groups& groups, std::int32_t group, std::int32_t place) {
      rank.slots.push_back(groups.join({stage, group, place, 0}, id));
    };
    if (w.ep.valid()) add(all_, index / ep, 0);
    if (w.ep_inner.valid()) {
      add(inner_, index / inner, 0);
      add(outer_, index / ep, index % inner);
    }
    if (w.expert_dp.valid()) add(replicas_, index % ep, 0);
  }

 private:
  const Layout& layout_;
  Groups all_, inner_, outer_, replicas_;
};

}  // namespace

std::int32_t expert_replicas(const Layout& layout) {
  return layout.tp * layout.cp * layout.dp / layout.ep;
}

void connect(const Layout& layout, const StageWiring& w, std::int32_t stage, Chunk& chunk) {
  const std::int32_t local = layout.local_of(chunk.index, layout.chunk_at(stage, 0) != chunk.index);
  const bool up = placement(layout.schedule) != Placement::RoundRobin && local % 2 == 1;
  const Channel in{up ? w.next : w.previous, up ? w.gradient_receive_stream : w.receive_stream};
  const Channel out{up ? w.previous : w.next, up ? w.gradient_send_stream : w.send_stream};
  const Channel back_in{out.peer, up ? w.receive_stream : w.gradient_receive_stream};
  const Channel back_out{in.peer, up ? w.send_stream : w.gradient_send_stream};
  const bool turns = placement(layout.schedule) == Placement::Snake;
  const bool first = chunk.index == 0, last = chunk.index == layout.chunks() - 1;
  if (!first && !(turns && layout.stage_of(chunk.index - 1) == stage)) {
    chunk.from_previous = in;
    chunk.to_previous = back_out;
  }
  if (!last && !(turns && layout.stage_of(chunk.index + 1) == stage)) {
    chunk.to_next = out;
    chunk.from_next = back_in;
  }
}

namespace {

// Stages whose gradient norm waits for no other stage: post-validation passes the sums on, and
// PipeDream's stages, which never meet, clip by a norm of their own.
bool steps_alone(Schedule s) { return validates_later(s) || s == Schedule::PipedreamAsync; }

}  // namespace

StageWiring wire_stage(const Layout& layout, std::int32_t stage, bool tied, bool experts,
                       Program& program) {
  StageWiring w;
  const std::int32_t replicas = layout.dp * layout.cp;
  const bool alone = steps_alone(layout.schedule);
  const std::int32_t stages = alone ? 1 : layout.pp;
  // Ranks of an expert group hold different parameters.
  const std::int32_t norm_ranks = stages * layout.tp * (layout.ep > 1 ? replicas : layout.shards());
  w.compute_stream = add_stream(program, "compute", StreamKind::Compute);
  if (layout.tp > 1) w.tp_stream = add_stream(program, "tp", StreamKind::Communication);
  if (layout.ranks() > 1) w.dp_stream = add_stream(program, "dp", StreamKind::Communication);
  if (layout.tp > 1) w.tp = add_slot(program, "tp", Domain::Tp);
  if (replicas > 1) w.dp = w.shard = add_slot(program, "dp", Domain::Dp);
  if (layout.zero >= 1 && layout.shards() < replicas) {
    w.shard = add_slot(program, "dp_shard", Domain::Dp);
    w.replica = add_slot(program, "dp_replica", Domain::Dp);
  }
  if (norm_ranks > 1) {
    const Domain domain = layout.zero >= 1 && replicas > 1 ? Domain::Dp
                          : layout.pp > 1 && !alone        ? Domain::Pp
                                                           : Domain::Tp;
    w.model = add_slot(program, "grad_norm", domain);
  }
  if (tied && (stage == 0 || stage == layout.pp - 1)) {
    w.embedding = add_slot(program, "embedding", Domain::Pp);
  }
  if (placement(layout.schedule) == Placement::TwoWay) {
    w.copies = add_slot(program, "copies", Domain::Dp);
    if (stage == 0 || stage == layout.pp - 1) w.loss = add_slot(program, "loss", Domain::Pp);
  }
  wire_pipeline(layout, stage, program, w);
  wire_context(layout, program, w);
  if (experts) wire_experts(layout, program, w);
  wire_ring(layout, program, w);
  return w;
}

void add_ranks(PlanBuilder& builder, const Layout& layout, const std::vector<StageWiring>& wiring) {
  Groups tp(builder, "tp"), dp(builder, "dp"), shard(builder, "dp_shard"),
      replica(builder, "dp_replica"), model(builder, "grad_norm"), embedding(builder, "embedding"),
      cp(builder, "cp"), copies(builder, "copies"), loss(builder, "loss");
  ExpertGroups experts(builder, layout);
  std::vector<std::int32_t> of_stage(static_cast<std::size_t>(layout.pp), 0);
  for (std::uint32_t r = 0; r < static_cast<std::uint32_t>(layout.ranks()); ++r) {
    const RankId id(r);
    const Coordinates c = layout.coordinates(id);
    const StageWiring& w = wiring[static_cast<std::size_t>(c.pp)];
    const auto at_stage = [&](std::int32_t stage) {
      Coordinates other = c;
      other.pp = (stage + layout.pp) % layout.pp;
      return layout.rank(other).value;
    };
    const auto at_part = [&](std::int32_t part) {
      Coordinates other = c;
      other.cp = (part + layout.cp) % layout.cp;
      return layout.rank(other).value;
    };
    Rank rank{.program = ProgramId(static_cast<std::uint32_t>(c.pp)),
              .gpu = layout.devices.empty() ? GpuId(r) : layout.devices[r],
              .slots = {}};
    // The order of the slots is the one in which wire_stage adds them.
    const bool sharded = layout.zero >= 1;
    if (w.tp.valid()) rank.slots.push_back(tp.join({c.cp, c.dp, c.pp, 0}, id));
    std::int32_t member = 0;  // among the data-parallel ranks
    if (w.dp.valid()) {
      const Groups::Place place = dp.place({c.tp, c.pp, 0, 0}, id);
      rank.slots.push_back(place.communicator);
      member = place.member;
    }
    const std::int32_t shards = layout.shards();
    if (w.replica.valid()) {
      rank.slots.push_back(shard.join({c.tp, c.pp, member / shards, 0}, id));
      rank.slots.push_back(replica.join({c.tp, c.pp, member % shards, 0}, id));
    }
    if (w.model.valid()) {
      const std::int32_t copy = member / shards;
      const std::int32_t stage = steps_alone(layout.schedule) ? c.pp : 0;
      const bool all = layout.ep > 1;
      const std::int32_t of_dp = all ? 0 : sharded ? copy : c.dp;
      rank.slots.push_back(model.join({of_dp, all || sharded ? 0 : c.cp, stage, 0}, id));
    }
    if (w.embedding.valid()) rank.slots.push_back(embedding.join({c.tp, c.cp, c.dp, 0}, id));
    if (w.copies.valid()) {
      const std::int32_t pair = std::min(c.pp, layout.pp - 1 - c.pp);
      rank.slots.push_back(copies.join({c.tp, pair, 0, 0}, id));
    }
    if (w.loss.valid()) rank.slots.push_back(loss.join({c.tp, c.cp, c.dp, 0}, id));
    if (w.next.valid()) rank.slots.push_back(at_stage(c.pp + 1));
    if (w.previous.valid()) rank.slots.push_back(at_stage(c.pp - 1));
    if (w.cp.valid()) rank.slots.push_back(cp.join({c.tp, c.dp, c.pp, 0}, id));
    if (w.cp_next.valid()) rank.slots.push_back(at_part(c.cp + 1));
    if (w.cp_previous.valid()) rank.slots.push_back(at_part(c.cp - 1));
    const std::int32_t index = of_stage[static_cast<std::size_t>(c.pp)]++;
    experts.join(w, c.pp, index, rank, id);
    if (w.tp_next.valid()) {
      rank.slots.push_back(ring_neighbour(layout, c, 1));
      rank.slots.push_back(ring_neighbour(layout, c, -1));
    }
    builder.rank(std::move(rank));
  }
}

}  // namespace gputwin
