#include "strategies/lowering/layer_graph.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "strategies/lowering/graph_program.h"

namespace gputwin {
namespace {

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
std::string text(std::int64_t n) { return std::to_string(n); }
Infeasible no(std::string reason, std::string fix) {
  return {.reason = std::move(reason), .fix = std::move(fix)};
}

std::vector<Piece> pieces_of(std::int64_t own_first, std::int64_t own, std::int64_t theirs,
                             std::int32_t peers) {
  std::vector<Piece> pieces;
  for (std::int32_t p = 0; p < peers; ++p) {
    const std::int64_t begin = std::max(own_first, p * theirs);
    const std::int64_t end = std::min(own_first + own, (p + 1) * theirs);
    if (begin < end) pieces.push_back({p, begin - own_first, end - begin});
  }
  return pieces;
}

// Samples of a micro-batch of all replicas together; without a flush a replica takes whole ones.
std::int64_t samples_of(const Layout& layout) {
  return never_drains(layout.schedule) ? layout.micro_batch : layout.micro_batch * layout.dp;
}

// Replicas take micro-batches in turn. PipeDream's runtime (msr-fiddle/pipedream, runtime.py) sends
// so many forward on each replica of a stage before the first comes back: the ranks of this stage
// and of later ones but for one, divided by its replicas.
std::int32_t ahead_of(const std::vector<std::int32_t>& replicas, std::int32_t stage) {
  const std::int32_t ranks = std::accumulate(replicas.begin() + stage, replicas.end(), 0);
  return (ranks - 1) / replicas[at(stage)];
}

// Micro-batches that `stage` has sent on before the first goes backward.
std::int32_t begun_by(const std::vector<std::int32_t>& replicas, std::int32_t stage) {
  return ahead_of(replicas, stage) * replicas[at(stage)];
}

// Micro-batches of an iteration without a flush: a multiple of the first, at least the second, so
// that no replica begins one that it still holds of the iteration before.
std::pair<std::int64_t, std::int64_t> endless_rounds(const std::vector<std::int32_t>& replicas) {
  std::int64_t rounds = 1, least = 1;
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(replicas.size()); ++s) {
    const std::int32_t r = replicas[at(s)];
    rounds = std::lcm(rounds, std::int64_t{r});
    least = std::max<std::int64_t>(least, begun_by(replicas, s) + r);
    if (s == 0) continue;
    const std::int32_t arrived = (begun_by(replicas, s - 1) + r - 1) / r;  // on the first replica
    least = std::max<std::int64_t>(least, std::int64_t{arrived + 1} * r);
  }
  return {rounds, (least + rounds - 1) / rounds * rounds};
}

std::optional<Infeasible> endless_refusal(const Layout& layout,
                                          const std::vector<std::int32_t>& replicas,
                                          std::int64_t micro_batches) {
  if (layout.recompute == Recompute::AllButLast) {
    return no("no micro-batch is the last one where the pipeline never drains",
              "set layout.recompute to full or none");
  }
  const auto [rounds, least] = endless_rounds(replicas);
  if (micro_batches % rounds == 0 && micro_batches >= least) return std::nullopt;
  return no("replicas that take micro-batches in turn need a multiple of " + text(rounds) +
                " in an iteration, at least " + text(least) + ", not " + text(micro_batches),
            "set job.global_batch to " + text(least * layout.micro_batch));
}

std::optional<Infeasible> batch_refusal(const Layout& layout,
                                        const std::vector<std::int32_t>& replicas, const Job& job) {
  if (std::any_of(replicas.begin(), replicas.end(), [](auto r) { return r < 1; })) {
    return no("a stage without a replica", "change layout.stage_replicas");
  }
  const std::int64_t wide = samples_of(layout);
  if (wide < 1 || job.global_batch % wide != 0) {
    return no("micro_batch" + std::string(never_drains(layout.schedule) ? "" : " x dp") + " (" +
                  text(wide) + ") does not divide the global batch (" + text(job.global_batch) +
                  ")",
              "use a multiple of " + text(wide));
  }
  if (never_drains(layout.schedule)) {
    if (auto refused = endless_refusal(layout, replicas, job.global_batch / wide)) return refused;
  }
  for (const std::int32_t r : replicas) {
    if (never_drains(layout.schedule) || wide % r == 0) continue;
    return no(text(r) + " replicas do not divide a micro-batch of " + text(wide) + " samples",
              "change layout.micro_batch");
  }
  return std::nullopt;
}

std::optional<Infeasible> codec_refusal(const Layout& layout,
                                        const std::vector<std::int32_t>& replicas) {
  const Compression& c = layout.compression;
  if (c.search || c.on_layers() || c.on_messages()) {
    return no("of layer graphs the compress pass codes gradients alone, by a codec that is named",
              "leave all but dp_gradients out of the pass compress");
  }
  if (!c.on_gradients()) return std::nullopt;
  if (std::all_of(replicas.begin(), replicas.end(), [](auto r) { return r < 2; })) {
    return no("the compress pass does not take gradients that no other rank has a part of",
              "set layout.dp to 2 or more");
  }
  if (never_drains(layout.schedule)) {
    return no("not lowered yet: coded gradients without a flush", "set layout.schedule to 1f1b");
  }
  return std::nullopt;
}

std::optional<Infeasible> refusal(const LayerGraph& graph, const Cluster& cluster,
                                  const Layout& layout, const Job& job) {
  if (layout.tp > 1 || layout.cp > 1 || layout.ep > 1 || layout.vpp > 1 || layout.sp) {
    return no("layer graphs are cut into stages and replicas only",
              "set layout.tp, cp, ep and vpp to 1");
  }
  if (layout.zero > 0 || job.lora_rank > 0) {
    return no("layer graphs keep whole optimizer states and train all weights",
              "set layout.zero to 0");
  }
  switch (layout.schedule) {
    case Schedule::None:
    case Schedule::Gpipe:
    case Schedule::OneFOneB:
    case Schedule::PipedreamAsync:
    case Schedule::PipedreamStash: break;
    default:
      return no(
          "layer graphs run the schedules gpipe, 1f1b, and, without a flush, pipedream-async and "
          "pipedream-stash",
          "set layout.schedule to 1f1b");
  }
  const bool repeats =
      layout.recompute == Recompute::Full || layout.recompute == Recompute::AllButLast;
  if (!repeats && layout.recompute != Recompute::None) {
    return no("layer graphs repeat whole stages or nothing", "set layout.recompute to full");
  }
  const std::vector<std::int32_t> replicas = replicas_of(layout), units = units_of(graph, layout);
  if (static_cast<std::int32_t>(replicas.size()) != layout.pp) {
    return no("layout.stage_replicas must list " + text(layout.pp) + " stages",
              "one count of replicas for each stage");
  }
  if (!layout.stage_replicas.empty() && layout.dp > 1) {
    return no("layout.stage_replicas says the replicas of each stage", "set layout.dp to 1");
  }
  if (auto refused = codec_refusal(layout, replicas)) return refused;
  const bool any_empty = std::any_of(units.begin(), units.end(), [](auto u) { return u < 1; });
  if (any_empty || static_cast<std::int32_t>(units.size()) != layout.pp ||
      std::accumulate(units.begin(), units.end(), 0) != graph.units()) {
    return no("the stages must share the " + text(graph.units()) + " units of " + graph.name +
                  ", one at least each",
              "lower layout.pp, or change layout.stage_layers");
  }
  if (layout.ranks() > cluster.gpus()) {
    return no("the layout needs " + text(layout.ranks()) + " GPUs, the cluster has " +
                  text(cluster.gpus()),
              "fewer replicas, or a larger cluster");
  }
  if (auto refused = batch_refusal(layout, replicas, job)) return refused;
  const std::int64_t wide = samples_of(layout);
  constexpr double kMost = 5e7;
  const double size =
      8.0 * static_cast<double>(graph.layers.size()) * static_cast<double>(job.global_batch / wide);
  if (size > kMost) {
    return no("the plan would have about " + text(static_cast<std::int64_t>(size / 1e6)) +
                  " million instructions",
              "raise layout.micro_batch, or lower job.global_batch");
  }
  return std::nullopt;
}

// What replica `replica` of a stage takes of the `wide` samples of a micro-batch, and whom it
// exchanges them with; its layers are not set yet.
Role role_of(const GraphJob& gj, std::int32_t stage, std::int32_t replica, std::int64_t wide) {
  Role role;
  role.stage = stage;
  role.samples = wide / gj.replicas[at(stage)];
  role.frames = gj.micro_batches;
  const auto pieces = [&](std::int32_t neighbour) {
    const std::int32_t replicas = gj.replicas[at(neighbour)];
    return pieces_of(replica * role.samples, role.samples, wide / replicas, replicas);
  };
  if (stage > 0) role.previous = pieces(stage - 1);
  if (stage + 1 < gj.layout.pp) role.next = pieces(stage + 1);
  return role;
}

// The same without a flush: replica j of r takes micro-batches j, j + r, ... whole.
Role role_in_turns(const GraphJob& gj, std::int32_t stage, std::int32_t replica) {
  Role role;
  const std::int32_t replicas = gj.replicas[at(stage)];
  role.stage = stage;
  role.samples = gj.layout.micro_batch;
  role.frames = gj.micro_batches / replicas;
  role.ahead = role.received = ahead_of(gj.replicas, stage);
  const auto turns = [&](std::int32_t neighbour, std::vector<Piece>& pieces) {
    std::vector<std::size_t> of;
    for (std::int32_t f = 0; f < role.frames; ++f) {
      const std::int32_t peer = (f * replicas + replica) % gj.replicas[at(neighbour)];
      const auto known = std::find_if(pieces.begin(), pieces.end(),
                                      [peer](const Piece& p) { return p.peer == peer; });
      of.push_back(static_cast<std::size_t>(known - pieces.begin()));
      if (known == pieces.end()) pieces.push_back({peer, 0, role.samples});
    }
    return of;
  };
  if (stage > 0) {
    role.previous_of = turns(stage - 1, role.previous);
    const std::int32_t begun = begun_by(gj.replicas, stage - 1);  // this replica's share of them
    role.received = (begun - replica + replicas - 1) / replicas;
  }
  if (stage + 1 < gj.layout.pp) role.next_of = turns(stage + 1, role.next);
  return role;
}

// Ranks of a stage: the grid's, or one stage after the other.
RankId rank_of(const Layout& layout, const std::vector<std::int32_t>& replicas, std::int32_t stage,
               std::int32_t replica) {
  if (layout.stage_replicas.empty()) return layout.rank({.dp = replica, .pp = stage});
  const std::int32_t before = std::accumulate(replicas.begin(), replicas.begin() + stage, 0);
  return RankId(static_cast<std::uint32_t>(before + replica));
}

}  // namespace

std::vector<std::int32_t> replicas_of(const Layout& layout) {
  if (!layout.stage_replicas.empty()) return layout.stage_replicas;
  return std::vector<std::int32_t>(at(layout.pp), layout.dp);
}

std::vector<std::int32_t> units_of(const LayerGraph& graph, const Layout& layout) {
  if (!layout.stage_layers.empty()) return layout.stage_layers;
  std::vector<std::int32_t> units(at(layout.pp), graph.units() / layout.pp);
  for (std::int32_t s = 0; s < graph.units() % layout.pp; ++s) ++units[at(s)];
  return units;
}

std::int64_t endless_micro_batches(const Layout& layout, std::int64_t wanted) {
  const auto [rounds, least] = endless_rounds(replicas_of(layout));
  return std::max(least, wanted / rounds * rounds);
}

Outcome<Plan> lower_graph(const LayerGraph& graph, const Cluster& cluster, const Layout& layout,
                          const Job& job) {
  if (auto refused = refusal(graph, cluster, layout, job)) return *std::move(refused);
  const std::int64_t wide = samples_of(layout);
  GraphJob gj{graph, layout, job, static_cast<std::int32_t>(job.global_batch / wide),
              replicas_of(layout)};
  if (layout.schedule == Schedule::PipedreamStash) gj.job.global_batch = wide;
  const std::vector<std::int32_t> units = units_of(graph, layout);
  PlanBuilder builder;
  builder.arena({.name = "gpu"});
  struct Placed {
    Rank rank;
    RankId id;
  };
  std::vector<Placed> ranks;
  std::int32_t unit = 0, layer = 0;
  const auto count = static_cast<std::int32_t>(graph.layers.size());
  for (std::int32_t s = 0; s < layout.pp; ++s) {
    unit += units[at(s)];
    std::int32_t last = layer;
    while (last < count && graph.layers[at(last)].unit < unit) ++last;
    const std::int32_t replicas = gj.replicas[at(s)];
    CommunicatorId data{};
    if (replicas > 1) data = builder.communicator({.name = "dp" + text(s), .members = {}});
    std::vector<Role> roles;
    std::vector<ProgramId> programs;
    for (std::int32_t r = 0; r < replicas; ++r) {
      Role role = never_drains(layout.schedule) ? role_in_turns(gj, s, r) : role_of(gj, s, r, wide);
      role.first = layer, role.last = last;
      const RankId id = rank_of(layout, gj.replicas, s, r);
      if (data.valid()) builder.plan().communicators[data.value].members.push_back(id);
      std::size_t known = 0;
      while (known < roles.size() && !roles[known].same_messages(role)) ++known;
      if (known == roles.size()) {
        const std::string name = "stage" + text(s) + (known > 0 ? "." + text(known) : "");
        Program program = graph_program(builder, gj, role, name);
        programs.push_back(builder.program(std::move(program)));
        roles.push_back(role);
      }
      Rank rank{.program = programs[known],
                .gpu = layout.devices.empty() ? GpuId(id.value) : layout.devices[id.value],
                .slots = {}};
      if (data.valid()) rank.slots.push_back(data.value);
      for (const Piece& p : role.previous) {
        rank.slots.push_back(rank_of(layout, gj.replicas, s - 1, p.peer).value);
      }
      for (const Piece& p : role.next) {
        rank.slots.push_back(rank_of(layout, gj.replicas, s + 1, p.peer).value);
      }
      ranks.push_back({std::move(rank), id});
    }
    layer = last;
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const Placed& a, const Placed& b) { return a.id.value < b.id.value; });
  for (Placed& placed : ranks) builder.rank(std::move(placed.rank));
  for (Communicator& c : builder.plan().communicators) {
    std::sort(c.members.begin(), c.members.end());
  }
  Plan plan = std::move(builder).take();
  plan.cuda_graph = job.cuda_graph;
  return plan;
}

}  // namespace gputwin
