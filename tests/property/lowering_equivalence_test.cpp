// Every lowering, schedule and recomputation mode trains the same model: loss, gradients and
// updated weights of tiny Transformers equal those of the plan for one rank, which in turn equals
// numerical differentiation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "sim/core/verify.h"
#include "strategies/strategy.h"
#include "tests/property/lowering_worlds.h"
#include "tests/support/interpreter.h"

namespace gputwin {
namespace {

constexpr double kRelative = 1e-8;  // expected: rounding, 1e-13; the bar of the design is 1e-5

std::optional<Plan> plan_of(const World& world) {
  Cluster cluster;
  cluster.name = "one_node";
  NodeGroup group;
  group.type.device = "a100_80gb";
  group.type.gpus = world.layout.ranks();
  group.count = 1;
  cluster.groups.push_back(group);
  auto outcome = make_plan(world.model, cluster, world.layout, world.job);
  if (std::holds_alternative<Infeasible>(outcome)) return std::nullopt;
  return std::move(std::get<Plan>(outcome));
}

/// The same job on one rank, micro-batches of one sample.
World on_one_rank(World world) {
  world.layout = Layout{};
  world.layout.schedule = Schedule::None;
  world.job.attention = AttentionKernel::Unfused;
  world.job.precision = Precision{};
  world.job.fused_cross_entropy = false;
  world.job.stack = "megatron-core";
  return world;
}

/// Two bodies, so that the second one shows whether every rank got the updated weights. Gains and
/// biases off their usual 1 and 0, a low clip and a large epsilon, so that no mistake hides behind
/// them.
InterpretOptions options(std::uint64_t seed) {
  InterpretOptions o;
  o.bodies = 2;
  o.seed = seed;
  o.generic_constants = true;
  o.clip_norm = 0.1;
  o.adam_epsilon = 1e-2;
  o.learning_rate = 0.05;
  return o;
}

void expect_equal(const std::map<std::string, Tensor>& found,
                  const std::map<std::string, Tensor>& expected, const std::string& what) {
  EXPECT_EQ(found.size(), expected.size()) << what;
  for (const auto& [name, tensor] : expected) {
    const auto it = found.find(name);
    if (it == found.end()) {
      ADD_FAILURE() << "no " << what << " " << name;
      continue;
    }
    ASSERT_EQ(it->second.values.size(), tensor.values.size()) << what << " " << name;
    double scale = 1e-6,
           worst = 0.0;  // gradients that vanish by symmetry (key biases) are rounding noise
    for (std::size_t k = 0; k < tensor.values.size(); ++k) {
      scale = std::max(scale, std::abs(tensor.values[k]));
      worst = std::max(worst, std::abs(tensor.values[k] - it->second.values[k]));
    }
    EXPECT_LE(worst / scale, kRelative) << what << " " << name;
  }
}

/// Post-validation takes its step with a part of the norm and redoes it where the whole would have
/// clipped: plans show the case in which it does not. PipeDream clips by stage, and from its second
/// body on trains what was begun with older weights: the first is that of one rank.
InterpretOptions options(std::uint64_t seed, Schedule schedule) {
  InterpretOptions o = options(seed);
  const bool endless = schedule == Schedule::PipedreamAsync;
  if (validates_later(schedule) || endless) o.clip_norm = 1e30;
  if (endless) o.bodies = 1;
  return o;
}

/// Runs the worlds that are feasible beside their model on one rank; returns how many.
int expect_same_as_one_rank(const std::vector<World>& list) {
  int ran = 0;
  for (std::size_t number = 0; number < list.size(); ++number) {
    SCOPED_TRACE(std::to_string(number) + ":" + label(list[number]));
    const auto plan = plan_of(list[number]);
    if (!plan) continue;
    ++ran;
    const auto alone = plan_of(on_one_rank(list[number]));
    if (!alone) {
      ADD_FAILURE() << "infeasible on one rank";
      continue;
    }
    try {
      const Schedule schedule = list[number].layout.schedule;
      const Results expected = interpret(*alone, options(0, schedule));
      const Results found = interpret(*plan, options(number, schedule));
      if (schedule == Schedule::PipedreamAsync) {  // later bodies meet older weights, and no fault
        InterpretOptions more = options(number, schedule);
        more.bodies = 2;
        interpret(*plan, more);
      }
      EXPECT_NEAR(found.loss, expected.loss, kRelative * std::abs(expected.loss));
      expect_equal(found.gradients, expected.gradients, "gradient");
      expect_equal(found.weights, expected.weights, "weight");
    } catch (const Fault& fault) {
      ADD_FAILURE() << fault.what();
    }
  }
  return ran;
}

struct Mode {
  Recompute recompute;
  bool flash;
};

class LoweringEquivalence : public testing::TestWithParam<Mode> {};

TEST_P(LoweringEquivalence, TrainsTheSameModelAsOneRank) {
  const auto list = worlds(GetParam().recompute, GetParam().flash);
  // What remains is infeasible: one key head on two tensor-parallel ranks, an odd number of
  // micro-batches.
  EXPECT_GE(expect_same_as_one_rank(list), static_cast<int>(list.size()) * 2 / 3);
}

TEST_P(LoweringEquivalence, TrainsTheSameModelWithGradientsAndParametersSharded) {
  const auto list = sharded_worlds(GetParam().recompute, GetParam().flash);
  EXPECT_EQ(expect_same_as_one_rank(list), static_cast<int>(list.size()));
}

INSTANTIATE_TEST_SUITE_P(Modes, LoweringEquivalence,
                         testing::Values(Mode{Recompute::None, false}, Mode{Recompute::None, true},
                                         Mode{Recompute::Selective, false},
                                         Mode{Recompute::Selective, true},
                                         Mode{Recompute::Full, false}, Mode{Recompute::Full, true},
                                         Mode{Recompute::Block, false},
                                         Mode{Recompute::Block, true}),
                         [](const auto& param) {
                           return std::string(std::array{"None", "Selective", "Full", "Block"}.at(
                                      static_cast<std::size_t>(param.param.recompute))) +
                                  (param.param.flash ? "Flash" : "Unfused");
                         });

struct ScheduleMode {
  const char* name;
  Schedule schedule;
  std::int32_t vpp = 1;
};

class ScheduleEquivalence : public testing::TestWithParam<ScheduleMode> {};

TEST_P(ScheduleEquivalence, TrainsTheSameModelAsOneRank) {
  const auto list = schedule_worlds(GetParam().schedule, GetParam().vpp);
  EXPECT_GE(expect_same_as_one_rank(list), static_cast<int>(list.size()) * 2 / 3)
      << "of " << list.size();
}

// Conflicting accesses are ordered, and no cycle over streams and ranks.
TEST_P(ScheduleEquivalence, RunsWithoutRacesAndDeadlocks) {
  for (const World& world : schedule_worlds(GetParam().schedule, GetParam().vpp)) {
    const auto plan = plan_of(world);
    if (!plan) continue;
    const auto violations = verify(*plan, Depth::Races);
    EXPECT_TRUE(violations.empty())
        << label(world) << "\n"
        << violations[0].rule << " " << violations[0].where << " " << violations[0].what;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, ScheduleEquivalence,
                         testing::Values(ScheduleMode{"ZbH1", Schedule::ZbH1},
                                         ScheduleMode{"ZbH2", Schedule::ZbH2},
                                         ScheduleMode{"Zb1p", Schedule::Zb1p},
                                         ScheduleMode{"Zb2p", Schedule::Zb2p},
                                         ScheduleMode{"ZbV", Schedule::ZbV, 2},
                                         ScheduleMode{"HanayoOneWave", Schedule::Hanayo, 2},
                                         ScheduleMode{"HanayoTwoWaves", Schedule::Hanayo, 4},
                                         ScheduleMode{"DualPipe", Schedule::DualPipe},
                                         ScheduleMode{"Chimera", Schedule::Chimera},
                                         ScheduleMode{"PipedreamAsync", Schedule::PipedreamAsync}),
                         [](const auto& param) { return std::string(param.param.name); });

class LinearEquivalence : public testing::TestWithParam<LinearMode> {};

TEST_P(LinearEquivalence, TrainsTheSameModelAsOneRank) {
  const auto list = linear_worlds(GetParam());
  EXPECT_GE(expect_same_as_one_rank(list), static_cast<int>(list.size()) * 2 / 3)
      << "of " << list.size();
}

Precision narrow(DType compute, Recipe recipe) { return {.compute = compute, .recipe = recipe}; }

INSTANTIATE_TEST_SUITE_P(
    Formats, LinearEquivalence,
    testing::Values(LinearMode{"Wide"}, LinearMode{"WideAdapters", {}, true},
                    LinearMode{"Delayed", narrow(DType::F8, Recipe::Delayed)},
                    LinearMode{"Current", narrow(DType::F8, Recipe::Current)},
                    LinearMode{"Blockwise", narrow(DType::F8, Recipe::Blockwise)},
                    LinearMode{"Rowwise", narrow(DType::F8, Recipe::Rowwise)},
                    LinearMode{"Mx", narrow(DType::Mxf8, Recipe::Mx)},
                    LinearMode{"Nvfp4", narrow(DType::Nvf4, Recipe::Nvfp4)},
                    LinearMode{"DelayedAdapters", narrow(DType::F8, Recipe::Delayed), true},
                    LinearMode{"MxAdapters", narrow(DType::Mxf8, Recipe::Mx), true}),
    [](const auto& param) { return std::string(param.param.name); });

struct ContextMode {
  ContextComm comm;
  bool flash;
};

class ContextEquivalence : public testing::TestWithParam<ContextMode> {};

TEST_P(ContextEquivalence, TrainsTheSameModelAsOneRank) {
  const auto list = context_worlds(GetParam().comm, GetParam().flash);
  EXPECT_GE(expect_same_as_one_rank(list), static_cast<int>(list.size()) * 2 / 3)
      << "of " << list.size();
}

INSTANTIATE_TEST_SUITE_P(Exchanges, ContextEquivalence,
                         testing::Values(ContextMode{ContextComm::AllGather, false},
                                         ContextMode{ContextComm::AllGather, true},
                                         ContextMode{ContextComm::Ring, true},
                                         ContextMode{ContextComm::AllToAll, false},
                                         ContextMode{ContextComm::AllToAll, true}),
                         [](const auto& param) {
                           return std::string(std::array{"AllGather", "Ring", "AllToAll"}.at(
                                      static_cast<std::size_t>(param.param.comm))) +
                                  (param.param.flash ? "Flash" : "Unfused");
                         });

World everything_at_once() {
  World w = worlds(Recompute::Full, false).at(0);
  w.model.layers = 4;
  w.model.kv_heads = w.model.heads = 4;
  w.model.head_dim = w.model.hidden / 4;
  w.model.tied_embeddings = true;
  w.layout.tp = w.layout.pp = w.layout.vpp = w.layout.dp = 2;
  w.layout.sp = true;
  w.layout.zero = 1;
  w.layout.schedule = Schedule::Interleaved;
  w.layout.overlap_grad_reduce = true;
  w.layout.bucket_elements = 300;
  w.job.global_batch = 2 * w.layout.micro_batch * 4;
  return w;
}

TEST(EverythingAtOnce, IsTheSameInEveryOrderOfEvents) {
  const World world = everything_at_once();
  const auto plan = plan_of(world), alone = plan_of(on_one_rank(world));
  ASSERT_TRUE(plan && alone);
  const Results expected = interpret(*alone, options(0));
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const Results found = interpret(*plan, options(seed));
    EXPECT_NEAR(found.loss, expected.loss, kRelative * std::abs(expected.loss));
    expect_equal(found.gradients, expected.gradients, "gradient");
    expect_equal(found.weights, expected.weights, "weight");
  }
}

/// True if a run of the plan differs from `expected` or faults, under one of a few orders of
/// events.
bool detected(const Plan& plan, const Results& expected) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    try {
      const Results found = interpret(plan, options(seed));
      if (!(std::abs(found.loss - expected.loss) <= kRelative * expected.loss)) return true;
      for (const auto& [name, tensor] : expected.gradients) {
        const auto& values = found.gradients.at(name).values;
        for (std::size_t k = 0; k < values.size(); ++k) {
          if (!(std::abs(values[k] - tensor.values[k]) <= 1e-6)) return true;
        }
      }
    } catch (const Fault&) {
      return true;
    }
  }
  return false;
}

/// Plants every fault of a kind and returns how many: without the Waits of any one stream of any
/// one program, and without any one kind of collective or message, the plan no longer trains the
/// same model.
int planted_and_detected(const World& world) {
  const auto plan = plan_of(world), alone = plan_of(on_one_rank(world));
  EXPECT_TRUE(plan && alone);
  if (!plan || !alone) return 0;
  const Results expected = interpret(*alone, options(0));
  EXPECT_FALSE(detected(*plan, expected));
  int planted = 0;
  for (std::size_t p = 0; p < plan->programs.size(); ++p) {
    for (std::size_t stream = 0; stream < plan->programs[p].streams.size(); ++stream) {
      Plan broken = *plan;
      const auto erased = std::erase_if(broken.programs[p].body, [&](const Instruction& i) {
        return i.kind == Kind::Wait && i.stream == stream;
      });
      if (erased == 0) continue;
      ++planted;
      EXPECT_TRUE(detected(broken, expected)) << plan->programs[p].streams[stream].name;
    }
  }
  std::set<std::string> ops;
  const auto communicates = [](const Instruction& i) {
    return i.kind == Kind::Collective || i.kind == Kind::Send || i.kind == Kind::Recv;
  };
  for (const Instruction& i : plan->programs[0].body) {
    if (communicates(i)) ops.insert(plan->names[i.name].op);
  }
  for (const std::string& op : ops) {
    Plan broken = *plan;
    for (Program& program : broken.programs) {
      std::erase_if(program.body, [&](const Instruction& i) {
        return communicates(i) && plan->names[i.name].op == op;
      });
    }
    ++planted;
    EXPECT_TRUE(detected(broken, expected)) << op;
  }
  return planted;
}

// What this suite is worth.
TEST(EverythingAtOnce, NeedsItsWaitsAndItsCollectives) {
  EXPECT_GE(planted_and_detected(everything_at_once()), 12);
}

// The same of context parallelism over four ranks: the waits of the compute stream and of one or
// two streams for the exchange, and its collectives or messages.
TEST(ContextParallel, NeedsItsWaitsAndItsExchanges) {
  for (const auto& [comm, at_least] :
       {std::pair{ContextComm::AllGather, 5}, std::pair{ContextComm::Ring, 8},
        std::pair{ContextComm::AllToAll, 7}}) {
    World world = context_worlds(comm, true).at(0);
    world.model.kv_heads = world.model.heads = 4;
    world.model.head_dim = 2;
    world.layout.cp = 4;
    world.layout.micro_batch = 2;
    world.layout.recompute = Recompute::None;
    world.job.sequence = 8;
    world.job.global_batch = 4;
    world.model.positions = Positions::Rope;
    world.model.max_positions = 0;
    SCOPED_TRACE(label(world));
    EXPECT_GE(planted_and_detected(world), at_least);
  }
}

// The chain itself is right: gradients of the one-rank plan equal differences of its loss.
TEST(OneRankPlan, GradientsAreSlopesOfTheLoss) {
  constexpr double kStep = 1e-5;
  for (std::uint64_t number = 0; number < 12; ++number) {
    Draw draw(90'000 + number);
    World world;
    world.job.sequence = 4;
    world.job.global_batch = 2;
    world.model = drawn_model(draw, world.job.sequence);
    world.model.layers = 2;
    world.job.lora_rank = number % 4 == 3 ? 16 : 0;  // of scale 2
    world = on_one_rank(world);
    SCOPED_TRACE(label(world));
    const auto plan = plan_of(world);
    ASSERT_TRUE(plan);
    InterpretOptions plain;
    plain.generic_constants = true;
    const Results results = interpret(*plan, plain);
    for (const auto& [name, gradient] : results.gradients) {
      for (const int sample : {0, 1}) {
        const std::int64_t row = sample == 0 ? 0 : gradient.rows / 2;
        const std::int64_t column = sample == 0 ? 0 : gradient.cols - 1;
        InterpretOptions above = plain, below = plain;
        above.nudges = {{name, row, column, kStep}};
        below.nudges = {{name, row, column, -kStep}};
        const double slope =
            (interpret(*plan, above).loss - interpret(*plan, below).loss) / (2 * kStep);
        EXPECT_NEAR(gradient.at(row, column), slope, 1e-7) << name << " " << row << " " << column;
      }
    }
  }
}

}  // namespace
}  // namespace gputwin
