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

/// Everything that threads of a run touch. If one of them never returns it must stay.
struct Session {
  Session(const Plan& given, const HostOptions& asked)
      : plan(given), options(asked), world(interpreted::initial_world(plan, options.values)) {
    const std::vector<int> usable = usable_cores();
    for (const interpreted::RankState& rank : world.ranks) {
      const CoreSet cores = cores_of(devices.size(), world.ranks.size(), usable);
      devices.push_back(std::make_unique<HostDevice>(machine, rank.id, cores));
      streams += devices.back()->threads();
      walkers.push_back(std::make_unique<HostWalker>(plan, rank.id, *devices.back()));
      write_initial_values(rank, plan, walkers.back()->live(),
                           [](const HostMemory& memory, const View& view, const auto& values) {
                             store(HostOperand{memory, view}, values);
                           });
    }
  }

  const Plan plan;
  const HostOptions options;
  interpreted::World world;
  HostMachine machine{world, options};
  std::vector<std::unique_ptr<HostDevice>> devices;
  std::vector<std::unique_ptr<HostWalker>> walkers;
  std::size_t streams = 0;
};

/// Walks every rank on a thread of its own; returns when all have ended or the machine stopped.
/// False: it was cancelled.
bool walk_all(Session& session) {
  std::vector<std::thread> hosts;
  HostMachine& machine = session.machine;
  for (std::size_t rank = 0; rank < session.walkers.size(); ++rank) {
    hosts.emplace_back([&machine, &walker = session.walkers[rank],
                        &cores = session.devices[rank]->cores(), bodies = session.options.bodies] {
      stay_on(cores.others);
      try {
        walker->run(bodies);
      } catch (const Stopped&) {
      } catch (...) {
        machine.fail(std::current_exception());
      }
      machine.left(HostMachine::Who::Host);
    });
  }
  bool cancelled = false;
  const HostOptions& options = session.options;
  const auto begin = Clock::now();
  machine.all_left(HostMachine::Who::Host, hosts.size(), std::nullopt, [&](int begun) {
    const double part = static_cast<double>(begun) / (options.bodies + 1);
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    if (options.time_limit_s > 0 && spent > options.time_limit_s) cancelled = true;
    if (options.progress && !options.progress(part)) cancelled = true;
    return !cancelled;
  });
  for (std::thread& host : hosts) host.join();
  return !cancelled;
}

/// Ends the streams' threads. False: one of them works on and cannot be ended; it holds `session`.
bool end_streams(Session& session) {
  for (const auto& device : session.devices) device->close();
  const auto patience = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(session.options.time_out_s));
  if (!session.machine.all_left(HostMachine::Who::Stream, session.streams, patience, {})) {
    return false;
  }
  session.devices.clear();  // joins
  return true;
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
                      undefined ? "a transformer without opaque layers" : "model.dropout=0"};
  }
  constexpr std::size_t kThreads = 256;
  std::size_t threads = plan.ranks.size();
  for (const Rank& rank : plan.ranks) {
    threads += plan.programs[rank.program.value].streams.size();
  }
  if (threads > kThreads) {
    return Infeasible{"the host executor would start " + std::to_string(threads) +
                          " threads, one for each host and stream; it starts at most " +
                          std::to_string(kThreads),
                      {},
                      "fewer ranks (layout.dp, layout.pp, layout.tp)"};
  }
  const Bytes needed = host_bytes(plan);
  if (needed <= limit) return std::nullopt;
  return Infeasible{"the host executor needs for " + std::to_string(plan.ranks.size()) + " ranks " +
                        shortage(needed, "this computer gives", limit),
                    needed - limit,
                    "a smaller model (model.layers, model.hidden, model.vocab), "
                    "job.sequence or job.global_batch"};
}

ExecutionOutcome HostExecutor::run(const Plan& plan, const CostModel&, const Topology&,
                                   const RunOptions& run, EventSink* sink) {
  options_.time_limit_s = run.time_limit_s;
  return this->run(plan, sink);
}

ExecutionOutcome HostExecutor::run(const Plan& plan, EventSink* sink) {
  use_one_blas_thread();
  values_ = {};
  HostOptions options = options_;
  if (sink != nullptr) options.progress = [sink](double part) { return sink->progress(part); };
  auto session = std::make_unique<Session>(plan, options);
  HostMachine& machine = session->machine;
  const bool done = walk_all(*session);
  for (const auto& device : session->devices) values_.peak += Bytes(device->peak_bytes());
  if (!end_streams(*session)) {
    // A thread cannot be ended from outside. What it works on stays until the process ends.
    values_.hung = true;
    Session& kept = *session.release();
    return kept.machine.hung();
  }
  if (machine.error()) std::rethrow_exception(machine.error());
  if (machine.deadlock()) return *machine.deadlock();
  if (!done) return Cancelled{};

  interpreted::World& world = session->world;
  for (std::size_t r = 0; r < session->walkers.size(); ++r) {
    read_back(world.ranks[r], session->plan, session->walkers[r]->live(),
              [](const HostMemory& memory, const View& view) {
                return load<double>(HostOperand{memory, view});
              });
  }
  if (options_.read_values) values_.results = interpreted::read_out(world);
  values_.loss = interpreted::total_loss(world);
  const std::vector<Ran> ran = by_end(machine.ran(), session->plan, plan);
  tell(sink, ran);
  return real_figures(plan, ran, options_.bodies, values_.iterations);
}

}  // namespace gputwin::executors
