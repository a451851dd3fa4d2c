#include "strategies/layouts/pipedream.h"

#include <algorithm>
#include <limits>

#include "sim/core/check.h"

namespace gputwin {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

struct Choice {
  double time = kNone;
  std::int32_t cut = -1, left = 0;  // the last stage begins after `cut`; machines before it
  std::int32_t replicas = 0;
};

double bytes(Bytes b) { return static_cast<double>(b.value); }

// One level: layers from cut i to state j on 1 .. machines machines.
class Level {
 public:
  Level(const std::vector<GraphState>& states, const PlannerLevel& level, double devices,
        std::vector<double> times)
      : states_(states),
        level_(level),
        devices_(devices),
        n_(static_cast<std::int32_t>(states.size())),
        times_(std::move(times)),
        table_(at(n_ * n_ * level.machines)) {}

  // `all`: from every cut, for the level above; else from the first alone.
  void solve(bool all) {
    for (std::int32_t i = 0; i < n_; ++i) {
      for (std::int32_t j = i; j < n_; ++j) {
        for (std::int32_t m = 1; m <= level_.machines; ++m) one_stage(i, j, m);
      }
    }
    for (std::int32_t i = 0; i < (all ? n_ : 1); ++i) {
      for (std::int32_t m = 2; m <= level_.machines; ++m) {
        for (std::int32_t j = i + 1; j < n_; ++j) several_stages(i, j, m);
      }
    }
  }

  std::vector<double> best() const {
    std::vector<double> times(at(n_ * n_), kNone);
    for (std::int32_t i = 0; i < n_; ++i) {
      for (std::int32_t j = i; j < n_; ++j)
        times[at(i * n_ + j)] = cell(i, j, level_.machines).time;
    }
    return times;
  }

  // Stages of the layers [first, last).
  std::vector<PlannedStage> stages(std::int32_t first, std::int32_t last) const {
    std::vector<PlannedStage> list;
    std::int32_t end = last - 1, machines = level_.machines;
    for (const Choice* c = &cell(first, end, machines);; c = &cell(first, end, machines)) {
      list.push_back({c->cut < 0 ? first : c->cut + 1, end + 1, c->replicas});
      if (c->cut < 0) break;
      end = c->cut;
      machines = c->left;
    }
    std::reverse(list.begin(), list.end());
    return list;
  }

 private:
  Choice& cell(std::int32_t i, std::int32_t j, std::int32_t m) {
    return table_[at((i * n_ + j) * level_.machines + m - 1)];
  }
  const Choice& cell(std::int32_t i, std::int32_t j, std::int32_t m) const {
    return table_[at((i * n_ + j) * level_.machines + m - 1)];
  }
  double time(std::int32_t i, std::int32_t j) const { return times_[at(i * n_ + j)]; }
  double weights(std::int32_t i, std::int32_t j) const {
    const double before = i == 0 ? 0.0 : bytes(states_[at(i - 1)].weights);
    return bytes(states_[at(j)].weights) - before;
  }
  double exchange(double weight_bytes, double m) const {
    return 4 * (m - 1) * weight_bytes / (level_.bandwidth.value * m);
  }

  // Of cuts that give the same time the one behind the layers of the smallest output, then the
  // first. (The authors' program takes them in no fixed order.)
  bool lighter(std::int32_t cut, std::int32_t than) const {
    return than >= 0 && states_[at(cut)].tip < states_[at(than)].tip;
  }

  void one_stage(std::int32_t i, std::int32_t j, std::int32_t m) {
    const double t = time(i, j) + exchange(weights(i, j), m) / devices_;
    cell(i, j, m) = {t / m, -1, 0, m};
  }

  void several_stages(std::int32_t i, std::int32_t j, std::int32_t m) {
    Choice best = cell(i, j, m);
    const bool is_last = j == n_ - 1;
    for (const std::int32_t k : states_[at(j)].predecessors) {
      if (k < i) continue;
      if (i > 0) {
        const auto& past = states_[at(i - 1)].predecessors;
        if (std::binary_search(past.begin(), past.end(), k)) continue;
      }
      const double last_time = time(k + 1, j), last_weights = weights(k + 1, j);
      for (std::int32_t r = 1; r < m; ++r) {
        const double link = level_.bandwidth.value * r;
        double slowest =
            std::max(cell(i, k, m - r).time, (last_time + exchange(last_weights, r)) / r);
        slowest = std::max(slowest, 2 * bytes(states_[at(k)].output) / link);
        if (!is_last) slowest = std::max(slowest, 2 * bytes(states_[at(j)].output) / link);
        if (slowest < best.time || (slowest == best.time && lighter(k, best.cut))) {
          best = {slowest, k, m - r, r};
        }
      }
    }
    cell(i, j, m) = best;
  }

  const std::vector<GraphState>& states_;
  PlannerLevel level_;
  double devices_;  // of one machine of this level
  std::int32_t n_;
  std::vector<double> times_;  // [i][j]: compute time of the layers after state i - 1 up to j
  std::vector<Choice> table_;
};

}  // namespace

PipeDreamPlan pipedream_plan(const std::vector<GraphState>& states,
                             const std::vector<PlannerLevel>& levels) {
  GPUTWIN_CHECK(!states.empty() && !levels.empty(), "there is something to plan");
  const auto n = static_cast<std::int32_t>(states.size());
  std::vector<double> times(at(n * n), kNone);
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = i; j < n; ++j) {
      times[at(i * n + j)] =
          states[at(j)].time.value - (i == 0 ? 0.0 : states[at(i - 1)].time.value);
    }
  }
  std::vector<Level> solved;
  double devices = 1;
  for (std::size_t l = 0; l < levels.size(); ++l) {
    solved.emplace_back(states, levels[l], devices, times);
    solved.back().solve(l + 1 < levels.size());
    times = solved.back().best();
    devices = levels[l].machines;
  }
  PipeDreamPlan plan;
  plan.time = Seconds(times[at(n - 1)]);
  plan.one_machine = states.back().time;
  double all = states.back().time.value;
  devices = 1;
  for (const PlannerLevel& level : levels) {
    const double m = level.machines;
    all =
        (all + 4 * (m - 1) * bytes(states.back().weights) / (level.bandwidth.value * m) / devices) /
        m;
    devices = m;
  }
  plan.data_parallel = Seconds(all);
  plan.levels.resize(levels.size());
  std::vector<PlannedStage> outer{{0, n, 1}};
  for (std::size_t l = levels.size(); l-- > 0;) {
    for (const PlannedStage& part : outer) {
      const std::vector<PlannedStage> inner = solved[l].stages(part.first, part.last);
      plan.levels[l].insert(plan.levels[l].end(), inner.begin(), inner.end());
    }
    outer = plan.levels[l];
  }
  return plan;
}

}  // namespace gputwin
