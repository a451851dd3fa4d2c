#include "strategies/lowering/wiring.h"

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
  const bool ring = layout.vpp > 1;
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

// Experts span the dp x cp x tp ranks of a stage, consecutive ones in rank order.
void wire_experts(const Layout& layout, Program& program, StageWiring& w) {
  if (layout.ep > 1) {
    w.ep = add_slot(program, "ep", Domain::Ep);
    w.ep_stream = add_stream(program, "ep", StreamKind::Communication);
  }
  if (expert_replicas(layout) > 1) w.expert_dp = add_slot(program, "expert_dp", Domain::Dp);
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

}  // namespace

std::int32_t expert_replicas(const Layout& layout) {
  return layout.tp * layout.cp * layout.dp / layout.ep;
}

StageWiring wire_stage(const Transformer& model, const Layout& layout, std::int32_t stage,
                       Program& program) {
  StageWiring w;
  const std::int32_t replicas = layout.dp * layout.cp;
  const bool tied = model.tied_embeddings;
  // Ranks of an expert group hold different parameters.
  const std::int32_t norm_ranks =
      layout.ep > 1 ? layout.ranks() : layout.tp * layout.pp * layout.shards();
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
                          : layout.pp > 1                  ? Domain::Pp
                                                           : Domain::Tp;
    w.model = add_slot(program, "grad_norm", domain);
  }
  if (tied && layout.pp > 1 && (stage == 0 || stage == layout.pp - 1)) {
    w.embedding = add_slot(program, "embedding", Domain::Pp);
  }
  wire_pipeline(layout, stage, program, w);
  wire_context(layout, program, w);
  if (model.has_experts()) wire_experts(layout, program, w);
  return w;
}

void add_ranks(PlanBuilder& builder, const Layout& layout, const std::vector<StageWiring>& wiring) {
  Groups tp(builder, "tp"), dp(builder, "dp"), shard(builder, "dp_shard"),
      replica(builder, "dp_replica"), model(builder, "grad_norm"), embedding(builder, "embedding"),
      cp(builder, "cp"), ep(builder, "ep"), expert_dp(builder, "expert_dp");
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
      const bool all = layout.ep > 1;
      const std::array<std::int32_t, 4> key{sharded ? copy : c.dp, sharded ? 0 : c.cp, 0, 0};
      rank.slots.push_back(model.join(all ? std::array<std::int32_t, 4>{} : key, id));
    }
    if (w.embedding.valid()) rank.slots.push_back(embedding.join({c.tp, c.cp, c.dp, 0}, id));
    if (w.next.valid()) rank.slots.push_back(at_stage(c.pp + 1));
    if (w.previous.valid()) rank.slots.push_back(at_stage(c.pp - 1));
    if (w.cp.valid()) rank.slots.push_back(cp.join({c.tp, c.dp, c.pp, 0}, id));
    if (w.cp_next.valid()) rank.slots.push_back(at_part(c.cp + 1));
    if (w.cp_previous.valid()) rank.slots.push_back(at_part(c.cp - 1));
    const std::int32_t index = of_stage[static_cast<std::size_t>(c.pp)]++;
    if (w.ep.valid()) rank.slots.push_back(ep.join({c.pp, index / layout.ep, 0, 0}, id));
    if (w.expert_dp.valid()) {
      rank.slots.push_back(expert_dp.join({c.pp, index % layout.ep, 0, 0}, id));
    }
    builder.rank(std::move(rank));
  }
}

}  // namespace gputwin
