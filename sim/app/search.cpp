#include "sim/app/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "hwmodels/hardware_model.h"
#include "sim/app/data_directory.h"
#include "sim/app/worker_pool.h"
#include "sim/core/spelling.h"
#include "strategies/lowering/feasibility.h"
#include "strategies/offload/strategies.h"
#include "strategies/search/balance.h"
#include "strategies/search/methods.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostRounds = 4;          // of simulating, when some of the best turn out not to fit
constexpr std::size_t kToBalance = 12;  // best grids whose stages are made uneven
constexpr std::size_t kToCombine = 3;   // best layouts that are simulated without their passes
constexpr std::size_t kToRecompute = 24;  // best grids that recompute, of which less may do
constexpr std::size_t kPipelines = 2;     // best pipelines that try other schedules

class Deadline {
 public:
  explicit Deadline(double limit_s) : limit_s_(limit_s) {}
  double left() const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    return limit_s_ > 0 ? limit_s_ - spent.count() : 1e9;
  }
  bool over() const { return left() <= 0; }
  bool set() const { return limit_s_ > 0; }

 private:
  double limit_s_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

bool faster(const FoundLayout& a, const FoundLayout& b) {
  if (a.closed_form != b.closed_form) return a.closed_form < b.closed_form;
  return layout_words(a.layout) < layout_words(b.layout);
}

// Of layouts by time: those that need less memory or fewer GPUs than every faster one. What the
// simulation refused is no layout at all.
std::vector<FoundLayout> pareto_front(const std::vector<FoundLayout>& by_time) {
  std::vector<FoundLayout> front;
  for (const FoundLayout& f : by_time) {
    if (!f.not_simulated.empty()) continue;
    const bool beaten = std::any_of(front.begin(), front.end(), [&](const FoundLayout& g) {
      return g.memory <= f.memory && g.layout.ranks() <= f.layout.ranks();
    });
    if (!beaten) front.push_back(f);
  }
  return front;
}

// A layout without the passes that have nothing to work on in it: no tensor parallelism; one sample
// a micro-batch to be cut by samples, or several by tokens, sequences spread over ranks, weights
// gathered by layer (the pass overlap cuts none of these); for codecs of gradients and messages, no
// replicas and no stages.
Layout with_usable_passes(Layout l) {
  const bool one_part = (l.micro_batch > 1) == l.chunk_overlap.sequence(l.micro_batch);
  if (l.tp == 1 || l.cp > 1 || one_part || l.zero >= 2) l.chunk_overlap = {};
  Compression& c = l.compression;
  if (l.tp == 1) c.forward = c.backward = {};
  if (l.dp * l.cp == 1 || l.zero >= 2) c.reduced = {};
  if (l.pp == 1) c.sent = c.sent_back = {};
  if (l.tp == 1 && l.pp == 1 && (l.dp * l.cp == 1 || l.zero >= 2)) c = {};
  return l;
}

class Search {
 public:
  Search(const Scenario& scenario, const SearchRequest& request)
      : scenario_(scenario),
        request_(request),
        model_(transformer_of(scenario)),
        topology_(scenario.cluster),
        costs_(topology_, scenario.job, data_directory() / "hwmodels"),
        estimator_(model_, scenario.cluster, scenario.job, costs_, topology_),
        deadline_(request.time_limit_s) {
    for (const std::int32_t gpus : request.space.gpus) {
      if (gpus >= 1 && gpus <= topology_.gpus()) continue;
      throw InputError("--gpus", "", std::to_string(gpus), "is not a count of GPUs of the cluster",
                       fmt::format("use 1 to {}", topology_.gpus()));
    }
  }

  SearchOutcome run() {
    look_at_all();
    if (found_.empty() && !result_.stopped) return nothing_fits();
    std::sort(found_.begin(), found_.end(), faster);
    balance();
    recompute_less();
    own_layout();
    if (!result_.stopped) simulate();
    result_.pareto = pareto_front(found_);
    return std::move(result_);
  }

 private:
  static const Transformer& transformer_of(const Scenario& scenario) {
    const auto* model = std::get_if<Transformer>(&scenario.workload);
    if (model != nullptr) return *model;
    throw InputError(scenario.name, "/model", "", "is a layer graph, which the search cannot cut",
                     "use a Transformer");
  }

  bool going_on(const char* what, double share) {
    const bool asked = !request_.progress || request_.progress(what, share);
    if (!asked || deadline_.over()) result_.stopped = true;
    return !result_.stopped;
  }

  void look_at_all() {
    Layout base = scenario_.layout;
    base.offload = {};
    look_at(base);
    if (model_.has_experts()) return;  // what offload costs them has no closed form
    std::vector<OffloadSpec> levels;
    for (const std::string& name : request_.offload) {
      levels.push_back(*find_offload_strategy(name));
    }
    const OffloadSpec& own = scenario_.layout.offload;
    const bool known = std::find(levels.begin(), levels.end(), own) != levels.end();
    if (own.enabled && !known) levels.push_back(own);
    if (levels.empty() && found_.empty()) {
      for (const char* name : {"zero-offload", "greedy"}) {
        levels.push_back(*find_offload_strategy(name));
      }
    }
    for (const OffloadSpec& level : levels) {
      if (result_.stopped || !level.enabled) continue;
      base.offload = level;
      look_at(base);
    }
  }

  void look_at(const Layout& base) {
    const SpaceWatcher watcher{
        .found =
            [&](const Layout& l, const Estimate& e) {
              found_.push_back({with_usable_passes(l), e.iteration, e.memory, {}, {}, {}});
            },
        .keep_on = [&](double share) { return going_on("looking at layouts", share); }};
    add(enumerate(request_.space, base, model_, scenario_.cluster, scenario_.job, estimator_,
                  watcher));
  }

  void add(const SpaceCount& more) {
    SpaceCount& all = result_.space;
    all.looked_at += more.looked_at;
    all.feasible += more.feasible;
    all.stopped = all.stopped || more.stopped;
    for (const auto& [reason, r] : more.rejected) {
      Rejection& known = all.rejected[reason];
      if (known.layouts == 0 || r.least_short_by < known.least_short_by) {
        known.example = r.example;
        known.least_short_by = r.least_short_by;
      }
      known.layouts += r.layouts;
    }
    if (more.closest && (!all.closest || more.closest_short_by < all.closest_short_by)) {
      all.closest = more.closest;
      all.closest_short_by = more.closest_short_by;
    }
  }

  // Tries `change` on the best layout of each of `most` kinds; `kind` gives none for layouts that
  // it does not suit. What comes out faster is found as well.
  void vary(const char* what, std::size_t most,
            const std::function<std::vector<std::int64_t>(const Layout&)>& kind,
            const std::function<std::optional<Layout>(const Layout&)>& change) {
    std::set<std::vector<std::int64_t>> seen;
    std::vector<FoundLayout> more;
    for (std::size_t i = 0; i < found_.size() && seen.size() < most; ++i) {
      const std::vector<std::int64_t> its_kind = kind(found_[i].layout);
      if (its_kind.empty() || !seen.insert(its_kind).second) continue;
      if (!going_on(what, double(seen.size()) / static_cast<double>(most))) break;
      const auto changed = change(found_[i].layout);
      if (!changed) continue;
      const Outcome<Estimate> outcome = estimator_.estimate(*changed);
      const auto* e = std::get_if<Estimate>(&outcome);
      if (e == nullptr || !e->fits() || e->iteration >= found_[i].closed_form) continue;
      more.push_back({*changed, e->iteration, e->memory, {}, {}, {}});
    }
    found_.insert(found_.end(), more.begin(), more.end());
    std::sort(found_.begin(), found_.end(), faster);
  }

  // Uneven stages for the best of each grid of degrees.
  void balance() {
    vary(
        "balancing stages", kToBalance,
        [](const Layout& l) -> std::vector<std::int64_t> {
          if (l.pp == 1 || l.vpp > 1) return {};
          return {l.tp, l.cp, l.ep, l.pp, l.dp, l.micro_batch};
        },
        [&](const Layout& l) {
          return balanced(l, model_, scenario_.cluster, scenario_.job, topology_, costs_,
                          estimator_);
        });
  }

  // Fewer layers computed again for the best of each grid that recomputes them all, or parts of
  // them.
  void recompute_less() {
    vary(
        "recomputing less", kToRecompute,
        [](const Layout& l) -> std::vector<std::int64_t> {
          if (l.recompute == Recompute::None || !l.stage_layers.empty()) return {};
          return {l.tp, l.cp, l.ep, l.pp, l.vpp, l.dp, l.micro_batch, l.zero, l.sp};
        },
        [&](const Layout& l) { return recomputed_as_needed(l, model_, estimator_); });
  }

  void own_layout() {
    const Outcome<Estimate> outcome = estimator_.estimate(scenario_.layout);
    const auto* e = std::get_if<Estimate>(&outcome);
    if (e != nullptr && e->fits()) {
      result_.given = FoundLayout{scenario_.layout, e->iteration, e->memory, {}, {}, {}};
    }
  }

  // The event simulator's word on the best; what it refuses makes place for the next.
  void simulate() {
    const auto top = static_cast<std::size_t>(request_.top);
    std::vector<FoundLayout> refused;
    std::size_t next = 0;
    WorkerPool pool(request_.program, request_.workers);
    methods_choose();
    for (int round = 0; round < kMostRounds && result_.best.size() < top; ++round) {
      const std::size_t count = std::min(top - result_.best.size(), found_.size() - next);
      if (count == 0 || result_.stopped) break;
      const auto first = found_.begin() + static_cast<std::ptrdiff_t>(next);
      std::vector<FoundLayout> asked(first, first + static_cast<std::ptrdiff_t>(count));
      next += count;
      ask(pool, asked);
      std::copy(asked.begin(), asked.end(), first);
      for (FoundLayout& f : asked) {
        (f.simulated || f.not_simulated.empty() ? result_.best : refused).push_back(std::move(f));
      }
    }
    if (!result_.stopped) beside_the_best(pool);
    sort_best();
    if (result_.best.size() > top) result_.best.resize(top);
    if (!result_.stopped) combine(pool);
    result_.best.insert(result_.best.end(), refused.begin(), refused.end());
  }

  void sort_best() {
    std::stable_sort(result_.best.begin(), result_.best.end(),
                     [](const FoundLayout& a, const FoundLayout& b) {
                       if (a.simulated.has_value() != b.simulated.has_value())
                         return a.simulated.has_value();
                       return a.simulated && *a.simulated < *b.simulated;
                     });
  }

  // The best layouts again without overlap, without compression and without both, as far as the
  // scenario has them.
  void combine(WorkerPool& pool) {
    const ChunkOverlap blocking;
    const Compression plain;
    std::vector<FoundLayout> asked;
    for (std::size_t i = 0; i < result_.best.size() && i < kToCombine; ++i) {
      const FoundLayout& f = result_.best[i];
      if (!f.simulated) break;
      for (const bool overlap : {true, false}) {
        for (const bool compress : {true, false}) {
          FoundLayout other{f.layout, f.closed_form, f.memory, {}, {}, {}};
          if (!overlap) other.layout.chunk_overlap = blocking;
          if (!compress) other.layout.compression = plain;
          const auto same = [&](const FoundLayout& g) { return g.layout == other.layout; };
          if (same(f) || std::any_of(asked.begin(), asked.end(), same)) continue;
          asked.push_back(std::move(other));
        }
      }
    }
    if (asked.empty()) return;
    ask(pool, asked);
    for (FoundLayout& f : asked) result_.best.push_back(std::move(f));
    sort_best();
  }

  void methods_choose() {
    std::vector<const Layout*> layouts;
    for (const FoundLayout& f : found_) layouts.push_back(&f.layout);
    const MethodWorld world{model_, scenario_.cluster, scenario_.job, estimator_};
    for (const Method& m : methods()) {
      const auto chosen = choose(m.name, layouts, world);
      result_.methods.push_back(
          {m.name, m.what, chosen ? std::optional(found_[*chosen]) : std::nullopt});
    }
  }

  // Schedules that the closed form does not know, on the best pipelines; they make place for no
  // other, and those that are refused are not shown.
  std::vector<FoundLayout> other_schedules() const {
    std::vector<FoundLayout> others;
    std::size_t pipelines = 0;
    for (const FoundLayout& f : found_) {
      if (f.layout.pp == 1 || f.layout.vpp > 1 || !f.not_simulated.empty()) continue;
      if (++pipelines > kPipelines) break;
      for (const auto& [schedule, vpp] : {std::pair{Schedule::ZbH1, 1}, {Schedule::ZbV, 2}}) {
        Layout l = f.layout;
        l.schedule = schedule;
        l.vpp = vpp;
        if (vpp > 1) l.stage_layers.clear();
        if (refusal(model_, scenario_.cluster, l, scenario_.job)) continue;
        others.push_back({l, {}, f.memory, {}, {}, {}});
      }
    }
    return others;
  }

  // Asks at once for the scenario's own layout, what the methods chose and other schedules.
  void beside_the_best(WorkerPool& pool) {
    std::vector<FoundLayout> asked;
    std::vector<FoundLayout*> waiting;
    const auto known = [&](const FoundLayout& f) -> const FoundLayout* {
      for (const std::vector<FoundLayout>* list : {&result_.best, &asked}) {
        for (const FoundLayout& g : *list) {
          if (g.layout == f.layout) return &g;
        }
      }
      return nullptr;
    };
    if (result_.given) waiting.push_back(&*result_.given);
    for (MethodChoice& m : result_.methods) {
      if (m.found) waiting.push_back(&*m.found);
    }
    for (const FoundLayout* f : waiting) {
      if (known(*f) == nullptr) asked.push_back(*f);
    }
    const std::size_t named = asked.size();
    for (FoundLayout& f : other_schedules()) asked.push_back(std::move(f));
    ask(pool, asked);
    for (FoundLayout* f : waiting) *f = *known(*f);
    for (std::size_t i = named; i < asked.size(); ++i) {
      if (asked[i].simulated) result_.best.push_back(asked[i]);
    }
  }

  void ask(WorkerPool& pool, std::vector<FoundLayout>& layouts) {
    std::vector<Json> requests;
    for (const FoundLayout& f : layouts) {
      Json request{{"name", layout_words(f.layout)},
                   {"scenario", Json::parse(scenario_with(scenario_, f.layout, scenario_.name))}};
      if (deadline_.set()) request["time_limit_s"] = std::max(0.01, deadline_.left());
      requests.push_back(std::move(request));
    }
    const std::vector<Json> answers =
        pool.run(requests, [&](double share) { return going_on("simulating the best", share); });
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      FoundLayout& f = layouts[i];
      const std::string status = answers[i].at("status");
      if (status == "ok") {
        const Json& r = answers[i].at("result");
        f.simulated = Seconds(r.at("iteration_time_s").get<double>());
        f.simulated_memory = Bytes(r.at("memory").at("peak_device_bytes").get<std::int64_t>());
      } else if (status != "cancelled") {
        f.not_simulated = answers[i].value("reason", status);
      }
    }
  }

  // Counts of GPUs, doubling the nodes of the cluster, until some layout fits.
  std::string gpus_that_would_do() const {
    Scenario larger = scenario_;
    if (larger.cluster.fabric.kind == FabricKind::None) {
      return "more GPUs: a cluster with more nodes and a network between them";
    }
    for (int doubled = 0; doubled < 6; ++doubled) {
      for (NodeGroup& group : larger.cluster.groups) group.count *= 2;
      const Topology topology(larger.cluster);
      const HardwareModel costs(topology, larger.job, data_directory() / "hwmodels");
      LayoutEstimator estimator(model_, larger.cluster, larger.job, costs, topology);
      bool fits = false;
      LayoutSpace space = request_.space;
      space.gpus.clear();
      space.most_tokens = scenario_.job.sequence;
      space.most_chunks_per_stage = 1;
      const SpaceWatcher watcher{.found = [&](const Layout&, const Estimate&) { fits = true; },
                                 .keep_on = [&](double) { return !fits && !deadline_.over(); }};
      enumerate(space, larger.layout, model_, larger.cluster, larger.job, estimator, watcher);
      if (fits) return fmt::format("{} GPUs of this kind would do", topology.gpus());
    }
    return "no count of GPUs up to 64 times as many would do: use GPUs with more memory";
  }

  Infeasible nothing_fits() const {
    const SpaceCount& space = result_.space;
    Infeasible no;
    no.reason = fmt::format("none of {} layouts fits", space.looked_at);
    if (space.closest) {
      no.reason += "; the closest is " + layout_words(*space.closest);
      no.short_by = space.closest_short_by;
    } else if (!space.rejected.empty()) {
      const auto most = std::max_element(
          space.rejected.begin(), space.rejected.end(),
          [](const auto& a, const auto& b) { return a.second.layouts < b.second.layouts; });
      no.reason += ", for example " + most->second.example;
    }
    no.fix = gpus_that_would_do();
    return no;
  }

  const Scenario& scenario_;
  const SearchRequest& request_;
  const Transformer& model_;
  Topology topology_;
  HardwareModel costs_;
  LayoutEstimator estimator_;
  Deadline deadline_;
  std::vector<FoundLayout> found_;
  SearchResult result_;
};

// The scenario's passes as far as `layout` has them, offload by its name where that changed.
Json passes_of(const Json& own, const Scenario& scenario, const Layout& layout) {
  Json list = Json::array();
  for (const Json& pass : own) {
    Json kept = Json::object();
    for (const auto& [name, options] : pass.items()) {
      const bool drop = (name == "overlap" && !layout.chunk_overlap.on()) ||
                        (name == "compress" && !layout.compression.on()) ||
                        (name == "offload" && !(layout.offload == scenario.layout.offload));
      if (!drop) kept[name] = options;
    }
    if (!kept.empty()) list.push_back(std::move(kept));
  }
  if (layout.offload.enabled && !(layout.offload == scenario.layout.offload)) {
    list.push_back({{"offload", {{"strategy", std::string(offload_name(layout.offload))}}}});
  }
  return list;
}

}  // namespace

SearchOutcome search(const Scenario& scenario, const SearchRequest& request) {
  return Search(scenario, request).run();
}

std::string scenario_with(const Scenario& scenario, const Layout& layout, const std::string& name) {
  Json document = Json::parse(scenario.resolved);
  document["name"] = name;
  Json& l = document["layout"];
  for (const char* key :
       {"stage_layers", "recompute_layers", "devices", "rank_order", "hsdp_group", "ep"}) {
    l.erase(key);
  }
  for (const auto& [key, value] : {std::pair{"tp", layout.tp},
                                   {"pp", layout.pp},
                                   {"vpp", layout.vpp},
                                   {"dp", layout.dp},
                                   {"cp", layout.cp},
                                   {"zero", layout.zero}}) {
    l[key] = value;
  }
  document["passes"] = passes_of(document.value("passes", Json::array()), scenario, layout);
  if (document["passes"].empty()) document.erase("passes");
  l["sp"] = layout.sp;
  l["micro_batch"] = layout.micro_batch;
  l["schedule"] = std::string(to_string(layout.schedule));
  l["recompute"] = std::string(to_string(layout.recompute));
  if (layout.ep > 1) l["ep"] = layout.ep;
  if (layout.hsdp_group > 0) l["hsdp_group"] = layout.hsdp_group;
  if (!layout.stage_layers.empty()) l["stage_layers"] = layout.stage_layers;
  if (!layout.recompute_layers.empty()) l["recompute_layers"] = layout.recompute_layers;
  if (layout.rank_order != Layout().rank_order) {
    l["rank_order"] = Json::parse(scenario.resolved)["layout"]["rank_order"];
  }
  for (const GpuId gpu : layout.devices) l["devices"].push_back(gpu.value);
  return document.dump(2) + "\n";
}

}  // namespace gputwin
