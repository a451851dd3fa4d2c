// The dynamic programme against every plan there is, on random small problems.
//
// The oracle shares nothing with it but the problem: it lists plans from the last stage backward,
// notes which devices each stage gets, and works out the time of a plan from front to back, device
// by device, from the formulas in chain_partition.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "strategies/search/chain_partition.h"

namespace gputwin {
namespace {

struct Device {
  std::size_t kind = 0;
  std::int32_t node = 0;
};

struct Placed {
  std::int32_t first = 0, last = 0, option = 0;
  std::vector<Device> devices;
};

class Oracle {
 public:
  explicit Oracle(const ChainProblem& p) : p_(p) {
    std::int32_t node = 0;
    for (std::size_t k = 0; k < p.devices.size(); ++k) {
      by_kind_.emplace_back();
      for (std::int32_t n = 0; n < p.devices[k].nodes; ++n, ++node) {
        for (std::int32_t d = 0; d < p.devices[k].per_node; ++d) by_kind_[k].push_back({k, node});
      }
    }
  }

  double best() {
    std::vector<std::size_t> next(by_kind_.size(), 0);
    std::vector<Placed> stages;
    extend(p_.layers(), next, stages);
    return best_;
  }
  int plans() const { return plans_; }

 private:
  void extend(std::int32_t left, const std::vector<std::size_t>& next, std::vector<Placed>& from) {
    if (left == 0) {
      std::vector<Placed> stages(from.rbegin(), from.rend());
      bool all = true;
      for (std::size_t k = 0; k < next.size(); ++k) all &= next[k] == by_kind_[k].size();
      if (p_.use_all && !all) return;
      ++plans_;
      if (fits(stages)) best_ = std::min(best_, time(stages));
      return;
    }
    if (p_.most_stages > 0 && static_cast<std::int32_t>(from.size()) == p_.most_stages) return;
    for (std::int32_t first = 0; first < left; ++first) {
      for (std::int32_t o = 0; o < static_cast<std::int32_t>(p_.options.size()); ++o) {
        for (const bool fresh : {false, true}) {
          Placed stage{first, left, o, {}};
          draw(0, p_.options[static_cast<std::size_t>(o)].devices, fresh, next, stage, from);
        }
      }
    }
  }

  // Devices of kinds from `kind` on for the rest of a stage.
  void draw(std::size_t kind, std::int32_t rest, bool fresh, std::vector<std::size_t> next,
            const Placed& stage, std::vector<Placed>& from) {
    if (rest == 0) {
      from.push_back(stage);
      extend(stage.first, next, from);
      from.pop_back();
      return;
    }
    if (kind == by_kind_.size()) return;
    draw(kind + 1, rest, fresh, next, stage, from);
    const std::vector<Device>& all = by_kind_[kind];
    std::size_t at = next[kind];
    while (fresh && at > 0 && at < all.size() && all[at].node == all[at - 1].node) ++at;
    Placed more = stage;
    for (std::int32_t n = 1; n <= rest && at < all.size(); ++n) {
      more.devices.push_back(all[at++]);
      next[kind] = at;
      draw(kind + 1, rest - n, fresh, next, more, from);
    }
  }

  bool fits(const std::vector<Placed>& stages) const {
    const auto count = static_cast<std::int32_t>(stages.size());
    for (std::int32_t s = 0; s < count; ++s) {
      const Placed& stage = stages[static_cast<std::size_t>(s)];
      const std::int32_t flight =
          p_.all_in_flight ? p_.micro_batches : std::min(p_.micro_batches, count - s);
      double bytes = 0;
      for (std::int32_t l = stage.first; l < stage.last; ++l) {
        const ChainMemory& m =
            p_.memory[static_cast<std::size_t>(l)][static_cast<std::size_t>(stage.option)];
        bytes += m.state + m.kept * flight;
      }
      for (const Device& d : stage.devices) {
        if (p_.devices[d.kind].memory > 0 && bytes > p_.devices[d.kind].memory) return false;
      }
    }
    return true;
  }

  double rate(const std::vector<Device>& devices) const {
    for (const Device& d : devices) {
      if (d.node != devices[0].node) return p_.between;
    }
    return p_.devices[devices[0].kind].inside;
  }

  double time(const std::vector<Placed>& stages) const {
    double sum = 0, slowest = 0, drained = 0, exposed = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const Placed& stage = stages[s];
      const auto o = static_cast<std::size_t>(stage.option);
      double longest = -1, forward = 0, backward = 0, gradient = 0;
      for (const Device& d : stage.devices) {
        double f = 0, b = 0;
        for (std::int32_t l = stage.first; l < stage.last; ++l) {
          f += p_.costs[static_cast<std::size_t>(l)][o][d.kind].forward;
          b += p_.costs[static_cast<std::size_t>(l)][o][d.kind].backward;
        }
        if (f + b <= longest) continue;
        longest = f + b;
        forward = f;
        backward = b;
      }
      for (std::int32_t l = stage.first; l < stage.last; ++l) {
        gradient += p_.memory[static_cast<std::size_t>(l)][o].gradient;
      }
      const double d = p_.options[o].replicas;
      if (d > 1) {
        const double reduce =
            2 * (d - 1) * p_.latency + 2 * (d - 1) / d * gradient / rate(stage.devices);
        exposed = std::max(exposed, reduce - drained);
      }
      drained += backward;
      sum += forward + backward;
      slowest = std::max(slowest, forward + backward);
      if (s + 1 == stages.size()) continue;
      const auto next = static_cast<std::size_t>(stages[s + 1].option);
      std::vector<Device> both = stage.devices;
      both.insert(both.end(), stages[s + 1].devices.begin(), stages[s + 1].devices.end());
      const double links = std::min(p_.options[o].replicas, p_.options[next].replicas);
      const double cut = 2 * p_.latency + 2 * p_.output[static_cast<std::size_t>(stage.last) - 1] /
                                              links / rate(both);
      sum += cut;
      slowest = std::max(slowest, cut);
    }
    return sum + (p_.micro_batches - 1) * slowest + exposed;
  }

  const ChainProblem& p_;
  std::vector<std::vector<Device>> by_kind_;
  double best_ = std::numeric_limits<double>::infinity();
  int plans_ = 0;
};

// Two to five layers on one or two kinds of devices in nodes of one to three, two or three options.
// Costs differ by layer, option and kind in no regular way; memory is short in half of the
// problems.
ChainProblem random_problem(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto whole = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  const auto real = [&](double low, double high) {
    return low + (high - low) * static_cast<double>(random() >> 11) / 9007199254740992.0;
  };
  ChainProblem p;
  const int kinds = whole(1, 2);
  const bool tight = whole(0, 1) == 1;
  for (int k = 0; k < kinds; ++k) {
    p.devices.push_back({"kind" + std::to_string(k), whole(1, 2), whole(1, kinds == 1 ? 3 : 2),
                         tight ? real(2, 9) : 0.0, real(4, 20)});
  }
  p.options = {{1, 1}, {2, 2}};
  if (whole(0, 1) == 1) p.options.push_back({2, 1});
  p.between = real(0.5, 6);
  p.latency = whole(0, 1) * 0.05;
  p.micro_batches = whole(1, 8);
  p.all_in_flight = whole(0, 3) == 0;
  p.most_stages = whole(0, 2) == 0 ? whole(1, 3) : 0;
  p.use_all = whole(0, 3) == 0;
  const int layers = whole(2, 5);
  for (int l = 0; l < layers; ++l) {
    const double work = real(0.2, 2);
    p.output.push_back(real(0, 2));
    p.costs.emplace_back();
    p.memory.emplace_back();
    for (const ChainOption& option : p.options) {
      p.costs.back().emplace_back();
      for (int k = 0; k < kinds; ++k) {
        const double one = work * real(0.8, 1.2) * (k + 1) / option.devices;
        p.costs.back().back().push_back({one, real(1, 3) * one});
      }
      p.memory.back().push_back({real(0.1, 1.5), real(0, 0.6), real(0, 3)});
    }
  }
  return p;
}

class ChainPartition : public ::testing::TestWithParam<int> {};

// 600 problems in batches, of which some have no plan that fits.
TEST_P(ChainPartition, IsAsGoodAsTheBestOfAllPlans) {
  int solved = 0, plans = 0;
  for (int i = 0; i < 60; ++i) {
    const std::uint64_t seed = static_cast<std::uint64_t>(GetParam() * 1000 + i);
    const ChainProblem problem = random_problem(seed);
    Oracle oracle(problem);
    const double best = oracle.best();
    const std::optional<ChainPlan> plan = partition(problem);
    ASSERT_EQ(plan.has_value(), best < std::numeric_limits<double>::infinity()) << "seed " << seed;
    if (!plan) continue;
    ++solved;
    plans += oracle.plans();
    EXPECT_NEAR(plan->time, best, 1e-9 * best) << "seed " << seed;
  }
  EXPECT_GT(solved, 30);
  EXPECT_GT(plans, 60 * 20);
}

INSTANTIATE_TEST_SUITE_P(Batches, ChainPartition, ::testing::Range(0, 10));

// With a tolerance the plan is at most that much slower.
TEST(ChainPartitionTolerance, CostsAtMostItsShare) {
  for (std::uint64_t seed = 5000; seed < 5100; ++seed) {
    const ChainProblem problem = random_problem(seed);
    const auto exact = partition(problem), rough = partition(problem, {.tolerance = 0.1});
    ASSERT_EQ(exact.has_value(), rough.has_value());
    if (!exact) continue;
    EXPECT_LE(rough->time, 1.1 * exact->time) << "seed " << seed;
  }
}

}  // namespace
}  // namespace gputwin
