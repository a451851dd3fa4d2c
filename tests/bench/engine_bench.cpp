// How fast the engine replays a training step. Every benchmark checks its result.
//
// The step is shaped like the flagship: 16 pipeline stages, tensor parallelism 8 with two blocking
// all-reduces per layer, data parallel replicas, GPipe order, activations sent over one adapter per
// GPU.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <string>

#include "sim/core/plan_builder.h"
#include "sim/engine/simgrid_executor.h"
#include "tests/support/small_cluster.h"
#include "tests/support/table_cost_model.h"

namespace gputwin::test {
namespace {

constexpr std::uint32_t kTp = 8, kStages = 16;

struct StepShape {
  std::uint32_t nodes = 128, layers = 6, micro_batches = 32;
  bool overlapped_reduction = true;
};

/// Writes the program of one pipeline stage.
class StageWriter {
 public:
  StageWriter(PlanBuilder& builder, std::uint32_t stage, const StepShape& shape)
      : builder_(builder), stage_(stage), shape_(shape) {
    program_.name = "stage" + std::to_string(stage);
    program_.streams = {{"compute", StreamKind::Compute},
                        {"tp", StreamKind::Communication},
                        {"receive", StreamKind::Communication},
                        {"send", StreamKind::Communication},
                        {"dp", StreamKind::Communication}};
    program_.slots = {{"tp", Domain::Tp, false},
                      {"dp", Domain::Dp, false},
                      {"previous", Domain::Pp, true},
                      {"next", Domain::Pp, true}};
  }

  Program write() {
    const bool first = stage_ == 0, last = stage_ + 1 == kStages;
    for (std::uint32_t m = 0; m < shape_.micro_batches; ++m) {
      if (!first) receive(SlotId(2));
      for (std::uint32_t l = 0; l < shape_.layers; ++l) layer(1);
      if (!last) send(SlotId(3));
    }
    for (std::uint32_t m = 0; m < shape_.micro_batches; ++m) {
      if (!last) receive(SlotId(3));
      for (std::uint32_t l = 0; l < shape_.layers; ++l) {
        layer(2);
        if (m + 1 == shape_.micro_batches && shape_.overlapped_reduction) reduce_gradients();
      }
      if (!first) send(SlotId(2));
    }
    program_.events = event_;
    return std::move(program_);
  }

 private:
  void add(Kind kind, std::uint8_t stream, const Op& op) {
    program_.body.push_back({.kind = kind,
                             .stream = stream,
                             .call = builder_.call({op, {}, {}}).value,
                             .name = builder_.name({Phase::Forward, 0, "op", 0}).value});
  }
  void edge(std::uint8_t from, std::uint8_t to) {
    program_.body.push_back({.kind = Kind::Record, .stream = from, .event = event_});
    program_.body.push_back({.kind = Kind::Wait, .stream = to, .event = event_++});
  }
  void kernel(std::uint32_t which) {
    Op op;
    op.flops = Flops(2e7 + 1e6 * which + 1e5 * stage_);  // 20 us and more at 1 TFLOP/s
    add(Kind::Kernel, 0, op);
  }
  void all_reduce(std::uint8_t stream, SlotId slot, std::int64_t elements) {
    Op op;
    op.kind = OpKind::AllReduce;
    op.slot = slot;
    op.dims[0] = elements;
    edge(0, stream);
    add(Kind::Collective, stream, op);
  }
  void layer(std::uint32_t times) {
    for (std::uint32_t t = 0; t < times; ++t) {
      for (std::uint32_t k = 0; k < 5; ++k) kernel(k);
      all_reduce(1, SlotId(0), 1'000'000);
      edge(1, 0);
      for (std::uint32_t k = 5; k < 9; ++k) kernel(k);
      all_reduce(1, SlotId(0), 1'000'000);
      edge(1, 0);
    }
  }
  void reduce_gradients() { all_reduce(4, SlotId(1), 20'000'000); }
  void receive(SlotId slot) {
    transfer(Kind::Recv, 2, slot);
    edge(2, 0);
  }
  void send(SlotId slot) {
    edge(0, 3);
    transfer(Kind::Send, 3, slot);
  }
  void transfer(Kind kind, std::uint8_t stream, SlotId slot) {
    Op op;
    op.kind = kind == Kind::Send ? OpKind::SendTo : OpKind::RecvFrom;
    op.slot = slot;
    op.dims[0] = 6'000'000;
    add(kind, stream, op);
  }

  PlanBuilder& builder_;
  std::uint32_t stage_;
  StepShape shape_;
  Program program_;
  std::uint32_t event_ = 0;
};

Plan training_step(const StepShape& shape) {
  PlanBuilder builder;
  for (std::uint32_t s = 0; s < kStages; ++s) {
    builder.program(StageWriter(builder, s, shape).write());
  }
  const std::uint32_t ranks = shape.nodes * kTp, replicas = shape.nodes / kStages;
  // Rank order: tp fastest, then dp, then pp, so that a stage is a run of nodes.
  for (std::uint32_t node = 0; node < shape.nodes; ++node) {
    Communicator tp{"tp" + std::to_string(node), {}};
    for (std::uint32_t g = 0; g < kTp; ++g) tp.members.emplace_back(node * kTp + g);
    builder.communicator(tp);
  }
  for (std::uint32_t s = 0; s < kStages; ++s) {
    for (std::uint32_t g = 0; g < kTp; ++g) {
      Communicator dp{"dp" + std::to_string(s * kTp + g), {}};
      for (std::uint32_t d = 0; d < replicas; ++d) {
        dp.members.emplace_back((s * replicas + d) * kTp + g);
      }
      builder.communicator(dp);
    }
  }
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const std::uint32_t node = r / kTp, stage = node / replicas, step = replicas * kTp;
    Rank rank;
    rank.program = ProgramId(stage);
    rank.gpu = GpuId(r);
    rank.slots = {node, shape.nodes + stage * kTp + r % kTp, stage > 0 ? r - step : r,
                  stage + 1 < kStages ? r + step : r};
    builder.rank(rank);
  }
  return std::move(builder).take();
}

TableCostModel costs() {
  TableCostModel model;
  model.latency = Seconds(10e-6);
  model.compute_slowdown = 1.1;
  model.host_cost = {.launch = Seconds(5e-6), .collective_launch = Seconds(8e-6)};
  return model;
}

void replay(benchmark::State& state, const StepShape& shape, RunOptions options) {
  const Plan plan = training_step(shape);
  const Topology topology(
      small_cluster({.nodes = static_cast<std::int32_t>(shape.nodes), .gpus = 8, .nics = 8}));
  const TableCostModel model = costs();
  SimgridExecutor executor;
  static Ps expected = 0;  // all ways to run one step give one answer
  Execution last;
  for (auto _ : state) {
    const ExecutionOutcome outcome = executor.run(plan, model, topology, options, nullptr);
    if (!std::holds_alternative<Execution>(outcome)) return state.SkipWithError("no end");
    last = std::get<Execution>(outcome);
  }
  const bool flagship = shape.nodes == 128;
  if (flagship && expected == 0) expected = last.iteration;
  if (flagship && std::abs(last.iteration - expected) > 1000) state.SkipWithError("other time");
  if (last.engine.simulated_ranks == static_cast<std::int32_t>(plan.ranks.size()) &&
      last.engine.tasks != plan.tasks_per_body()) {
    state.SkipWithError("other tasks");
  }
  const auto runs = static_cast<double>(state.iterations());
  state.counters["tasks"] = static_cast<double>(last.engine.tasks);
  // Per second of CPU time.
  state.counters["tasks/s"] = benchmark::Counter(static_cast<double>(last.engine.tasks) * runs,
                                                 benchmark::Counter::kIsRate);
  state.counters["flows"] = static_cast<double>(last.engine.flows);
  state.counters["simgrid_flows"] = static_cast<double>(last.engine.simgrid_flows);
  state.counters["rss_MB"] = static_cast<double>(last.engine.peak_rss_bytes) / 1e6;
  state.counters["sim_s"] = to_seconds(last.iteration).value;
}

void every_rank(benchmark::State& state) { replay(state, {}, {.fold = Fold::Off}); }
BENCHMARK(every_rank)->Unit(benchmark::kMillisecond)->Iterations(1);

void every_rank_by_calendar(benchmark::State& state) {
  replay(state, {}, {.fold = Fold::Off, .advance = Advance::Calendar});
}
BENCHMARK(every_rank_by_calendar)->Unit(benchmark::kMillisecond)->Iterations(1);

void folded(benchmark::State& state) { replay(state, {}, {}); }
BENCHMARK(folded)->Unit(benchmark::kMillisecond)->Iterations(1);

/// Small enough for callgrind.
void small_step(benchmark::State& state) {
  replay(state, {.nodes = 16, .layers = 1, .micro_batches = 8}, {.fold = Fold::Off});
}
BENCHMARK(small_step)->Unit(benchmark::kMillisecond)->Iterations(1);

/// 2,048 nodes, fewer layers and micro-batches.
void every_rank_of_16384(benchmark::State& state) {
  replay(state, {.nodes = 2048, .layers = 4, .micro_batches = 16}, {.fold = Fold::Off});
}
BENCHMARK(every_rank_of_16384)->Unit(benchmark::kMillisecond)->Iterations(1);

/// 1 GiB ring all-reduce of 128 x 8 ranks, every edge a SimGrid flow.
void ring_all_reduce_of_1_GiB(benchmark::State& state) {
  constexpr std::int32_t kNodes = 128, kGpus = 8;
  constexpr std::uint32_t kRanks = kNodes * kGpus;
  PlanBuilder builder;
  Op op;
  op.kind = OpKind::AllReduce;
  op.slot = SlotId(0);
  op.dims[0] = (1 << 30) / 4;
  Program program;
  program.name = "all";
  program.streams = {{"comm", StreamKind::Communication}};
  program.slots = {{"dp", Domain::Dp, false}};
  program.body.push_back({.kind = Kind::Collective,
                          .call = builder.call({op, {}, {}}).value,
                          .name = builder.name({Phase::Reduce, 0, "all_reduce", 0}).value});
  builder.program(program);
  Communicator world{"world", {}};
  for (std::uint32_t r = 0; r < kRanks; ++r) world.members.emplace_back(r);
  builder.communicator(world);
  for (std::uint32_t r = 0; r < kRanks; ++r) builder.rank({ProgramId(0), GpuId(r), 1.0, {0}});
  const Plan plan = std::move(builder).take();
  const Topology topology(small_cluster({.nodes = kNodes, .gpus = kGpus, .nics = kGpus}));
  const RunOptions options{.fold = Fold::Off, .transfers = Transfers::AllSimGrid};
  SimgridExecutor executor;
  const TableCostModel model;
  for (auto _ : state) {
    const auto run = std::get<Execution>(executor.run(plan, model, topology, options, nullptr));
    // 2 x 1023 parts of 1 MiB over the edge between two nodes, 80 ps per byte.
    const Ps expected = std::int64_t{2 * 1023} * (1 << 20) * 80;
    if (std::abs(run.iteration - expected) > 1000) state.SkipWithError("other time");
    if (run.engine.simgrid_flows != kRanks) state.SkipWithError("other flows");
  }
}
BENCHMARK(ring_all_reduce_of_1_GiB)->Unit(benchmark::kMillisecond)->Iterations(3);

}  // namespace
}  // namespace gputwin::test

BENCHMARK_MAIN();
