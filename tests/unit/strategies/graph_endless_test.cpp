// Layer graphs without a flush: which weights every micro-batch meets, and how many are kept.
#include <gmock/gmock.h>

#include <cmath>

#include "sim/core/verify.h"
#include "strategies/lowering/layer_graph.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/tiny_graph.h"

namespace gputwin {
namespace {

constexpr std::int64_t kSamples = 2;  // of a micro-batch
constexpr double kRate = 0.05;
constexpr double kNear = 1e-7;  // scales of losses are floats

using Values = std::map<std::string, std::vector<double>>;

Plan sound_plan(const Layout& layout, std::int64_t micro_batches) {
  Outcome<Plan> outcome =
      lower_graph(tiny_cnn(), gpus(64), layout, job_of(kSamples * micro_batches));
  if (const auto* no = std::get_if<Infeasible>(&outcome)) throw std::runtime_error(no->reason);
  Plan plan = std::get<Plan>(std::move(outcome));
  verify_or_throw(plan, "lower", Depth::Races);
  return plan;
}

// One GPU with the weights given; sums of gradients over the first micro-batches of the data.
class OneGpu {
 public:
  OneGpu() {
    for (const auto& [name, t] : interpret(plan(1), still()).weights) {
      initial_[name] = t.values;
      cols_[name] = t.cols;
    }
  }
  const Values& initial() const { return initial_; }

  /// Gradient of the mean loss of micro-batch `index`.
  Values gradient(std::int64_t index, const Values& weights) const {
    Values sum = sums(index + 1, weights);
    if (index == 0) return sum;
    for (const auto& [name, values] : sums(index, weights)) {
      for (std::size_t i = 0; i < values.size(); ++i) sum[name][i] -= values[i];
    }
    return sum;
  }

 private:
  static InterpretOptions still() {
    InterpretOptions o;
    o.learning_rate = 0;
    return o;
  }
  static Plan plan(std::int64_t count) { return sound_plan(alone(kSamples), count); }

  Values sums(std::int64_t count, const Values& weights) const {
    InterpretOptions o = still();
    for (const auto& [name, values] : weights) {
      const std::int64_t cols = cols_.at(name);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double delta = values[i] - initial_.at(name)[i];
        const auto at = static_cast<std::int64_t>(i);
        if (delta != 0) o.nudges.push_back({name, at / cols, at % cols, delta});
      }
    }
    Values found;
    for (const auto& [name, t] : interpret(plan(count), o).gradients) {
      found[name] = t.values;
      for (double& v : found[name]) v *= static_cast<double>(count);
    }
    return found;
  }

  Values initial_;
  std::map<std::string, std::int64_t> cols_;
};

// Stochastic gradient descent, momentum 0.9, of one stage; all versions of its weights.
struct Stage {
  std::vector<Values> versions;
  Values momentum, sum;

  void step() {
    Values next = versions.back();
    for (auto& [name, values] : next) {
      std::vector<double>& m = momentum[name];
      m.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        m[i] = 0.9 * m[i] + sum[name][i];
        values[i] -= kRate * m[i];
      }
    }
    versions.push_back(std::move(next));
    sum.clear();
  }
  void add(const Values& gradient, double share) {
    for (const auto& [name, values] : versions[0]) {
      std::vector<double>& to = sum[name];
      to.resize(values.size());
      for (std::size_t i = 0; i < values.size(); ++i) to[i] += share * gradient.at(name)[i];
    }
  }
};

struct Case {
  std::vector<std::int32_t> units, replicas, ahead;  // ahead: by hand, see below
  std::int64_t micro_batches;
  Recompute recompute = Recompute::None;
};

Layout layout_of(const Case& c, Schedule schedule) {
  Layout l;
  l.pp = static_cast<std::int32_t>(c.units.size());
  l.micro_batch = kSamples;
  l.schedule = schedule;
  l.stage_layers = c.units;
  l.stage_replicas = c.replicas;
  l.recompute = c.recompute;
  l.bucket_elements = 60;
  return l;
}

// Stages of the units of tiny_cnn(), whose names say the unit: "l3_…".
std::vector<Stage> stages_of(const Case& c, const Values& initial) {
  std::vector<Stage> stages(c.units.size());
  for (Stage& s : stages) s.versions.resize(1);
  for (const auto& [name, values] : initial) {
    std::int32_t unit = name[1] - '0';
    std::size_t s = 0;
    while (unit >= c.units[s]) unit -= c.units[s++];
    stages[s].versions[0][name] = values;
  }
  return stages;
}

void expect_weights(const std::vector<Stage>& stages, const Results& found) {
  for (const Stage& s : stages) {
    for (const auto& [name, values] : s.versions.back()) {
      ASSERT_TRUE(found.weights.contains(name)) << name;
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(found.weights.at(name).values[i], values[i], kNear) << name << " " << i;
      }
    }
  }
}

InterpretOptions bodies(int count, std::uint64_t seed) {
  InterpretOptions o;
  o.bodies = count;
  o.seed = seed;
  o.learning_rate = kRate;
  return o;
}

class Endless : public testing::TestWithParam<Case> {};

// PipeDream: micro-batch i of a stage with r replicas that sends w ahead meets, forward and
// backward, the weights after step i / r - w; a step sums the r gradients of a round.
TEST_P(Endless, StashingTrainsEveryMicroBatchWithTheWeightsItWentForwardWith) {
  const Case& c = GetParam();
  constexpr int kBodies = 2;
  const OneGpu one;
  std::vector<Stage> stages = stages_of(c, one.initial());
  for (std::int64_t i = 0; i < kBodies * c.micro_batches; ++i) {
    Values weights;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const std::int64_t version = std::max<std::int64_t>(i / c.replicas[s] - c.ahead[s], 0);
      weights.merge(Values(stages[s].versions[static_cast<std::size_t>(version)]));
    }
    const Values gradient = one.gradient(i % c.micro_batches, weights);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      stages[s].add(gradient, 1);
      if ((i + 1) % c.replicas[s] == 0) stages[s].step();
    }
  }
  const Plan plan = sound_plan(layout_of(c, Schedule::PipedreamStash), c.micro_batches);
  for (const std::uint64_t seed : {1, 2, 3}) {
    expect_weights(stages, interpret(plan, bodies(kBodies, seed)));
  }
}

// PipeDream-2BW: W(b + 1) = W(b) - rate f(W(b - 1)), the same delay of one on every stage.
TEST_P(Endless, TwoVersionsDelayEveryGradientByOneIteration) {
  const Case& c = GetParam();
  constexpr int kBodies = 3;
  const OneGpu one;
  std::vector<Stage> stages = stages_of(c, one.initial());
  for (std::size_t b = 0; b < kBodies; ++b) {
    Values weights;
    for (const Stage& s : stages) weights.merge(Values(s.versions[b == 0 ? 0 : b - 1]));
    for (std::int64_t i = 0; i < c.micro_batches; ++i) {
      const Values gradient = one.gradient(i, weights);
      for (Stage& s : stages) s.add(gradient, 1.0 / static_cast<double>(c.micro_batches));
    }
    for (Stage& s : stages) s.step();
  }
  const Plan plan = sound_plan(layout_of(c, Schedule::PipedreamAsync), c.micro_batches);
  for (const std::uint64_t seed : {1, 2, 3}) {
    expect_weights(stages, interpret(plan, bodies(kBodies, seed)));
  }
}

// Ahead: ranks of this stage and later ones but one, over its replicas. {3, 1}: 3 / 3, 0. {2, 3}:
// 4 / 2, 2 / 3. {2, 1, 1}: 3 / 2, 1, 0.
INSTANTIATE_TEST_SUITE_P(
    Layouts, Endless,
    testing::Values(Case{{2, 2}, {1, 1}, {1, 0}, 2},
                    Case{{1, 1, 1, 1}, {1, 1, 1, 1}, {3, 2, 1, 0}, 5},
                    Case{{2, 2}, {3, 1}, {1, 0}, 6}, Case{{2, 2}, {1, 3}, {3, 0}, 6},
                    Case{{2, 2}, {2, 3}, {2, 0}, 12}, Case{{1, 1, 2}, {2, 1, 1}, {1, 1, 0}, 4},
                    Case{{1, 2, 1}, {1, 2, 1}, {3, 1, 0}, 6, Recompute::Full}));

Bytes weights_of(const Plan& plan, std::size_t program) {
  Bytes sum{};
  for (const BufferId id : plan.programs[program].buffers) {
    const Buffer& b = plan.buffers[id.value];
    if (b.memory == MemoryClass::Weights) sum += b.bytes;
  }
  return sum;
}

// Four stages: the second holds its weights and, at one time, two older versions of them. (Nothing
// goes back through the first: its backward pass reads no weights.)
TEST(GraphEndless, StashesOneVersionForEachMicroBatchInFlight) {
  const Case c{{1, 1, 1, 1}, {1, 1, 1, 1}, {}, 8};
  const Plan plan = sound_plan(layout_of(c, Schedule::PipedreamStash), 8);
  for (std::size_t s = 1; s < 4; ++s) {
    const Program& p = plan.programs[s];
    std::int64_t live = 0, most = 0;
    for (const auto* list : {&p.prologue, &p.body}) {
      for (const Instruction& i : *list) {
        if (i.kind != Kind::Alloc && i.kind != Kind::Free) continue;
        const Buffer& b = plan.buffers[i.call];
        if (b.memory == MemoryClass::Weights) {
          live += i.kind == Kind::Alloc ? b.bytes.value : -b.bytes.value;
        }
        most = std::max(most, live);
      }
    }
    Bytes own{};
    for (const BufferId id : p.buffers) {
      const Buffer& b = plan.buffers[id.value];
      if (b.memory == MemoryClass::Weights && b.persistent) own += b.bytes;
    }
    EXPECT_EQ(most, static_cast<std::int64_t>(3 - s) * own.value) << s;
  }
  const Plan twice = sound_plan(layout_of(c, Schedule::PipedreamAsync), 8);
  const Plan flushed = sound_plan(layout_of(c, Schedule::OneFOneB), 8);
  EXPECT_EQ(weights_of(twice, 0), weights_of(flushed, 0) * 2);
}

// A replica works on whole micro-batches, so three of them need a multiple of three; and the last
// stage has received three before the first comes back.
TEST(GraphEndless, SaysWhichBatchesDoNotFit) {
  const Case c{{2, 2}, {3, 1}, {}, 4};
  Layout l = layout_of(c, Schedule::PipedreamStash);
  const auto refusal = [&](std::int64_t micro_batches) {
    const auto outcome = lower_graph(tiny_cnn(), gpus(8), l, job_of(kSamples * micro_batches));
    const auto* no = std::get_if<Infeasible>(&outcome);
    return no != nullptr ? no->reason + "; " + no->fix : "";
  };
  EXPECT_THAT(refusal(4), testing::HasSubstr("multiple of 3"));
  EXPECT_THAT(refusal(3), testing::HasSubstr("at least 6, not 3; set job.global_batch to 12"));
  EXPECT_EQ(refusal(6), "");
  l.recompute = Recompute::AllButLast;
  EXPECT_THAT(refusal(6), testing::HasSubstr("never drains"));
}

}  // namespace
}  // namespace gputwin
