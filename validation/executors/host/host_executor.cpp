#include "validation/executors/host/host_executor.h"

#include <unistd.h>

#include <algorithm>

#include "sim/core/memory_profile.h"

namespace gputwin::executors {

namespace {

using HostWalker = Walker<HostDevice>;

std::int64_t stays(const Buffer& buffer, const Program& program) {
  return buffer.framed ? std::int64_t{program.frames} : 1;
}

/// The world of the interpreter, for initial values and the read-out.
interpreted::World initial_world(const Plan& plan, const InterpretOptions& options) {
  interpreted::World world{plan, options, {}, {}, {}};
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    interpreted::RankState rank;
    rank.id = RankId(r);
    world.ranks.push_back(std::move(rank));
  }
  interpreted::set_initial_values(world);
  interpreted::share_out_norm(world);
  return world;
}

View whole(const Plan& plan, BufferId id) {
  const Buffer& buffer = plan.buffers[id.value];
  const std::int64_t elements = buffer.bytes.value * 8 / bits(buffer.dtype);
  return {id, 0, 1, elements, elements, buffer.dtype};
}

void write_initial_values(const interpreted::RankState& rank, const Plan& plan,
                          const HostWalker& walker) {
  for (const auto& [key, memory] : walker.live()) {
    const View view = whole(plan, BufferId(key.first));
    store(HostOperand{memory, view}, rank.memory.at(key)->load(view));
  }
}

void read_back(interpreted::RankState& rank, const Plan& plan, const HostWalker& walker) {
  for (const auto& [key, memory] : walker.live()) {
    const View view = whole(plan, BufferId(key.first));
    const auto block = rank.memory.find(key);
    if (block != rank.memory.end()) {
      block->second->store(view, load<double>(HostOperand{memory, view}));
    }
  }
}

/// Walks every rank on a thread of its own; returns when all have ended or the machine stopped.
void walk_all(HostMachine& machine, std::vector<std::unique_ptr<HostWalker>>& walkers, int bodies) {
  std::vector<std::thread> hosts;
  for (auto& walker : walkers) {
    hosts.emplace_back([&machine, &walker, bodies] {
      try {
        walker->run(bodies);
      } catch (const Stopped&) {
        return;
      } catch (...) {
        machine.fail(std::current_exception());
      }
    });
  }
  for (std::thread& host : hosts) host.join();
}

void tell(EventSink* sink, const std::vector<Ran>& ran) {
  if (sink == nullptr) return;
  for (const Ran& r : ran) {
    if (sink->wants_events() && r.body >= 0) {
      sink->op({r.rank, r.instruction, static_cast<std::uint32_t>(r.body), r.start, r.end});
    }
  }
  sink->progress(1.0);
}

}  // namespace

Bytes host_bytes(const Plan& plan) {
  constexpr std::int64_t kDoublePerByte = 8, kEntry = 64;  // of the interpreter's initial values
  std::int64_t total = 0;
  for (const Rank& rank : plan.ranks) {
    const Program& program = plan.programs[rank.program.value];
    for (std::uint32_t arena = 0; arena < plan.arenas.size(); ++arena) {
      total += memory_profile(plan, program, ArenaId(arena), Bytes(1)).peak.value;
    }
    for (const BufferId id : program.buffers) {
      const Buffer& buffer = plan.buffers[id.value];
      if (buffer.persistent) total += kDoublePerByte * buffer.bytes.value * stays(buffer, program);
    }
    for (const Parameter& p : program.parameters) total += 4 * kEntry * p.rows * p.cols;
  }
  return Bytes(total);
}

Bytes host_memory_limit() {
  return Bytes(std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE) / 2);
}

std::optional<Infeasible> host_obstacle(const Plan& plan, Bytes limit) {
  for (const Buffer& buffer : plan.buffers) {
    if (runs_on_host(buffer.dtype)) continue;
    return Infeasible{"the host executor has no numbers in the format of buffer " + buffer.name,
                      {},
                      "job.precision.compute=bf16 or fp32"};
  }
  for (const Call& call : plan.calls) {
    const OpKind kind = call.op.kind;
    const bool undefined = kind == OpKind::Opaque || is_recurrent(kind);
    if (!undefined && call.op.dropout == 0.0f) continue;
    return Infeasible{undefined ? "the host executor has no definition of a kernel of this plan"
                                : "the host executor has no dropout",
                      {},
                      undefined ? "a transformer without opaque layers" : "dropout 0"};
  }
  const Bytes needed = host_bytes(plan);
  if (needed <= limit) return std::nullopt;
  return Infeasible{"the host executor needs " + std::to_string(needed.value) + " bytes for " +
                        std::to_string(plan.ranks.size()) + " ranks, this computer gives " +
                        std::to_string(limit.value),
                    needed - limit,
                    "a smaller model (workload.layers, workload.hidden, workload.vocab), "
                    "job.sequence or job.global_batch"};
}

ExecutionOutcome HostExecutor::run(const Plan& plan, const CostModel&, const Topology&,
                                   const RunOptions&, EventSink* sink) {
  return run(plan, sink);
}

ExecutionOutcome HostExecutor::run(const Plan& plan, EventSink* sink) {
  use_one_blas_thread();
  interpreted::World world = initial_world(plan, options_.values);
  HostMachine machine(world, options_);
  std::vector<std::unique_ptr<HostDevice>> devices;
  std::vector<std::unique_ptr<HostWalker>> walkers;
  for (const interpreted::RankState& rank : world.ranks) {
    devices.push_back(std::make_unique<HostDevice>(machine, rank.id));
    walkers.push_back(std::make_unique<HostWalker>(plan, rank.id, *devices.back()));
    write_initial_values(rank, plan, *walkers.back());
  }
  walk_all(machine, walkers, options_.bodies);
  values_ = {};
  for (const auto& device : devices) values_.peak += Bytes(device->peak_bytes());
  devices.clear();  // ends the streams
  if (machine.error()) std::rethrow_exception(machine.error());
  if (machine.deadlock()) return *machine.deadlock();

  for (std::size_t r = 0; r < walkers.size(); ++r) read_back(world.ranks[r], plan, *walkers[r]);
  if (options_.read_values) {
    for (std::size_t r = 0; r < walkers.size(); ++r) world.ranks[r].live.clear();
    values_.results = interpreted::read_out(world);
  }
  values_.loss = interpreted::total_loss(world);
  std::vector<Ran> ran = machine.ran();
  std::stable_sort(ran.begin(), ran.end(),
                   [](const Ran& a, const Ran& b) { return a.end < b.end; });
  tell(sink, ran);
  return host_figures(plan, ran, options_.bodies, values_.iterations);
}

}  // namespace gputwin::executors
