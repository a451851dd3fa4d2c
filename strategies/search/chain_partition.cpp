#include "strategies/search/chain_partition.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "sim/core/check.h"

namespace gputwin {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int32_t kMixed = -1;

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

// Where the search stands: layers [0, left) are still to be placed.
struct State {
  std::int32_t left = 0;
  std::vector<std::int32_t> used;  // devices of each kind, skipped ones included
  std::int32_t option = 0;         // of the stage placed last
  std::int32_t node = kMixed;      // its node, counted over all kinds, if it lies in one
  auto operator<=>(const State&) const = default;
};

// One way to get there.
struct Label {
  double sum = 0, exposed = 0;
  std::int32_t parent = -1;
  ChainStage stage;
};

struct Candidate {
  double forward = 0, backward = 0, reduce = 0;
  double time() const { return forward + backward; }
};

class Partition {
 public:
  Partition(const ChainProblem& problem, const ChainSearch& how) : p_(problem), how_(how) {
    GPUTWIN_CHECK(!p_.options.empty() && !p_.devices.empty() && p_.layers() > 0,
                  "a chain has layers, options and devices");
    prefix_sums();
    list_takes();
  }

  std::optional<ChainPlan> run() {
    std::optional<ChainPlan> best;
    double tried = -1;
    for (const double slowest : slowest_stages()) {
      const double m = p_.micro_batches - 1;
      if (best && m * slowest + least_[at(p_.layers())] >= best->time) break;
      if (tried >= 0 && slowest <= tried * (1 + how_.tolerance)) continue;
      // With a tolerance the bound stands for all values up to the next one tried.
      tried = slowest;
      const double bound = slowest * (1 + how_.tolerance);
      std::optional<ChainPlan> plan = within(bound, best ? best->time : kNever);
      known_period_ = bound;
      if (plan && (!best || plan->time < best->time)) best = std::move(plan);
    }
    return best;
  }

 private:
  void prefix_sums() {
    const std::int32_t n = p_.layers();
    times_.assign(p_.options.size(), {});
    for (std::size_t o = 0; o < p_.options.size(); ++o) {
      for (std::size_t k = 0; k < p_.devices.size(); ++k) {
        std::vector<double> f(at(n) + 1, 0.0), b(at(n) + 1, 0.0);
        for (std::int32_t l = 0; l < n; ++l) {
          f[at(l) + 1] = f[at(l)] + p_.costs[at(l)][o][k].forward;
          b[at(l) + 1] = b[at(l)] + p_.costs[at(l)][o][k].backward;
        }
        times_[o].push_back({std::move(f), std::move(b)});
      }
    }
    for (std::size_t o = 0; o < p_.options.size(); ++o) {
      const auto add_up = [&](double ChainMemory::*what) {
        std::vector<double> sums(at(n) + 1, 0.0);
        for (std::int32_t l = 0; l < n; ++l) {
          sums[at(l) + 1] = sums[at(l)] + p_.memory[at(l)][o].*what;
        }
        return sums;
      };
      memory_.push_back({add_up(&ChainMemory::state), add_up(&ChainMemory::kept),
                         add_up(&ChainMemory::gradient)});
    }
    least_.assign(at(n) + 1, 0.0);
    for (std::int32_t l = 0; l < n; ++l) {
      double least = kNever;
      for (const auto& by_kind : p_.costs[at(l)]) {
        for (const ChainCost& c : by_kind) least = std::min(least, c.forward + c.backward);
      }
      least_[at(l) + 1] = least_[at(l)] + least;
    }
  }

  // Every way to draw an option's devices from the kinds.
  void list_takes() {
    takes_.resize(p_.options.size());
    for (std::size_t o = 0; o < p_.options.size(); ++o) {
      std::vector<std::int32_t> take(p_.devices.size(), 0);
      draw(o, 0, p_.options[o].devices, take);
    }
  }
  void draw(std::size_t option, std::size_t kind, std::int32_t rest,
            std::vector<std::int32_t>& take) {
    if (kind + 1 == p_.devices.size()) {
      if (rest > total(kind)) return;
      take[kind] = rest;
      takes_[option].push_back(take);
      return;
    }
    for (std::int32_t n = 0; n <= std::min(rest, total(kind)); ++n) {
      take[kind] = n;
      draw(option, kind + 1, rest - n, take);
    }
  }
  std::int32_t total(std::size_t kind) const {
    return p_.devices[kind].nodes * p_.devices[kind].per_node;
  }

  double sum(const std::vector<double>& prefix, std::int32_t first, std::int32_t last) const {
    return prefix[at(last)] - prefix[at(first)];
  }

  Candidate cost(std::int32_t first, std::int32_t last, std::int32_t option,
                 const std::vector<std::int32_t>& take) const {
    Candidate c;
    double slowest = -1;
    for (std::size_t k = 0; k < take.size(); ++k) {
      if (take[k] == 0) continue;
      const Sums& sums = times_[at(option)][k];
      const double f = sum(sums.forward, first, last), b = sum(sums.backward, first, last);
      if (f + b <= slowest) continue;
      slowest = f + b;
      c = {f, b, 0};
    }
    return c;
  }

  // All values the slowest stage or cut can have, ascending.
  std::vector<double> slowest_stages() const {
    std::vector<double> values;
    const std::int32_t n = p_.layers();
    for (std::int32_t first = 0; first < n; ++first) {
      for (std::int32_t last = first + 1; last <= n; ++last) {
        for (std::size_t o = 0; o < p_.options.size(); ++o) {
          for (std::size_t k = 0; k < p_.devices.size(); ++k) {
            const Sums& s = times_[o][k];
            values.push_back(sum(s.forward, first, last) + sum(s.backward, first, last));
          }
        }
      }
    }
    for (std::int32_t cut = 1; cut < n; ++cut) {
      for (const ChainOption& a : p_.options) {
        for (const ChainOption& b : p_.options) {
          const std::int32_t links = std::min(a.replicas, b.replicas);
          values.push_back(message(cut, links, p_.between));
          for (const ChainDevices& d : p_.devices) values.push_back(message(cut, links, d.inside));
        }
      }
    }
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    return values;
  }

  double message(std::int32_t cut, std::int32_t links, double rate) const {
    return 2 * p_.latency + 2 * p_.output[at(cut) - 1] / (links * rate);
  }

  bool fits(std::int32_t first, std::int32_t last, std::int32_t option,
            const std::vector<std::int32_t>& take, std::int32_t from_last) const {
    const std::int32_t flight =
        p_.all_in_flight ? p_.micro_batches : std::min(p_.micro_batches, from_last);
    const MemorySums& m = memory_[at(option)];
    const double bytes = sum(m.state, first, last) + flight * sum(m.kept, first, last);
    for (std::size_t k = 0; k < take.size(); ++k) {
      const double has = p_.devices[k].memory;
      if (take[k] > 0 && has > 0 && bytes > has) return false;
    }
    return true;
  }

  double reduction(std::int32_t first, std::int32_t last, std::int32_t option,
                   const std::vector<std::int32_t>& take, std::int32_t node) const {
    const double d = p_.options[at(option)].replicas;
    if (d <= 1) return 0;
    const double bytes = sum(memory_[at(option)].gradient, first, last);
    double rate = p_.between;
    for (std::size_t k = 0; k < take.size(); ++k) {
      if (node != kMixed && take[k] > 0) rate = p_.devices[k].inside;
    }
    return 2 * (d - 1) * p_.latency + 2 * (d - 1) / d * bytes / rate;
  }

  // Devices used after a stage takes its own, or none if there are too few; and the stage's node.
  bool place(const State& from, const ChainStage& stage, State& to) const {
    to.used = from.used;
    to.node = kMixed;
    std::int32_t kinds = 0, first_node = 0;
    for (std::size_t k = 0; k < to.used.size(); ++k) {
      const std::int32_t per_node = p_.devices[k].per_node;
      if (stage.take[k] > 0) {
        std::int32_t& used = to.used[k];
        if (stage.fresh) used = (used + per_node - 1) / per_node * per_node;
        const std::int32_t begin = used;
        used += stage.take[k];
        if (used > total(k)) return false;
        const bool one = begin / per_node == (used - 1) / per_node;
        to.node = ++kinds == 1 && one ? first_node + begin / per_node : kMixed;
      }
      first_node += p_.devices[k].nodes;
    }
    return true;
  }

  double rate_between(const State& a, const State& b) const {
    if (a.node == kMixed || a.node != b.node) return p_.between;
    std::int32_t first_node = 0;
    for (const ChainDevices& d : p_.devices) {
      first_node += d.nodes;
      if (a.node < first_node) return d.inside;
    }
    return p_.between;
  }

  using Front = std::map<State, std::vector<std::int32_t>>;  // rows of labels_

  // The best plan no stage or cut of which takes longer than `slowest`.
  std::optional<ChainPlan> within(double slowest, double to_beat) {
    labels_.clear();
    beat_ = to_beat;
    best_ = -1;
    slowest_ = slowest;
    State start{p_.layers(), std::vector<std::int32_t>(p_.devices.size(), 0), -1, kMixed};
    labels_.push_back({});
    Front front{{start, {0}}};
    const std::int32_t most = p_.most_stages > 0 ? p_.most_stages : p_.layers();
    for (std::int32_t n = 1; n <= most && !front.empty(); ++n) {
      Front next;
      for (const auto& [state, rows] : front) extend(state, rows, n, next);
      front = std::move(next);
    }
    if (best_ < 0) return std::nullopt;
    return plan(best_);
  }

  void extend(const State& state, const std::vector<std::int32_t>& rows, std::int32_t n,
              Front& next) {
    for (std::int32_t o = 0; o < static_cast<std::int32_t>(p_.options.size()); ++o) {
      for (const std::vector<std::int32_t>& take : takes_[at(o)]) {
        for (const bool fresh : {false, true}) {
          ChainStage stage{0, state.left, o, take, fresh};
          State to;
          if (!place(state, stage, to)) continue;
          if (fresh && !skips(state, to, take)) continue;
          to.option = o;
          extend(state, rows, n, stage, to, next);
        }
      }
    }
  }
  // True if starting on a new node leaves something idle, so that it differs from going on.
  static bool skips(const State& from, const State& to, const std::vector<std::int32_t>& take) {
    for (std::size_t k = 0; k < take.size(); ++k) {
      if (to.used[k] != from.used[k] + take[k]) return true;
    }
    return false;
  }

  void extend(const State& state, const std::vector<std::int32_t>& rows, std::int32_t n,
              ChainStage& stage, State& to, Front& next) {
    for (std::int32_t first = state.left; first-- > 0;) {
      const Candidate c = cost(first, state.left, stage.option, stage.take);
      if (c.time() > slowest_) break;  // longer stages only take longer
      if (!fits(first, state.left, stage.option, stage.take, n)) break;
      double cut = 0;
      if (state.option >= 0) {
        const std::int32_t links =
            std::min(p_.options[at(stage.option)].replicas, p_.options[at(state.option)].replicas);
        cut = message(state.left, links, rate_between(state, to));
        if (cut > slowest_) return;
      }
      stage.first = first;
      to.left = first;
      const double reduce = reduction(first, state.left, stage.option, stage.take, to.node);
      for (const std::int32_t row : rows) {
        const Label& from = labels_[at(row)];
        Label label{from.sum + c.time() + cut, std::max(from.exposed - c.backward, reduce), row,
                    stage};
        add(to, std::move(label), next);
      }
    }
  }

  void add(const State& to, Label label, Front& next) {
    const double least = label.sum + least_[at(to.left)];
    if (least + (p_.micro_batches - 1) * known_period_ >= beat_) return;
    if (to.left == 0) {
      if (p_.use_all && !all_used(to)) return;
      labels_.push_back(std::move(label));
      const auto row = static_cast<std::int32_t>(labels_.size()) - 1;
      const double time = plan(row).time;
      if (time >= beat_) return labels_.pop_back();
      beat_ = time;
      best_ = row;
      return;
    }
    std::vector<std::int32_t>& rows = next[to];
    for (const std::int32_t r : rows) {
      const Label& known = labels_[at(r)];
      if (known.sum <= label.sum && known.exposed <= label.exposed) return;
    }
    std::erase_if(rows, [&](std::int32_t r) {
      return label.sum <= labels_[at(r)].sum && label.exposed <= labels_[at(r)].exposed;
    });
    labels_.push_back(std::move(label));
    rows.push_back(static_cast<std::int32_t>(labels_.size()) - 1);
  }
  bool all_used(const State& s) const {
    for (std::size_t k = 0; k < s.used.size(); ++k) {
      if (s.used[k] != total(k)) return false;
    }
    return true;
  }
  ChainPlan plan(std::int32_t row) const {
    ChainPlan plan;
    const Label& end = labels_[at(row)];
    for (std::int32_t r = row; labels_[at(r)].parent >= 0; r = labels_[at(r)].parent) {
      plan.stages.push_back(labels_[at(r)].stage);
    }
    plan.period = period(plan.stages);
    plan.exposed = std::max(0.0, end.exposed);
    plan.time = end.sum + (p_.micro_batches - 1) * plan.period + plan.exposed;
    return plan;
  }

  double period(const std::vector<ChainStage>& stages) const {
    State state{p_.layers(), std::vector<std::int32_t>(p_.devices.size(), 0), -1, kMixed};
    double longest = 0;
    for (auto s = stages.rbegin(); s != stages.rend(); ++s) {
      State to;
      GPUTWIN_CHECK(place(state, *s, to), "a plan's devices exist");
      to.option = s->option;
      to.left = s->first;
      longest = std::max(longest, cost(s->first, s->last, s->option, s->take).time());
      if (state.option >= 0) {
        const std::int32_t links =
            std::min(p_.options[at(s->option)].replicas, p_.options[at(state.option)].replicas);
        longest = std::max(longest, message(s->last, links, rate_between(state, to)));
      }
      state = to;
    }
    return longest;
  }

  struct Sums {
    std::vector<double> forward, backward;
  };
  struct MemorySums {
    std::vector<double> state, kept, gradient;
  };

  const ChainProblem& p_;
  const ChainSearch& how_;
  std::vector<std::vector<Sums>> times_;                       // [option][kind]
  std::vector<MemorySums> memory_;                             // [option]
  std::vector<double> least_;                                  // least time of the first layers
  std::vector<std::vector<std::vector<std::int32_t>>> takes_;  // [option]
  std::vector<Label> labels_;
  double slowest_ = 0, beat_ = kNever;
  double known_period_ = 0;  // plans with periods up to this are known: new ones are longer
  std::int32_t best_ = -1;
};

}  // namespace

std::optional<ChainPlan> partition(const ChainProblem& problem, const ChainSearch& how) {
  return Partition(problem, how).run();
}

}  // namespace gputwin
