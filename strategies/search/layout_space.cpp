#include "strategies/search/layout_space.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "sim/core/spelling.h"

namespace gputwin {
namespace {

std::vector<std::int32_t> divisors(std::int64_t n, std::int64_t most) {
  std::vector<std::int32_t> list;
  for (std::int64_t d = 1; d <= std::min(n, most); ++d) {
    if (n % d == 0) list.push_back(static_cast<std::int32_t>(d));
  }
  return list;
}

// "tp 5 does not divide the attention heads (96)" without its numbers.
std::string pattern(const std::string& reason) {
  std::string text;
  for (const char c : reason) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) text += c;
    if (digit && (text.empty() || text.back() != '#')) text += '#';
  }
  return text;
}

class Walk {
 public:
  Walk(const LayoutSpace& space, const Transformer& model, const Cluster& cluster, const Job& job,
       LayoutEstimator& estimator, const SpaceWatcher& watcher)
      : space_(space),
        model_(model),
        cluster_(cluster),
        job_(job),
        estimator_(estimator),
        watcher_(watcher) {}

  SpaceCount run(const Layout& base) {
    std::vector<std::int32_t> counts = space_.gpus;
    if (counts.empty()) counts.push_back(cluster_.gpus());
    std::vector<Layout> grids;
    for (const std::int32_t gpus : counts) add_grids(base, gpus, grids);
    for (std::size_t g = 0; g < grids.size() && !stopped_; ++g) {
      share_ = static_cast<double>(g) / static_cast<double>(grids.size());
      micro_batches(grids[g]);
    }
    count_.stopped = stopped_;
    return std::move(count_);
  }

 private:
  std::int32_t most_tp() const {
    if (space_.most_tp > 0) return space_.most_tp;
    std::int32_t most = 1;
    for (const NodeGroup& g : cluster_.groups) {
      most = std::max({most, g.type.gpus, g.type.intra.domain_gpus});
    }
    return most;
  }

  void add_grids(const Layout& base, std::int32_t gpus, std::vector<Layout>& grids) const {
    const std::int64_t most_cp = std::max<std::int64_t>(1, job_.sequence / space_.fewest_tokens);
    for (const std::int32_t tp : divisors(gpus, most_tp())) {
      for (const std::int32_t cp : divisors(gpus / tp, most_cp)) {
        for (const std::int32_t pp : divisors(gpus / tp / cp, model_.layers)) {
          Layout l = base;
          l.devices.clear();
          l.stage_layers.clear();
          l.recompute_layers.clear();
          l.rank_order = Layout().rank_order;
          l.hsdp_group = 0;
          l.ep = 1;
          l.tp = tp;
          l.cp = cp;
          l.pp = pp;
          l.dp = gpus / tp / cp / pp;
          add_expert_groups(l, grids);
        }
      }
    }
  }

  void add_expert_groups(Layout l, std::vector<Layout>& grids) const {
    if (!model_.has_experts()) return grids.push_back(std::move(l));
    const std::int32_t ranks = l.tp * l.cp * l.dp;
    for (const std::int32_t ep : divisors(model_.moe.experts, ranks)) {
      if (ranks % ep != 0) continue;
      l.ep = ep;
      grids.push_back(l);
    }
  }

  void micro_batches(Layout l) {
    const std::int64_t per_replica = job_.global_batch / l.dp;
    if (per_replica == 0 || job_.global_batch % l.dp != 0) {
      l.micro_batch = 1;
      score(l);  // refused with the reason
      return;
    }
    const std::int64_t most = std::max<std::int64_t>(1, space_.most_tokens * l.cp / job_.sequence);
    for (const std::int32_t mb : divisors(per_replica, most)) {
      l.micro_batch = mb;
      schedules(l);
    }
  }

  void schedules(Layout l) {
    l.vpp = 1;
    if (l.pp == 1) {
      l.schedule = Schedule::None;
      return sharding(l);
    }
    for (const Schedule s : {Schedule::OneFOneB, Schedule::Gpipe}) {
      l.schedule = s;
      sharding(l);
    }
    l.schedule = Schedule::Interleaved;
    const std::int64_t per_stage = model_.layers / l.pp;
    for (l.vpp = 2; l.vpp <= std::min<std::int64_t>(per_stage, space_.most_chunks_per_stage);
         ++l.vpp) {
      sharding(l);
    }
  }

  void sharding(Layout l) {
    // Gradients and weights are gathered and reduced for every micro-batch with ZeRO 2 and 3, which
    // a pipeline of many cannot want.
    const std::int32_t most = l.dp * l.cp == 1 ? 0 : l.pp == 1 ? 3 : 1;
    for (l.zero = 0; l.zero <= most; ++l.zero) {
      for (const bool sp : {false, true}) {
        if (sp && l.tp == 1) continue;
        l.sp = sp;
        for (const Recompute r : {Recompute::None, Recompute::Selective, Recompute::Full}) {
          l.recompute = r;
          score(l);
          if (stopped_) return;
        }
      }
    }
  }

  void score(const Layout& l) {
    if (count_.looked_at++ % 64 == 0) stopped_ = !watcher_.keep_on(share_);
    const Outcome<Estimate> outcome = estimator_.estimate(l);
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      return reject(pattern(no->reason), l, no->reason, Bytes(0));
    }
    const Estimate& e = std::get<Estimate>(outcome);
    if (e.fits()) {
      ++count_.feasible;
      return watcher_.found(l, e);
    }
    const Bytes short_by = e.memory - e.capacity;
    reject("memory short", l, "", short_by);
    if (!count_.closest || short_by < count_.closest_short_by) {
      count_.closest = l;
      count_.closest_short_by = short_by;
    }
  }

  void reject(const std::string& reason, const Layout& l, const std::string& sentence,
              Bytes short_by) {
    Rejection& r = count_.rejected[reason];
    const bool closer = r.layouts == 0 || short_by < r.least_short_by;
    ++r.layouts;
    if (!closer) return;
    r.least_short_by = short_by;
    r.example = layout_words(l) + (sentence.empty() ? "" : ": " + sentence);
  }

  const LayoutSpace& space_;
  const Transformer& model_;
  const Cluster& cluster_;
  const Job& job_;
  LayoutEstimator& estimator_;
  const SpaceWatcher& watcher_;
  SpaceCount count_;
  double share_ = 0;
  bool stopped_ = false;
};

}  // namespace

std::string layout_words(const Layout& l) {
  std::string text = "tp" + std::to_string(l.tp);
  const auto add = [&](const std::string& word) { text += " " + word; };
  if (l.cp > 1) add("cp" + std::to_string(l.cp));
  if (l.ep > 1) add("ep" + std::to_string(l.ep));
  add("pp" + std::to_string(l.pp));
  if (l.vpp > 1) add("vpp" + std::to_string(l.vpp));
  add("dp" + std::to_string(l.dp));
  if (l.pp > 1) add(std::string(to_string(l.schedule)));
  add("mb" + std::to_string(l.micro_batch));
  if (l.recompute != Recompute::None) add(std::string(to_string(l.recompute)));
  if (l.zero > 0) add("zero" + std::to_string(l.zero));
  if (l.sp) add("sp");
  if (!l.stage_layers.empty()) add("uneven");
  return text;
}

SpaceCount enumerate(const LayoutSpace& space, const Layout& base, const Transformer& model,
                     const Cluster& cluster, const Job& job, LayoutEstimator& estimator,
                     const SpaceWatcher& watcher) {
  return Walk(space, model, cluster, job, estimator, watcher).run(base);
}

}  // namespace gputwin
