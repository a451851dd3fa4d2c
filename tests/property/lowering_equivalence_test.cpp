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
#include "tests/support/interpreter.h"

namespace gputwin {
namespace {

constexpr double kRelative = 1e-8;  // expected: rounding, 1e-13; the bar of the design is 1e-5

/// Draws that depend on the number of a world alone.
class Draw {
 public:
  explicit Draw(std::uint64_t world) : world_(world) {}
  template <class T>
  T of(std::initializer_list<T> choices) {
    const double u = (seeded_value(world_ + 1, next_++) + 1.0) / 2.0;
    return *(choices.begin() +
             static_cast<std::ptrdiff_t>(u * static_cast<double>(choices.size())));
  }

 private:
  std::uint64_t world_;
  std::int64_t next_ = 0;
};

struct World {
  Transformer model;
  Job job;
  Layout layout;
};

Transformer drawn_model(Draw& draw, std::int64_t sequence) {
  Transformer m;
  m.name = "tiny";
  m.layers = draw.of({2, 3, 4});
  m.hidden = draw.of({8, 16});
  m.heads = draw.of({2, 4});
  m.kv_heads = m.heads / draw.of({1, 2});
  m.head_dim = m.hidden / m.heads;
  m.ffn = draw.of({8, 12, 24});
  m.vocab = draw.of({16, 32});
  m.activation =
      draw.of({Activation::Gelu, Activation::Swiglu, Activation::Gelu, Activation::Swiglu,
               Activation::Relu, Activation::SqRelu, Activation::Geglu});
  m.norm = draw.of({Norm::LayerNorm, Norm::RmsNorm});
  m.positions = draw.of({Positions::Learned, Positions::Rope, Positions::Alibi});
  m.max_positions = m.positions == Positions::Learned ? sequence + draw.of({0, 2}) : 0;
  m.bias = draw.of({true, false});
  m.tied_embeddings = draw.of({true, false});
  return m;
}

std::string label(const World& w) {
  const Layout& l = w.layout;
  const Transformer& m = w.model;
  const auto n = [](const char* key, std::int64_t value) {
    return std::string(" ") + key + std::to_string(value);
  };
  return n("tp", l.tp) + (l.sp ? " sp" : "") + n("cp", l.cp) +
         n("cp_comm", static_cast<int>(l.cp_comm)) + n("pp", l.pp) + n("vpp", l.vpp) +
         n("dp", l.dp) + n("zero", l.zero) + n("group", l.hsdp_group) +
         n("schedule", static_cast<int>(l.schedule)) +
         n("recompute", static_cast<int>(l.recompute)) +
         n("recompute_layers", l.recompute_layers.empty() ? 0 : l.recompute_layers.back()) +
         n("micro_batch", l.micro_batch) + n("bucket", l.bucket_elements) +
         n("overlap_reduce", l.overlap_grad_reduce) + n("overlap_gather", l.overlap_param_gather) +
         n("layers", m.layers) + n("hidden", m.hidden) + n("heads", m.heads) + n("kv", m.kv_heads) +
         n("ffn", m.ffn) + n("vocab", m.vocab) + n("activation", static_cast<int>(m.activation)) +
         n("norm", static_cast<int>(m.norm)) + n("positions", static_cast<int>(m.positions)) +
         n("table", m.max_positions) + n("bias", m.bias) + n("tied", m.tied_embeddings) +
         n("batch", w.job.global_batch) + n("sequence", w.job.sequence) +
         n("attention", static_cast<int>(w.job.attention)) +
         n("params", static_cast<int>(w.job.precision.params)) +
         n("grads", static_cast<int>(w.job.precision.grads)) + n("master", w.job.precision.master) +
         n("optimizer", static_cast<int>(w.job.optimizer)) +
         n("fused_loss", w.job.fused_cross_entropy) +
         n("compute", static_cast<int>(w.job.precision.compute)) + n("lora", w.job.lora_rank) +
         n("tp_overlap", static_cast<int>(l.tp_overlap)) + " " + w.job.stack;
}

struct Grid {
  std::int32_t pp, vpp;
  Schedule schedule;
};

/// Every combination of degrees, schedule and attention kernel; the rest is drawn.
std::vector<World> worlds(Recompute recompute, bool flash) {
  std::vector<World> list;
  const std::vector<Grid> grids{{1, 1, Schedule::None},        {1, 1, Schedule::OneFOneB},
                                {2, 1, Schedule::Gpipe},       {2, 1, Schedule::OneFOneB},
                                {2, 2, Schedule::Interleaved}, {4, 1, Schedule::Gpipe},
                                {4, 1, Schedule::OneFOneB}};
  for (const Grid& grid : grids) {
    for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      for (const auto& [dp, zero] :
           {std::pair{1, 0}, std::pair{1, 1}, std::pair{2, 0}, std::pair{2, 1}}) {
        Draw draw(1000 * static_cast<std::uint64_t>(recompute) + 500 * flash + list.size());
        World w;
        w.job.sequence = draw.of({4, 8});
        w.model = drawn_model(draw, w.job.sequence);
        w.layout.tp = tp;
        w.layout.sp = sp;
        w.layout.pp = grid.pp;
        w.layout.vpp = grid.vpp;
        w.layout.schedule = grid.schedule;
        w.layout.dp = dp;
        w.layout.zero = zero;
        w.layout.recompute = recompute;
        // The last stage has its own count.
        if (recompute == Recompute::Block) {
          w.layout.recompute_layers.assign(static_cast<std::size_t>(grid.pp), draw.of({1, 2}));
          if (grid.pp > 1) w.layout.recompute_layers.back() = 1;
        }
        w.layout.micro_batch = draw.of({1, 2});
        w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
        w.layout.overlap_grad_reduce = draw.of({true, false});
        w.layout.overlap_param_gather = draw.of({true, false});
        if (grid.pp * grid.vpp == 4) w.model.layers = std::max<std::int64_t>(w.model.layers, 4);
        w.job.global_batch = dp * w.layout.micro_batch * draw.of({2, 4});
        w.job.attention = flash ? AttentionKernel::Flash2 : AttentionKernel::Unfused;
        w.job.precision.params = draw.of({DType::Bf16, DType::F32});
        w.job.stack = draw.of<const char*>({"megatron-core", "megatron-lm-2019", "megatron-lm-2021",
                                            "megatron-lm-2022", "torch", "generic"});
        w.job.precision.grads = draw.of({DType::F32, DType::Bf16});
        w.job.precision.master = draw.of({true, true, false});
        w.job.optimizer = draw.of({Optimizer::AdamW, Optimizer::Sgd, Optimizer::Lamb});
        w.job.fused_cross_entropy = draw.of({true, false});
        list.push_back(std::move(w));
      }
    }
  }
  return list;
}

/// Context parallelism of every kind with every other dimension; the rest is drawn.
std::vector<World> context_worlds(ContextComm comm, bool flash) {
  std::vector<World> list;
  const std::vector<Grid> grids{
      {1, 1, Schedule::None}, {2, 1, Schedule::OneFOneB}, {2, 2, Schedule::Interleaved}};
  for (const std::int32_t cp : {2, 4}) {
    for (const Grid& grid : grids) {
      for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        for (const auto& [dp, zero] :
             {std::pair{1, 0}, std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 3}}) {
          Draw draw(10'000 * (1 + static_cast<std::uint64_t>(comm)) + 5000 * flash + list.size());
          World w;
          w.job.sequence = 2 * cp * draw.of({1, 2});
          w.model = drawn_model(draw, w.job.sequence);
          if (w.model.positions == Positions::Alibi) w.model.positions = Positions::Rope;
          w.model.layers = grid.pp * grid.vpp == 4 ? 4 : 2;
          if (comm == ContextComm::AllToAll) {
            w.model.kv_heads = tp * cp;
            w.model.heads = w.model.kv_heads * draw.of({1, 2});
            w.model.head_dim = draw.of({2, 4});
          }
          w.layout.tp = tp;
          w.layout.sp = sp;
          w.layout.cp = cp;
          w.layout.cp_comm = comm;
          w.layout.pp = grid.pp;
          w.layout.vpp = grid.vpp;
          w.layout.schedule = grid.schedule;
          w.layout.dp = dp;
          w.layout.zero = zero;
          w.layout.hsdp_group = zero >= 2 ? draw.of({0, cp}) : 0;
          w.layout.recompute =
              draw.of({Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block});
          if (w.layout.recompute == Recompute::Block) w.layout.recompute_layers = {1};
          w.layout.micro_batch = draw.of({1, 2});
          if (draw.of({true, false})) {
            w.layout.rank_order = {Dim::Tp, Dim::Dp, Dim::Pp, Dim::Cp};
          }
          w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
          w.layout.overlap_grad_reduce = draw.of({true, false});
          w.job.global_batch = dp * w.layout.micro_batch * 2;
          w.job.attention = flash ? AttentionKernel::Flash2 : AttentionKernel::Unfused;
          w.job.stack = draw.of<const char*>(
              {"megatron-core", "megatron-lm-2022", "generic", "torchtitan", "deepspeed"});
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

/// What ZeRO 2 and 3 are combined with: pipelines, tensor parallelism, hybrid sharding, one or
/// several micro-batches; the rest is drawn.
std::vector<World> sharded_worlds(Recompute recompute, bool flash) {
  std::vector<World> list;
  const std::vector<Grid> grids{{1, 1, Schedule::None},
                                {2, 1, Schedule::Gpipe},
                                {2, 1, Schedule::OneFOneB},
                                {2, 2, Schedule::Interleaved}};
  for (const Grid& grid : grids) {
    for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      for (const auto& [dp, group] : {std::pair{2, 0}, std::pair{4, 0}, std::pair{4, 2}}) {
        for (const std::int32_t zero : {2, 3}) {
          Draw draw(50'000 + 1000 * static_cast<std::uint64_t>(recompute) + 500 * flash +
                    list.size());
          World w;
          w.job.sequence = 4;
          w.model = drawn_model(draw, w.job.sequence);
          if (tp == 2) w.model.kv_heads = w.model.heads;
          if (grid.pp * grid.vpp == 4) w.model.layers = 4;
          w.layout = {.tp = tp, .pp = grid.pp, .vpp = grid.vpp, .dp = dp, .sp = sp};
          w.layout.zero = zero;
          w.layout.hsdp_group = group;
          w.layout.schedule = grid.schedule;
          w.layout.recompute = recompute;
          if (recompute == Recompute::Block) w.layout.recompute_layers = {1};
          w.layout.overlap_grad_reduce = draw.of({true, false});
          w.layout.overlap_param_gather = draw.of({true, false});
          w.job.global_batch = dp * (grid.vpp > 1 ? draw.of({2, 4}) : draw.of({1, 3}));
          w.job.attention = flash ? AttentionKernel::Flash2 : AttentionKernel::Unfused;
          w.job.precision.params = draw.of({DType::Bf16, DType::F32});
          w.job.stack = draw.of<const char*>({"torch-fsdp-2024", "torchtitan", "sagemaker-mics",
                                              "deepspeed", "megatron-core", "megatron-lm-2022"});
          w.job.precision.master = draw.of({true, true, false});
          w.job.optimizer = draw.of({Optimizer::AdamW, Optimizer::Sgd});
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

/// What the layers' products read and what is trained, with every other dimension; the rest is
/// drawn.
struct LinearMode {
  const char* name;
  Precision precision{};
  bool adapters = false;
};

std::vector<World> linear_worlds(const LinearMode& mode) {
  std::vector<World> list;
  const std::vector<Grid> grids{
      {1, 1, Schedule::None}, {2, 1, Schedule::OneFOneB}, {2, 2, Schedule::Interleaved}};
  for (const Grid& grid : grids) {
    for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      for (const auto& [dp, zero] :
           {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}, std::pair{2, 3}}) {
        for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
          if (mode.adapters && zero == 3) continue;
          const auto recipe = static_cast<std::uint64_t>(mode.precision.recipe);
          Draw draw(70'000 + 1000 * recipe + 500 * mode.adapters + list.size());
          World w;
          w.job.sequence = draw.of({4, 8});
          w.model = drawn_model(draw, w.job.sequence);
          w.model.layers = grid.pp * grid.vpp == 4 ? 4 : 2;
          w.layout.tp = tp;
          w.layout.sp = sp;
          w.layout.tp_overlap = sp ? draw.of({TpOverlap::None, TpOverlap::Userbuffers,
                                              TpOverlap::Ring, TpOverlap::RingBothWays})
                                   : TpOverlap::None;
          w.layout.pp = grid.pp;
          w.layout.vpp = grid.vpp;
          w.layout.schedule = grid.schedule;
          w.layout.dp = dp;
          w.layout.zero = zero;
          w.layout.recompute = recompute;
          w.layout.micro_batch = draw.of({1, 2});
          w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
          w.job.global_batch = dp * w.layout.micro_batch * 2;
          w.job.attention = draw.of({AttentionKernel::Unfused, AttentionKernel::Flash2});
          w.job.precision = mode.precision;
          if (mode.precision.compute == DType::F8 && zero < 2) {
            w.job.precision.params = draw.of({DType::Bf16, DType::F8});
          }
          w.job.lora_rank = mode.adapters ? draw.of({1, 3}) : 0;
          w.job.lora_qkv_only = draw.of({true, false});
          w.job.stack =
              draw.of<const char*>({"megatron-core", "megatron-lm-2021", "torch", "generic"});
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

/// A schedule with odd and even numbers of stages and few or many micro-batches; the rest is drawn.
std::vector<World> schedule_worlds(Schedule schedule, std::int32_t vpp) {
  std::vector<World> list;
  const std::int32_t ways = placement(schedule) == Placement::TwoWay ? 2 : 1;
  for (const std::int32_t pp : {2, 3, 4}) {
    if (ways == 2 && pp % 2 != 0) continue;
    for (std::int32_t m : {1, 2, 5}) {
      if (schedule == Schedule::DualPipe || schedule == Schedule::PipedreamAsync) m += pp - 1;
      for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        for (const auto& [dp, zero] : {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}}) {
          if (ways == 2 && zero > 0) continue;
          Draw draw(200'000 + 1000 * static_cast<std::uint64_t>(schedule) + list.size());
          World w;
          w.job.sequence = draw.of({4, 8});
          w.model = drawn_model(draw, w.job.sequence);
          if (tp == 2) w.model.kv_heads = w.model.heads;
          w.model.layers = pp * vpp + draw.of({0, 1});
          w.layout = {.tp = tp, .pp = pp, .vpp = vpp, .dp = dp, .sp = sp};
          w.layout.zero = zero;
          w.layout.schedule = schedule;
          w.layout.recompute =
              draw.of({Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block});
          if (w.layout.recompute == Recompute::Block) w.layout.recompute_layers = {1};
          w.layout.micro_batch = draw.of({1, 2});
          w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
          w.layout.overlap_grad_reduce = draw.of({true, false});
          w.job.global_batch = dp * w.layout.micro_batch * m * ways;
          w.job.attention = draw.of({AttentionKernel::Unfused, AttentionKernel::Flash2});
          w.job.stack =
              draw.of<const char*>({"megatron-core", "megatron-lm-2019", "megatron-lm-2021",
                                    "megatron-deepspeed", "torch", "generic"});
          w.job.precision.grads = draw.of({DType::F32, DType::Bf16});
          w.job.optimizer = draw.of({Optimizer::AdamW, Optimizer::Sgd});
          // Codes that keep every value, of gradients and messages.
          const Codec every{.kind = CodecKind::Block, .bits = 8};
          const bool flushes = schedule != Schedule::PipedreamAsync;
          if (dp > 1 && ways == 1 && flushes && draw.of({true, false})) {
            w.layout.compression.reduced = every;
            w.layout.compression.feedback = draw.of({true, false});
            w.layout.compression.sum = draw.of({CompressedSum::Gather, CompressedSum::TwoStep});
          }
          if (draw.of({true, false})) w.layout.compression.sent = every;
          if (draw.of({true, false})) w.layout.compression.sent_back = every;
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

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
