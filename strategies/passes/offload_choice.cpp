// How much leaves where a strategy says no number: attempts, and the fastest of those that fit.
#include <algorithm>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include "strategies/passes/offload_program.h"

namespace gputwin::offloading {
namespace {

constexpr int kParts = 8;  // shares of the states are eighths

class Choice {
 public:
  Choice(const Plan& plan, const CostModel& costs, const Topology& topology)
      : plan_(plan), costs_(costs), topology_(topology) {}

  struct Attempt {
    Outcome<Plan> plan;
    Trial trial;
  };
  Attempt attempt(const OffloadSpec& spec) const {
    Trial trial;
    Outcome<Plan> plan = moved(plan_, spec, &costs_, &topology_, &trial);
    if (std::holds_alternative<Infeasible>(plan)) trial.fits = false;
    return {std::move(plan), trial};
  }

  /// Steps of Adam of the program with most of them.
  int steps() const {
    std::ptrdiff_t most = 0;
    for (const Program& p : plan_.programs) {
      most = std::max(most, std::count_if(p.body.begin(), p.body.end(), [&](const Instruction& i) {
                        return i.kind == Kind::Kernel && plan_.call(i).op.kind == OpKind::AdamStep;
                      }));
    }
    return static_cast<int>(most);
  }

  /// The first of `low` to `high` that fits, if what follows what fits does.
  std::optional<std::pair<int, Attempt>> least(int low, int high,
                                               const std::function<OffloadSpec(int)>& spec) const {
    std::optional<std::pair<int, Attempt>> best;
    for (++high; low < high;) {
      const int middle = (low + high) / 2;
      Attempt tried = attempt(spec(middle));
      if (tried.trial.fits) {
        best = {middle, std::move(tried)};
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return best;
  }

 private:
  const Plan& plan_;
  const CostModel& costs_;
  const Topology& topology_;
};

using Found = std::optional<std::pair<int, Choice::Attempt>>;

OffloadSpec states_alone(OffloadSpec spec, OffloadPlace gradients, int parts) {
  spec.params = OffloadPlace::Gpu;
  spec.gradients = gradients;
  spec.params_auto = false;
  spec.optimizer_share = static_cast<double>(parts) / kParts;
  if (parts == 0) spec.optimizer = OffloadPlace::Gpu;
  return spec;
}

OffloadSpec all_of(OffloadSpec spec, std::int64_t window) {
  spec.optimizer_share = 1;
  spec.window = window;
  if (window > 0) spec.params_auto = false;
  return spec;
}

}  // namespace

Outcome<Plan> moved_with_window(const Plan& plan, OffloadSpec spec, const CostModel& costs,
                                const Topology& topology) {
  const Choice choice(plan, costs, topology);
  const auto most = static_cast<int>(spec.window);
  Found found = choice.least(0, most - 1, [&](int fewer) {
    OffloadSpec tried = spec;
    tried.window = most - fewer;
    return tried;
  });
  if (found) return std::move(found->second.plan);
  spec.window = 0;
  return moved(plan, spec, &costs, &topology, nullptr);
}

Outcome<Plan> moved_as_needed(const Plan& plan, const OffloadSpec& spec, const CostModel& costs,
                              const Topology& topology) {
  const Choice choice(plan, costs, topology);
  const auto alone = [&](int parts) { return states_alone(spec, OffloadPlace::Gpu, parts); };
  Found states = choice.least(0, kParts, alone);
  const bool all_fits = states && states->first == 0;
  if (all_fits && spec.activations == OffloadPlace::Gpu) return plan;
  if (all_fits) return std::move(states->second.plan);
  Choice::Attempt best = choice.attempt(all_of(spec, 0));
  if (std::holds_alternative<Infeasible>(best.plan)) return std::move(best.plan);
  // Of what computes without any step hardly anything is left to gain.
  constexpr double kNear = 1.01;
  if (states && states->second.trial.host_short == 0 &&
      states->second.trial.seconds <= kNear * best.trial.compute) {
    return std::move(states->second.plan);
  }
  const auto consider = [&](Choice::Attempt tried) {
    const auto cost = [](const Trial& t) { return std::tuple(!t.fits, t.host_short, t.seconds); };
    if (tried.trial.fits && cost(tried.trial) <= cost(best.trial)) best = std::move(tried);
  };
  // What fits, and what leaves more: an idle host steps under the backward pass.
  const auto consider_from = [&](Found found, auto spec_of) {
    if (!found) return;
    const int least = found->first, half = (least + kParts) / 2;
    if (least < kParts) consider(choice.attempt(spec_of(kParts)));
    if (half > least) consider(choice.attempt(spec_of(half)));
    consider(std::move(found->second));
  };
  const int most = choice.steps();
  const auto window = [&](int fewer) { return all_of(spec, most - fewer); };
  if (Found found = choice.least(0, most - 1, window)) {
    const int size = most - found->first;
    for (const int part : {4, 2}) {
      if (size >= part) consider(choice.attempt(window(most - size / part)));
    }
    consider(std::move(found->second));
  }
  const auto no_gradients = [&](int parts) { return states_alone(spec, OffloadPlace::Cpu, parts); };
  consider_from(choice.least(1, kParts, no_gradients), no_gradients);
  consider_from(std::move(states), alone);
  return std::move(best.plan);
}

}  // namespace gputwin::offloading
