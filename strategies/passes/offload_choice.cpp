// How much leaves where a strategy says no number: attempts, and the fastest of those that fit.
#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "strategies/passes/offload_program.h"

namespace gputwin::offloading {
namespace {

constexpr int kParts = 16;  // shares of the states are sixteenths

/// What came of a spec.
struct Attempt {
  Outcome<Plan> plan;
  Trial trial;
  int index = 0;  // in its family: the less, the less leaves
  auto cost() const { return std::tuple(!trial.fits, trial.host_short, trial.seconds, index); }
};
using Found = std::optional<Attempt>;
using Family = std::function<OffloadSpec(int)>;

class Choice {
 public:
  Choice(const Plan& plan, const CostModel& costs, const Topology& topology)
      : plan_(plan), costs_(costs), topology_(topology) {}

  Attempt attempt(const OffloadSpec& spec, int index) const {
    Trial trial;
    Outcome<Plan> plan = moved(plan_, spec, &costs_, &topology_, &trial);
    if (std::holds_alternative<Infeasible>(plan)) trial.fits = false;
    return {std::move(plan), trial, index};
  }

  /// The first of `low` to `high` that fits, if what follows what fits does.
  Found least(int low, int high, const Family& family) const {
    Found best;
    for (++high; low < high;) {
      const int middle = (low + high) / 2;
      Attempt tried = attempt(family(middle), middle);
      if (tried.trial.fits) {
        best = std::move(tried);
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return best;
  }

  /// The fastest of `first` and what leaves more, up to `high`: the end and the middle, then around
  /// the best of them in steps that are halved, as if there was one valley.
  Attempt fastest(Attempt first, int high, const Family& family) const {
    const int low = first.index;
    std::set<int> tried{low};
    Attempt best = std::move(first);
    const auto look = [&](int index) {
      if (index < low || index > high || !tried.insert(index).second) return;
      Attempt one = attempt(family(index), index);
      if (one.cost() < best.cost()) best = std::move(one);
    };
    look(high);
    for (int step = (high - low) / 2; step > 0; step /= 2) {
      const int around = best.index;
      look(around - step);
      look(around + step);
    }
    return best;
  }

  /// False: the weights of a program, and its gradients if these are to stay, are more than a GPU
  /// has by themselves, so that nothing need be tried.
  bool may_stay(bool gradients) const {
    for (const Program& p : plan_.programs) {
      std::int64_t bytes = 0;
      for (const BufferId id : used_buffers(plan_, p)) {
        const Buffer& b = plan_.buffers[id.value];
        const bool counts =
            b.memory == MemoryClass::Weights || (gradients && b.memory == MemoryClass::Gradients);
        if (b.persistent && !b.framed && b.arena == ArenaId(0) && counts) bytes += b.bytes.value;
      }
      if (bytes > capacity(p)) return false;
    }
    return true;
  }

  /// Steps of Adam of the program with most of them, as far as the last ones' states and weights by
  /// themselves are not more than a GPU has.
  int longest_window() const {
    std::ptrdiff_t most = 0, limit = std::numeric_limits<std::ptrdiff_t>::max();
    for (const Program& p : plan_.programs) {
      std::ptrdiff_t steps = 0, within = 0;
      std::int64_t left = capacity(p);
      for (auto i = p.body.rbegin(); i != p.body.rend(); ++i) {
        if (i->kind != Kind::Kernel || plan_.call(*i).op.kind != OpKind::AdamStep) continue;
        left -= bytes_of(plan_.call(*i).writes).value;
        if (left >= 0) ++within;
        ++steps;
      }
      most = std::max(most, steps);
      if (within < steps) limit = std::min(limit, within);
    }
    return static_cast<int>(std::min(most, limit));
  }

 private:
  std::int64_t capacity(const Program& p) const {
    const auto index = static_cast<std::uint32_t>(&p - plan_.programs.data());
    for (const Rank& r : plan_.ranks) {
      if (r.program != ProgramId(index)) continue;
      return costs_.memory(topology_.device_kind(r.gpu), {}).capacity.value;
    }
    return std::numeric_limits<std::int64_t>::max();  // nobody runs it
  }

  const Plan& plan_;
  const CostModel& costs_;
  const Topology& topology_;
};

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
  if (found) return std::move(found->plan);
  spec.window = 0;
  return moved(plan, spec, &costs, &topology, nullptr);
}

Outcome<Plan> moved_as_needed(const Plan& plan, const OffloadSpec& spec, const CostModel& costs,
                              const Topology& topology) {
  const Choice choice(plan, costs, topology);
  const Family alone = [&](int parts) { return states_alone(spec, OffloadPlace::Gpu, parts); };
  Found states;
  if (choice.may_stay(true)) states = choice.least(0, kParts, alone);
  const bool all_fits = states && states->index == 0;
  const bool nothing_leaves = all_fits && spec.activations == OffloadPlace::Gpu;
  // Before the norm is known an idle host gains something even where all fits.
  if (all_fits && spec.clip_by_norm) {
    return nothing_leaves ? Outcome<Plan>(plan) : std::move(states->plan);
  }
  const int most = choice.longest_window();
  const Family window = [&](int fewer) { return all_of(spec, most - fewer); };
  Attempt best = choice.attempt(window(most), most);
  if (std::holds_alternative<Infeasible>(best.plan)) return std::move(best.plan);
  // Of what computes without any step hardly anything is left to gain.
  constexpr double kNear = 1.001;
  if (states && states->trial.host_short == 0 &&
      states->trial.seconds <= kNear * best.trial.compute) {
    return nothing_leaves ? Outcome<Plan>(plan) : std::move(states->plan);
  }
  const auto consider = [&](Attempt tried) {
    const auto cost = [](const Trial& t) { return std::tuple(!t.fits, t.host_short, t.seconds); };
    if (tried.trial.fits && cost(tried.trial) <= cost(best.trial)) best = std::move(tried);
  };
  // What fits, and what leaves more: an idle host steps under the backward pass.
  const auto consider_from = [&](Found found, int high, const Family& family) {
    if (found) consider(choice.fastest(std::move(*found), high, family));
  };
  if (!all_fits) consider_from(choice.least(0, most - 1, window), most - 1, window);
  const Family no_gradients = [&](int n) { return states_alone(spec, OffloadPlace::Cpu, n); };
  if (choice.may_stay(false)) {
    consider_from(choice.least(1, kParts, no_gradients), kParts, no_gradients);
  }
  const double whole = all_fits ? states->trial.seconds : 0;
  consider_from(std::move(states), kParts, alone);
  if (nothing_leaves && best.trial.seconds >= whole) return plan;
  return std::move(best.plan);
}

}  // namespace gputwin::offloading
