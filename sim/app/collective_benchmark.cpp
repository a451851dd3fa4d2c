#include "sim/app/collective_benchmark.h"

#include <algorithm>

#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/plan_builder.h"
#include "sim/core/verify.h"

namespace gputwin {
namespace {

/// Remembers when each instruction of rank 0 ran.
class Rank0Times final : public EventSink {
 public:
  void op(const OpEvent& e) override {
    if (e.rank.value == 0) times_.push_back(e.end - e.start);
  }
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return true; }
  const std::vector<Ps>& times() const { return times_; }

 private:
  std::vector<Ps> times_;
};

// GPU of each rank: in order, or the first `per_node` of each node.
std::vector<GpuId> gpus_of(const Topology& topology, std::int32_t ranks, std::int32_t per_node) {
  std::vector<GpuId> gpus;
  for (std::uint32_t g = 0; g < static_cast<std::uint32_t>(topology.gpus()); ++g) {
    if (static_cast<std::int32_t>(gpus.size()) == ranks) break;
    if (per_node > 0 && topology.index_in_node(GpuId(g)) >= per_node) continue;
    gpus.emplace_back(g);
  }
  return gpus;
}

// One program for all ranks.
Plan benchmark_plan(OpKind kind, const std::vector<GpuId>& gpus,
                    const std::vector<std::int64_t>& shards) {
  const auto ranks = static_cast<std::int32_t>(gpus.size());
  PlanBuilder builder;
  builder.arena({"gpu", Bytes(0)});
  const std::int64_t n = ranks, largest = *std::max_element(shards.begin(), shards.end()) * n;
  const BufferId buffer =
      builder.buffer({.name = "data", .bytes = Bytes(largest * 4), .persistent = true});
  const BufferId result =
      builder.buffer({.name = "result", .bytes = Bytes(largest * 4), .persistent = true});
  Program program;
  program.name = "rank";
  program.streams = {{"comm", StreamKind::Communication}};
  program.slots = {{"world", Domain::Dp, false}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::int64_t all = shards[i] * n;
    Call call;
    call.op.kind = kind;
    call.op.slot = SlotId(0);
    call.op.dims[0] = all;
    const auto view = [](BufferId b, std::int64_t elements) {
      return View{b, 0, 1, elements, elements, DType::F32};
    };
    const bool in_place = kind == OpKind::AllReduce || kind == OpKind::Broadcast;
    call.reads = {view(buffer, kind == OpKind::AllGather ? shards[i] : all)};
    call.writes = {
        view(in_place ? buffer : result, kind == OpKind::ReduceScatter ? shards[i] : all)};
    const NameId name =
        builder.name({Phase::Reduce, -1, "collective", static_cast<std::int32_t>(i)});
    program.body.push_back(
        {.kind = Kind::Collective, .call = builder.call(call).value, .name = name.value});
  }
  program.buffers = {buffer, result};
  builder.program(std::move(program));
  Communicator world{"world", {}};
  for (std::int32_t r = 0; r < ranks; ++r) {
    world.members.emplace_back(static_cast<std::uint32_t>(r));
    builder.rank({ProgramId(0), gpus[static_cast<std::size_t>(r)], 1.0, {0}});
  }
  builder.communicator(std::move(world));
  return std::move(builder).take();
}

/// Every rank sends to every other: a million flows at 1,024 ranks.
constexpr std::int32_t kMaxAllToAllRanks = 1024;

double bus_factor(OpKind kind, double n) {
  if (kind == OpKind::AllReduce) return 2.0 * (n - 1.0) / n;
  return kind == OpKind::Broadcast ? 1.0 : (n - 1.0) / n;
}

}  // namespace

std::vector<CollectiveMeasurement> measure_collective(OpKind kind, std::int32_t ranks,
                                                      const std::vector<Bytes>& sizes,
                                                      const CostModel& costs,
                                                      const Topology& topology, Executor& executor,
                                                      std::int32_t per_node) {
  if (ranks < 2 || ranks > topology.gpus()) {
    throw InputError("--ranks", "", std::to_string(ranks), "does not fit the cluster",
                     "2 to " + std::to_string(topology.gpus()) + " ranks");
  }
  const std::vector<GpuId> gpus = gpus_of(topology, ranks, per_node);
  if (static_cast<std::int32_t>(gpus.size()) != ranks) {
    throw InputError("--ranks-per-node", "", std::to_string(per_node), "leaves too few GPUs",
                     "at most " + std::to_string(gpus.size()) + " ranks");
  }
  if (kind == OpKind::AllToAll && ranks > kMaxAllToAllRanks) {
    throw InputError("--ranks", "", std::to_string(ranks), "is too many for all-to-all",
                     "at most " + std::to_string(kMaxAllToAllRanks));
  }
  std::vector<std::int64_t> shards;
  for (const Bytes size : sizes) {
    if (size.value < 4 * ranks) {
      throw InputError("--sizes", "", std::to_string(size.value), "is less than a float per rank",
                       "at least " + std::to_string(4 * ranks));
    }
    shards.push_back(size.value / 4 / ranks);  // whole floats on every rank, as nccl-tests
  }
  const Plan plan = benchmark_plan(kind, gpus, shards);
  verify_or_throw(plan, "collective benchmark");
  RunOptions options;
  options.fold = Fold::Off;
  options.transfers = Transfers::AllSimGrid;
  Rank0Times sink;
  const ExecutionOutcome outcome = executor.run(plan, costs, topology, options, &sink);
  GPUTWIN_CHECK(std::holds_alternative<Execution>(outcome),
                "a sequence of collectives cannot deadlock");
  GPUTWIN_CHECK(sink.times().size() == shards.size(), "rank 0 runs every collective once");
  std::vector<GpuId> members;
  for (const Rank& r : plan.ranks) members.push_back(r.gpu);
  std::vector<CollectiveMeasurement> rows;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    CollectiveMeasurement row;
    row.size = Bytes(shards[i] * ranks * 4);
    row.time = to_seconds(sink.times()[i]);
    row.algorithm_GBps = static_cast<double>(row.size.value) / row.time.value / 1e9;
    row.bus_GBps = row.algorithm_GBps * bus_factor(kind, ranks);
    row.schedule = costs.collective(kind, row.size, members);
    row.flows = static_cast<std::int64_t>(row.schedule.edges.size());
    rows.push_back(std::move(row));
  }
  return rows;
}

LinkRate link_rate(const Topology& topology, std::int32_t ranks, std::int32_t per_node) {
  const std::vector<GpuId> gpus = gpus_of(topology, ranks, per_node);
  const NodeType& node = topology.node_type(gpus.front());
  bool network = false;
  for (const GpuId gpu : gpus) {
    network = network || topology.path(gpus.front(), gpu) == PathKind::Network;
  }
  const double pcie = node.pcie.per_gpu.value / 1e9, nvlink = node.intra.per_gpu.value / 1e9;
  if (!network) {
    if (node.intra.kind == IntraKind::Pcie || nvlink <= 0) return {pcie, "PCIe of a GPU"};
    return {nvlink, "NVLink of a GPU"};
  }
  std::int32_t here = 0, adapters = 0, last = -1;
  for (const GpuId gpu : gpus) {
    if (topology.node_of(gpu) != topology.node_of(gpus.front())) break;
    adapters += topology.nic_of(gpu) != last;
    last = topology.nic_of(gpu);
    ++here;
  }
  const double own = std::max(1.0, static_cast<double>(node.nics.per_node) / node.gpus);
  const double each = node.nics.each.value / 1e9 * own;
  if (here == 1 && pcie > 0 && pcie < each) return {pcie, "PCIe path of a GPU"};
  return {each * adapters, here == 1 ? "own adapter of a GPU" : "adapters of a node"};
}

const CollectiveMeasurement* saturation(const std::vector<CollectiveMeasurement>& rows) {
  double most = 0;
  for (const CollectiveMeasurement& r : rows) most = std::max(most, r.bus_GBps);
  const CollectiveMeasurement* from = nullptr;
  for (const CollectiveMeasurement& r : rows) {
    if (r.bus_GBps < 0.9 * most)
      from = nullptr;
    else if (!from)
      from = &r;
  }
  return from;
}

}  // namespace gputwin
