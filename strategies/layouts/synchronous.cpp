#include "strategies/layouts/synchronous.h"

#include <algorithm>
#include <limits>
#include <map>

#include "sim/core/check.h"
#include "strategies/layouts/stage_times.h"

namespace gputwin {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

double time_of(const StageTimes& times, const PipelineWorld& world, const PipelinePlan& plan) {
  double sum = 0, slowest = 0, exposed = 0;
  std::int32_t offset = 0;
  for (const PipelineStage& s : plan) {
    const double t = times.stage(s.first, s.last, offset, s.replicas);
    sum += t;
    slowest = std::max(slowest, t);
    offset += s.replicas;
  }
  offset = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const PipelineStage& s = plan[i];
    const double reduce = times.all_reduce(s.first, s.last, offset, s.replicas);
    exposed = std::max(exposed, reduce - static_cast<double>(i) * slowest);
    offset += s.replicas;
  }
  return sum + (world.micro_batches - 1) * slowest + exposed;
}

// Least sum of stage times with no stage above a bound.
class BoundedSum {
 public:
  BoundedSum(const PipelineWorld& world, const StageTimes& times,
             const std::vector<std::int32_t>& allowed, double spread)
      : times_(times), n_(times.units()), devices_(world.devices), allowed_(allowed) {
    const std::int32_t d = devices_;
    cost_.assign(at(n_ * (n_ + 1) * d) * allowed.size(), kNone);
    for (std::int32_t first = 0; first < n_; ++first) {
      for (std::int32_t last = first + 1; last <= n_; ++last) {
        for (std::int32_t offset = 0; offset < d; ++offset) {
          for (std::size_t a = 0; a < allowed.size(); ++a) {
            const std::int32_t r = allowed[a];
            if (offset + r > d) continue;
            cost(first, last, offset, a) = times.stage(first, last, offset, r) +
                                           spread * times.all_reduce(first, last, offset, r);
          }
        }
      }
    }
  }

  std::vector<double> bounds() const {
    std::vector<double> list;
    for (const double c : cost_) {
      if (c < kNone) list.push_back(c);
    }
    std::sort(list.begin(), list.end());
    return list;
  }

  // The plan under `bound`, empty if there is none.
  PipelinePlan plan(double bound) {
    const std::int32_t d = devices_;
    best_.assign(at((n_ + 1) * (d + 1)), {kNone, 0, 0});
    best_[at(n_ * (d + 1) + d)] = {0, 0, 0};
    for (std::int32_t first = n_; first-- > 0;) {
      for (std::int32_t offset = d; offset-- > 0;) {
        Choice& here = best_[at(first * (d + 1) + offset)];
        for (std::size_t a = 0; a < allowed_.size(); ++a) {
          const std::int32_t r = allowed_[a];
          if (offset + r > d) break;
          for (std::int32_t last = first + 1; last <= n_; ++last) {
            const double c = cost(first, last, offset, a);
            if (c > bound) continue;
            const double sum = c + best_[at(last * (d + 1) + offset + r)].sum;
            if (sum < here.sum) here = {sum, last, r};
          }
        }
      }
    }
    PipelinePlan plan;
    if (best_[0].sum == kNone) return plan;
    for (std::int32_t unit = 0, offset = 0; unit < n_;) {
      const Choice& c = best_[at(unit * (d + 1) + offset)];
      plan.push_back({unit, c.last, c.replicas});
      unit = c.last, offset += c.replicas;
    }
    return plan;
  }

 private:
  struct Choice {
    double sum;
    std::int32_t last, replicas;
  };
  double& cost(std::int32_t first, std::int32_t last, std::int32_t offset, std::size_t a) {
    return cost_[at((first * (n_ + 1) + last) * devices_ + offset) * allowed_.size() + a];
  }

  const StageTimes& times_;
  std::int32_t n_, devices_;
  const std::vector<std::int32_t>& allowed_;
  std::vector<double> cost_;
  std::vector<Choice> best_;
};

}  // namespace

Seconds synchronous_time(const PipelineWorld& world, const PipelinePlan& plan) {
  return Seconds(time_of(StageTimes(world), world, plan));
}

PipelinePlan synchronous_plan(const PipelineWorld& world, const std::vector<std::int32_t>& allowed,
                              double gap) {
  return synchronous_plans(world, allowed, gap).front();
}

std::vector<PipelinePlan> synchronous_plans(const PipelineWorld& world,
                                            const std::vector<std::int32_t>& allowed, double gap) {
  GPUTWIN_CHECK(!world.units.empty() && !allowed.empty(), "there is something to plan");
  const StageTimes times(world);
  using Timed = std::pair<double, PipelinePlan>;
  std::map<std::size_t, Timed> best;  // by stages
  for (const double spread : {0.0, 1.0 / world.micro_batches}) {
    BoundedSum sums(world, times, allowed, spread);
    double last = -kNone, shortest = kNone;
    for (const double bound : sums.bounds()) {
      if (bound <= last || bound < last * (1 + gap)) continue;
      if (world.micro_batches * bound >= shortest) break;
      last = bound;
      PipelinePlan plan = sums.plan(bound);
      if (plan.empty()) continue;
      const double t = time_of(times, world, plan);
      shortest = std::min(shortest, t);
      Timed& so_far = best.try_emplace(plan.size(), kNone, PipelinePlan{}).first->second;
      if (t < so_far.first) so_far = {t, std::move(plan)};
    }
  }
  std::vector<Timed> list;
  for (auto& [stages, timed] : best) list.push_back(std::move(timed));
  std::stable_sort(list.begin(), list.end(),
                   [](const Timed& a, const Timed& b) { return a.first < b.first; });
  std::vector<PipelinePlan> plans;
  for (Timed& timed : list) plans.push_back(std::move(timed.second));
  return plans;
}

PipelinePlan even_plan(const PipelineWorld& world) {
  const auto n = static_cast<std::int32_t>(world.units.size());
  const std::int32_t stages = std::min(world.devices, n);
  PipelinePlan plan;
  std::int32_t unit = 0;
  for (std::int32_t s = 0; s < stages; ++s) {
    const std::int32_t count = n / stages + (s < n % stages ? 1 : 0);
    plan.push_back({unit, unit + count, 1});
    unit += count;
  }
  return plan;
}

PipelinePlan balanced_plan(const PipelineWorld& world) {
  const auto n = static_cast<std::int32_t>(world.units.size());
  PipelineWorld straight = world;
  straight.devices = std::min(world.devices, n);
  const std::vector<std::int32_t> one{1};
  const StageTimes times(straight);
  BoundedSum sums(straight, times, one, 0);
  const std::vector<double> bounds = sums.bounds();
  // The least bound that a plan keeps, by bisection.
  std::size_t low = 0, high = bounds.size() - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (sums.plan(bounds[middle]).empty()) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return sums.plan(bounds[low]);
}

}  // namespace gputwin
