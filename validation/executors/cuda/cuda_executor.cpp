#include "validation/executors/cuda/cuda_executor.h"

#include <thread>

#include "validation/executors/cuda/cuda_device.h"
#include "validation/executors/cuda/gpu_state.h"
#include "validation/executors/cuda/operands.h"
#include "validation/executors/host/host_executor.h"

namespace gputwin::executors {

namespace {

using CudaWalker = Walker<CudaDevice>;

Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

[[noreturn]] void refuse(const std::string& problem, const std::string& fix) {
  throw InputError("--executor", "", "cuda", problem, fix);
}

/// The GPU of each rank; InputError where two ranks share one, or one is not there.
std::vector<int> gpus_of(const Plan& plan, const CudaOptions& options) {
  std::vector<int> gpus = options.gpus;
  for (int r = static_cast<int>(gpus.size()); r < std::ssize(plan.ranks); ++r) gpus.push_back(r);
  try {
    cuda::need_distinct(gpus);
  } catch (const cuda::DeviceError& error) {
    refuse("cannot run " + std::to_string(gpus.size()) + " ranks here: " + error.what(),
           "as many ranks as GPUs (layout.tp, layout.pp, layout.dp), or --executor host");
  }
  return gpus;
}

/// Everything that the threads of a run and its GPUs touch. If one of them never ends it must stay.
struct Session {
  Session(const Plan& given, const CudaOptions& asked, const std::vector<int>& on)
      : plan(given),
        options(asked),
        gpus(on),
        world(interpreted::initial_world(plan, options.values)) {
    for (const interpreted::RankState& rank : world.ranks) {
      cuda::use_device(gpus[rank.id.value]);
      devices.push_back(std::make_unique<CudaDevice>(machine, rank, gpus[rank.id.value]));
      walkers.push_back(std::make_unique<CudaWalker>(plan, rank.id, *devices.back()));
      write_initial_values(rank, plan, walkers.back()->live(),
                           [&](const auto& memory, const View& view, const auto& values) {
                             devices.back()->write(memory, view, values);
                           });
    }
  }

  const Plan plan;
  const CudaOptions options;
  const std::vector<int> gpus;  // by rank
  interpreted::World world;
  CudaMachine machine{world, options, gpus};
  std::vector<std::unique_ptr<CudaDevice>> devices;
  std::vector<std::unique_ptr<CudaWalker>> walkers;
};

void walk(Session& session, std::size_t rank) {
  try {
    session.devices[rank]->enter();
    session.walkers[rank]->run(session.options.bodies);
  } catch (const Stopped&) {
  } catch (...) {
    session.machine.fail(std::current_exception());
  }
}

/// Walks every rank on a thread of its own, which keeps the session alive. Returns when all have
/// ended, or false if some have not, a time-out after the machine stopped.
bool walk_all(const std::shared_ptr<Session>& session, GpuWatch& watch, bool& cancelled) {
  const CudaOptions& options = session->options;
  const std::size_t hosts = session->walkers.size();
  session->machine.progressed();  // patience begins here: initial values took their time
  for (std::size_t rank = 0; rank < hosts; ++rank) {
    std::thread([session, rank] {
      walk(*session, rank);
      session->machine.left();
    }).detach();
  }
  const auto begin = Clock::now();
  const auto go_on = [&](int begun) {
    watch.sample();
    const double part = static_cast<double>(begun) / (options.bodies + 1);
    const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
    if (options.time_limit_s > 0 && spent > options.time_limit_s) cancelled = true;
    if (options.progress && !options.progress(part)) cancelled = true;
    return !cancelled;
  };
  if (!session->machine.all_left(hosts, seconds(options.time_out_s), go_on)) return false;
  while (session.use_count() > 1) std::this_thread::yield();  // their threads are on their way out
  return true;
}

/// Figures and values of a run that has ended well.
Execution results(Session& session, const Plan& plan, EventSink* sink, CudaValues& values) {
  std::vector<Ran> ran;
  for (std::size_t r = 0; r < session.walkers.size(); ++r) {
    CudaDevice& device = *session.devices[r];
    cuda::use_device(session.gpus[r]);
    read_back(session.world.ranks[r], session.plan, session.walkers[r]->live(),
              [&](const auto& memory, const View& view) { return device.read(memory, view); });
    ran.insert(ran.end(), device.ran().begin(), device.ran().end());
    values.peak += Bytes(device.gpu_bytes());
  }
  if (session.options.read_values) values.results = interpreted::read_out(session.world);
  values.loss = interpreted::total_loss(session.world);
  ran = by_end(std::move(ran), session.plan, plan);
  tell(sink, ran);
  return real_figures(plan, ran, session.options.bodies, values.iterations);
}

Infeasible lacks(const Instruction& i, const Plan& plan, const std::string& why) {
  return {"the CUDA executor cannot run " + plan.full_name(i) + ": " + why,
          {},
          "--executor host, or a model and passes without that"};
}

/// Tries an instruction without memory. The reason if it cannot be run.
std::optional<Infeasible> try_out(const Plan& plan, RankId rank, const Instruction& i) {
  if (!is_task(i.kind)) return std::nullopt;
  const Call& call = plan.call(i);
  try {
    if (i.kind == Kind::HostTask) {
      for (const auto* views : {&call.reads, &call.writes}) {
        for (const View& view : *views) {
          need(plan.arenas[plan.buffers[view.buffer.value].arena.value].name == "host",
               "work of the processor on memory of a GPU");
          need(runs_on_host(view.dtype),
               "the processor has no numbers in a format of its operands");
        }
      }
    } else if (i.kind == Kind::Kernel || i.kind == Kind::Copy) {
      prepare_kernel(work_without_memory(plan, rank, i));
    } else {
      for (const auto* views : {&call.reads, &call.writes}) {
        for (const View& view : *views) {
          without_gaps({nullptr, view});
          if (i.kind == Kind::Collective) collective_type(view.dtype);
        }
      }
    }
  } catch (const Fault& fault) {
    return lacks(i, plan, fault.what());
  }
  return std::nullopt;
}

/// More than the GPU of a rank or this computer's memory has.
std::optional<Infeasible> too_large(const Plan& plan, const std::vector<int>& gpus) {
  const std::vector<Home> homes = homes_of(plan);
  std::int64_t host = 0;
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
    const MemoryMap map = memory_map(plan, plan.program_of(RankId(r)), homes, 2);
    host += map.bytes[1] + map.bytes[2];
    std::size_t free = 0, total = 0;
    cuda::use_device(gpus[r]);
    GPUTWIN_CUDA(cudaMemGetInfo(&free, &total));
    const std::int64_t more = map.bytes[0] - static_cast<std::int64_t>(free);
    if (more <= 0) continue;
    const std::string has = "GPU " + std::to_string(gpus[r]) + " has free";
    return Infeasible{"rank " + std::to_string(r) + " needs " +
                          shortage(Bytes(map.bytes[0]), has, Bytes(map.bytes[0] - more)),
                      Bytes(more), "a smaller model, micro-batch or job.sequence, or offload"};
  }
  const Bytes needed = host_bytes(plan) + Bytes(host), limit = host_memory_limit();
  if (needed <= limit) return std::nullopt;
  return Infeasible{"initial values and host memory of the plan take " +
                        shortage(needed, "this computer gives", limit),
                    needed - limit, "a smaller model (model.layers, model.hidden, model.vocab)"};
}

}  // namespace

void need_cuda() {
  int count = 0;
  try {
    count = cuda::device_count();
  } catch (const cuda::DeviceError& error) {
    refuse(error.what(), "use host, simgrid or reference");
  }
  if (count == 0) {
    refuse("needs a GPU, and this machine has none that its driver shows",
           "check nvidia-smi, or use host, simgrid or reference");
  }
}

std::optional<Infeasible> cuda_obstacle(const Plan& plan) {
  need_cuda();
  const std::vector<int> gpus = gpus_of(plan, {});
  try {
    homes_of(plan);
    std::vector<char> tried(plan.programs.size(), 0);  // a rank stands for all of its program
    for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) {
      const std::uint32_t id = plan.ranks[r].program.value;
      if (std::exchange(tried[id], 1) != 0) continue;
      const Program& program = plan.programs[id];
      for (const auto* list : {&program.prologue, &program.body}) {
        for (const Instruction& i : *list) {
          if (auto obstacle = try_out(plan, RankId(r), i)) return obstacle;
        }
      }
    }
    return too_large(plan, gpus);
  } catch (const Fault& fault) {
    return Infeasible{fault.what(), {}, "offload to the host's memory"};
  } catch (const cuda::DeviceError& error) {
    refuse(error.what(), "use --executor host");
  }
}

ExecutionOutcome CudaExecutor::run(const Plan& plan, const CostModel&, const Topology&,
                                   const RunOptions& run, EventSink* sink) {
  options_.time_limit_s = run.time_limit_s;
  return this->run(plan, sink);
}

ExecutionOutcome CudaExecutor::run(const Plan& plan, EventSink* sink) try {
  values_ = {};
  CudaOptions options = options_;
  if (sink != nullptr) options.progress = [sink](double part) { return sink->progress(part); };
  const std::vector<int> gpus = gpus_of(plan, options);
  GpuWatch watch(gpus);
  auto session = std::make_shared<Session>(plan, options, gpus);
  CudaMachine& machine = session->machine;
  bool cancelled = false;
  bool ended = walk_all(session, watch, cancelled);
  for (const auto& device : session->devices) ended = ended && device->drained();
  values_.gpus = watch.states();
  if (!ended) {
    // Neither a thread inside a call nor a kernel can be ended from here, and giving memory back
    // would wait for them: it all stays until the process ends.
    values_.hung = true;
    static auto* const kept = new std::vector<std::shared_ptr<Session>>;  // never deleted
    kept->push_back(session);
  }
  if (machine.error()) std::rethrow_exception(machine.error());
  if (machine.deadlock()) return *machine.deadlock();
  if (!ended) return machine.who_waits();
  if (cancelled) return Cancelled{};
  return results(*session, plan, sink, values_);
} catch (const cuda::DeviceError& error) {
  refuse(error.what(), "see validation/executors/cuda/README.md, or use --executor host");
}

}  // namespace gputwin::executors
