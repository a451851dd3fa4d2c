#include "strategies/passes/offload.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/memory_profile.h"
#include "sim/core/verify.h"
#include "strategies/passes/offload_program.h"

namespace gputwin {
namespace offloading {
namespace {

bool is_sync_or_memory(const Instruction& i) {
  const bool derived = (i.flags & kDerived) != 0;
  return i.kind == Kind::Alloc || i.kind == Kind::Free ||
         ((i.kind == Kind::Record || i.kind == Kind::Wait) && derived);
}

std::uint8_t add_stream(Program& p, const char* name, StreamKind kind) {
  p.streams.push_back({.name = name, .kind = kind});
  return static_cast<std::uint8_t>(p.streams.size() - 1);
}

std::uint8_t compute_stream(const Program& p) {
  const auto found = std::find_if(p.streams.begin(), p.streams.end(),
                                  [](const Stream& s) { return s.kind == StreamKind::Compute; });
  GPUTWIN_CHECK(found != p.streams.end(), "a program with kernels has a compute stream");
  return static_cast<std::uint8_t>(found - p.streams.begin());
}

Streams add_streams(Program& p, const OffloadSpec& spec) {
  Streams s;
  if (spec.overlap_copies) {
    s.in = add_stream(p, "copy_in", StreamKind::CopyIn);
    s.out = add_stream(p, "copy_out", StreamKind::CopyOut);
  } else {
    s.in = s.out = compute_stream(p);
  }
  s.cpu = add_stream(p, "cpu", StreamKind::HostCpu);
  if (spec.optimizer == OffloadPlace::Nvme || spec.params == OffloadPlace::Nvme) {
    s.nvme_in = add_stream(p, "nvme_in", StreamKind::CopyIn);
    s.nvme_out = add_stream(p, "nvme_out", StreamKind::CopyOut);
  }
  return s;
}

std::vector<std::int32_t> communicator_sizes(const Plan& plan, RankId id) {
  const Rank& rank = plan.ranks[id.value];
  const Program& p = plan.program_of(id);
  std::set<std::uint32_t> seen;
  std::vector<std::int32_t> sizes;
  for (std::size_t s = 0; s < rank.slots.size(); ++s) {
    const std::uint32_t c = rank.slots[s];
    if (p.slots[s].peer || c == SlotId::kNone || !seen.insert(c).second) continue;
    sizes.push_back(static_cast<std::int32_t>(plan.communicators[c].members.size()));
  }
  return sizes;
}

// Some steps stay on the GPU.
bool steps_stay(const OffloadSpec& spec) { return spec.optimizer_share < 1 || spec.window > 0; }

bool leaves_with_step(const Context& c, const Instruction& i) {
  if (c.spec.optimizer == OffloadPlace::Gpu || steps_stay(c.spec)) return false;
  const std::string& name = c.plan().names[i.name].op;
  if (c.spec.masters_on_gpu) return c.call(i).op.kind == OpKind::AdamStep;
  return name == "unscale" || name == "clip" || name == "copy_master" ||
         c.call(i).op.kind == OpKind::AdamStep;
}

std::int64_t largest(const Plan& plan, const std::vector<BufferId>& buffers) {
  std::int64_t most = 0;
  for (const BufferId b : buffers) most = std::max(most, plan.buffers[b.value].bytes.value);
  return most;
}

// Buffers more than twice as large as those that hold the middle byte stay: their slot would be for
// them alone.
std::vector<BufferId> ordinary(const Plan& plan, std::vector<BufferId> buffers) {
  std::vector<std::int64_t> sizes;
  for (const BufferId b : buffers) sizes.push_back(plan.buffers[b.value].bytes.value);
  std::sort(sizes.begin(), sizes.end());
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  std::int64_t below = 0, limit = 0;
  for (const std::int64_t bytes : sizes) {
    limit = 2 * bytes;
    if ((below += bytes) * 2 >= all) break;
  }
  std::erase_if(buffers, [&](BufferId b) { return plan.buffers[b.value].bytes.value > limit; });
  return buffers;
}

// Steps of Adam in their order: those that leave, then those that stay.
struct Steps {
  std::vector<const Call*> leave, stay;
};
Steps steps_of(const Context& c) {
  std::vector<CallId> all;
  for (const Instruction& i : c.target().body) {
    if (i.kind == Kind::Kernel && c.call(i).op.kind == OpKind::AdamStep) all.push_back(i.call_id());
  }
  Steps steps;
  const std::size_t leave = steps_that_leave(c, all);
  for (std::size_t k = 0; k < all.size(); ++k) {
    (k < leave ? steps.leave : steps.stay).push_back(&c.plan().calls[all[k].value]);
  }
  return steps;
}

// States that leave with the optimizer.
std::vector<BufferId> states_of(const Context& c) {
  std::vector<BufferId> states;
  if (c.spec.optimizer == OffloadPlace::Gpu) return states;
  std::set<std::uint32_t> leave;
  for (const Call* adam : steps_of(c).leave) {
    const bool master = adam->writes.size() > 3;
    const std::size_t first = c.spec.masters_on_gpu && master ? 1 : 0;
    for (std::size_t k = first; k + 1 < adam->writes.size(); ++k) {
      leave.insert(adam->writes[k].buffer.value);
    }
  }
  for (const BufferId b : used_buffers(c.plan(), c.target())) {
    const Buffer& buffer = c.plan().buffers[b.value];
    const bool state = buffer.persistent && buffer.memory == MemoryClass::Optimizer;
    if (state && leave.contains(b.value)) states.push_back(b);
  }
  return states;
}

// Weights of the first layers that stay, and their gradients.
std::set<std::uint32_t> resident(const Context& c) {
  std::set<std::uint32_t> stay;
  if (c.spec.window == 0) return stay;
  for (const Call* adam : steps_of(c).stay) stay.insert(adam->writes.back().buffer.value);
  std::vector<std::uint32_t> gradients;
  for (const Parameter& p : c.target().parameters) {
    if (stay.contains(p.weight.buffer.value)) gradients.push_back(p.gradient.buffer.value);
  }
  stay.insert(gradients.begin(), gradients.end());
  return stay;
}

}  // namespace

Instruction Context::copy(CopyKind kind, std::uint8_t stream, const View& from, const View& to,
                          const std::string& name, std::int32_t occurrence) const {
  const Op op{.kind = OpKind::CopyBytes,
              .dtype = from.dtype,
              .out = to.dtype,
              .pinned = spec.pinned,
              .copy = kind,
              .dims = {from.elements()}};
  return {
      .kind = Kind::Copy,
      .stream = stream,
      .call = builder.call({.op = op, .reads = {from}, .writes = {to}}).value,
      .name = builder.name({.phase = Phase::Offload, .op = name, .occurrence = occurrence}).value};
}

std::int64_t Context::ranks_on_node() const {
  if (topology == nullptr) return 0;
  const std::vector<Rank>& ranks = plan().ranks;
  const std::int32_t node = topology->node_of(ranks[rank.value].gpu);
  return std::count_if(ranks.begin(), ranks.end(),
                       [&](const Rank& r) { return topology->node_of(r.gpu) == node; });
}

std::int64_t free_bytes(const Context& c, const std::vector<BufferId>& away) {
  if (c.costs == nullptr || c.topology == nullptr) return 0;
  const Plan& now = c.plan();
  Plan scratch;
  scratch.buffers = now.buffers;
  scratch.calls = now.calls;
  Program program = now.programs[c.program.value];
  for (const BufferId b : away) scratch.buffers[b.value].arena = c.host;
  // The passes of a step that leaves go with it, and what they hold.
  std::erase_if(program.body, [&](const Instruction& i) {
    return i.kind == Kind::Kernel && leaves_with_step(c, i);
  });
  place_memory(scratch, program);
  constexpr Bytes kBlock(512);
  const Bytes peak = memory_profile(scratch, program, ArenaId(0), kBlock).peak;
  const std::vector<std::int32_t> sizes = communicator_sizes(now, c.rank);
  const MemoryCost m = c.costs->memory(c.topology->device_kind(now.ranks[c.rank.value].gpu), sizes);
  const auto usable = static_cast<double>(m.capacity.value) * (1.0 - c.spec.reserve);
  return static_cast<std::int64_t>(usable) -
         (m.context + m.communicators + m.workspace + peak).value;
}

bool Leaving::holds(BufferId b) const {
  return std::find(weights.begin(), weights.end(), b) != weights.end() ||
         std::find(gradients.begin(), gradients.end(), b) != gradients.end();
}

std::vector<BufferId> objects_of(const Context& c, MemoryClass memory) {
  const Plan& plan = c.plan();
  std::set<std::uint32_t> wanted;
  for (const Parameter& p : c.target().parameters) {
    const BufferId id = memory == MemoryClass::Weights ? p.weight.buffer : p.gradient.buffer;
    if (id.valid()) wanted.insert(id.value);
  }
  for (const BufferId b : used_buffers(plan, c.target())) {
    if (memory == MemoryClass::Gradients && plan.buffers[b.value].memory == memory) {
      wanted.insert(b.value);
    }
  }
  std::erase_if(wanted, [&](std::uint32_t b) {
    const Buffer& buffer = plan.buffers[b];
    return !buffer.persistent || buffer.framed || buffer.in_place || buffer.arena != ArenaId(0);
  });
  std::vector<BufferId> list;
  for (const Instruction& i : c.target().body) {
    if (!is_task(i.kind)) continue;
    for (const auto* views : {&c.call(i).reads, &c.call(i).writes}) {
      for (const View& v : *views) {
        if (wanted.erase(v.buffer.value) > 0) list.push_back(v.buffer);
      }
    }
  }
  return list;
}

Leaving choose_leaving(const Context& c) {
  Leaving l;
  const Plan& plan = c.plan();
  if (c.spec.params != OffloadPlace::Gpu || c.spec.params_auto) {
    l.weights = ordinary(plan, objects_of(c, MemoryClass::Weights));
  }
  if (c.spec.gradients != OffloadPlace::Gpu) {
    l.gradients = objects_of(c, MemoryClass::Gradients);
  }
  const std::set<std::uint32_t> stay = resident(c);
  for (auto* list : {&l.weights, &l.gradients}) {
    std::erase_if(*list, [&](BufferId b) { return stay.contains(b.value); });
  }
  std::vector<BufferId> away = states_of(c);
  away.insert(away.end(), l.weights.begin(), l.weights.end());
  away.insert(away.end(), l.gradients.begin(), l.gradients.end());
  std::int64_t left = free_bytes(c, away);
  // One in use, one on its way in, one to leave; on demand only what is in use.
  const std::int32_t fewest = c.spec.policy == OffloadPolicy::Greedy ? 3 : 1;
  const auto count = [](const std::vector<BufferId>& list) {
    return static_cast<std::int32_t>(list.size());
  };
  if (c.spec.step_on_gpu) {
    constexpr std::int32_t kStates = 3;
    l.states = away;
    l.states.resize(states_of(c).size());
    l.state_slots = std::min(kStates * fewest, count(l.states));
    left -= l.state_slots * largest(plan, l.states);
  }
  const std::int64_t weight = largest(plan, l.weights), gradient = largest(plan, l.gradients);
  l.gradient_slots = std::min(fewest, count(l.gradients));
  left -= l.gradient_slots * gradient;
  if (!l.weights.empty()) {
    std::int64_t all = 0;
    for (const BufferId b : l.weights) all += plan.buffers[b.value].bytes.value;
    if (c.spec.params_auto && left >= all) {
      left -= all;
      l.weights.clear();
    } else {
      const auto limit = static_cast<std::int32_t>(c.spec.slots);
      const std::int32_t most = limit > 0 ? std::min(limit, count(l.weights)) : count(l.weights);
      const std::int64_t fit = weight > 0 ? std::max<std::int64_t>(left, 0) / weight : 0;
      l.weight_slots =
          static_cast<std::int32_t>(std::clamp<std::int64_t>(fit, std::min(fewest, most), most));
      left -= l.weight_slots * weight;
    }
  }
  // Gradients of several micro-batches come back for each, so more of them had better stay.
  if (left > 0 && c.target().frames > 1 && gradient > 0) {
    l.gradient_slots = static_cast<std::int32_t>(
        std::min<std::int64_t>(l.gradient_slots + left / gradient, count(l.gradients)));
  }
  return l;
}

}  // namespace offloading

namespace {

using offloading::Context;
using offloading::Trial;

// Slots of weights beside a window that has no number of its own: one in use, one to leave, two on
// their way.
constexpr std::int64_t kPrefetching = 4;

std::optional<Infeasible> refusal(const Plan& plan, const Layout& layout) {
  const OffloadSpec& s = layout.offload;
  const auto no = [](std::string reason, std::string fix) {
    return Infeasible{.reason = std::move(reason), .fix = std::move(fix)};
  };
  // Swaps are planned and memory is placed for bodies that stand alone.
  if (plan.crosses_iterations()) {
    return no("not lowered yet: offload with schedules whose iterations overlap",
              "set layout.schedule to 1f1b");
  }
  if (s.delayed_update && s.params != OffloadPlace::Gpu) {
    return no("a delayed update needs the parameters on the GPU while the host changes its copy",
              "set params to gpu, or delayed_update to false");
  }
  if (s.delayed_update && s.optimizer == OffloadPlace::Gpu) {
    return no("a delayed update is one of the host", "set optimizer to cpu");
  }
  if (plan.ranks.empty()) return no("the plan has no ranks", "");
  return std::nullopt;
}

bool rewrite(Context& c, Trial* trial) {
  Program& p = c.target();
  std::erase_if(p.body, offloading::is_sync_or_memory);
  c.streams = offloading::add_streams(p, c.spec);
  offloading::move_activations(c);
  const offloading::Leaving leaving = offloading::choose_leaving(c);
  const auto weights = static_cast<std::int64_t>(leaving.weights.size());
  const std::int64_t wanted = c.spec.slots > 0 ? c.spec.window : kPrefetching;
  const bool windowed = trial != nullptr && c.spec.window > 0;
  if (windowed && leaving.weight_slots < std::min(wanted, weights)) trial->fits = false;
  const bool on_host = c.spec.optimizer != OffloadPlace::Gpu && !c.spec.step_on_gpu;
  // Gradients that stay go down as soon as they are complete: nothing may read them later.
  offloading::gather_uses(
      c, on_host ? offloading::objects_of(c, MemoryClass::Gradients) : leaving.gradients);
  if (c.spec.step_on_gpu) offloading::fuse_steps(c);
  if (on_host && !offloading::move_optimizer(c, leaving)) return false;
  const auto swap = [&](const std::vector<BufferId>& objects, std::int32_t slots, OffloadPlace home,
                        const char* what) { offloading::add_swaps(c, objects, slots, home, what); };
  swap(leaving.states, leaving.state_slots, OffloadPlace::Cpu, "state");
  swap(leaving.gradients, leaving.gradient_slots, OffloadPlace::Cpu, "gradient");
  swap(leaving.weights, leaving.weight_slots, c.spec.params, "weight");
  synchronise(c.plan(), c.target());
  place_memory(c.plan(), c.target());
  return true;
}

// Messages of this collective share the links of copies.
bool over_pcie(const Context& c, const Instruction& i) {
  if (i.kind != Kind::Collective) return false;
  const Rank& rank = c.plan().ranks[c.rank.value];
  const std::uint32_t group = rank.slots[c.call(i).op.slot.value];
  if (group == SlotId::kNone) return false;
  const std::vector<RankId>& members = c.plan().communicators[group].members;
  return std::any_of(members.begin(), members.end(), [&](RankId m) {
    return c.topology->path(rank.gpu, c.plan().ranks[m.value].gpu) == PathKind::Pcie;
  });
}

// When the last stream of the body ends, with nothing from other ranks but collectives. Copies and
// what else goes over PCIe take turns on it where there is such.
double makespan(const Context& c) {
  const Program& program = c.target();
  struct Task {
    double seconds = -1;
    bool on_pcie = false;
  };
  std::vector<Task> by_call(c.plan().calls.size());
  std::vector<double> clock(program.streams.size(), 0.0), events;
  bool shared = false;
  for (const Instruction& i : program.body) {
    if (is_task(i.kind)) {
      Task& task = by_call[i.call];
      if (task.seconds >= 0) continue;
      task.seconds = offloading::duration(c, i).value;
      task.on_pcie = over_pcie(c, i);
      shared = shared || task.on_pcie;
      task.on_pcie = task.on_pcie || i.kind == Kind::Copy;
    } else if (i.kind == Kind::Record) {
      events.resize(std::max<std::size_t>(events.size(), i.event + 1), 0.0);
    }
  }
  double link = 0;
  for (const Instruction& i : program.body) {
    double& now = clock[i.stream];
    if (i.kind == Kind::Record) {
      events[i.event] = now;
    } else if (i.kind == Kind::Wait && i.event < events.size()) {
      now = std::max(now, events[i.event]);
    } else if (is_task(i.kind)) {
      const Task& task = by_call[i.call];
      const bool on_link = shared && task.on_pcie;
      if (on_link) now = std::max(now, link);
      now += task.seconds;
      if (on_link) link = now;
    }
  }
  return clock.empty() ? 0.0 : *std::max_element(clock.begin(), clock.end());
}

}  // namespace

namespace offloading {

Outcome<Plan> moved(Plan plan, const OffloadSpec& spec, const CostModel* costs,
                    const Topology* topology, Trial* trial) {
  PlanBuilder builder(std::move(plan));
  const ArenaId host = builder.arena({.name = "host"});
  ArenaId nvme{};
  if (spec.optimizer == OffloadPlace::Nvme || spec.params == OffloadPlace::Nvme) {
    nvme = builder.arena({.name = "nvme"});
  }
  for (std::uint32_t p = 0; p < builder.plan().programs.size(); ++p) {
    Context c{.builder = builder,
              .spec = spec,
              .costs = costs,
              .topology = topology,
              .program = ProgramId(p),
              .host = host,
              .nvme = nvme};
    for (std::uint32_t r = 0; r < builder.plan().ranks.size() && !c.rank.valid(); ++r) {
      if (builder.plan().ranks[r].program == c.program) c.rank = RankId(r);
    }
    if (!c.rank.valid()) continue;
    if (!rewrite(c, trial)) {
      return Infeasible{.reason = "not lowered yet: other optimizers than Adam on the host",
                        .fix = "set job.optimizer to adam"};
    }
    if (trial == nullptr || costs == nullptr || topology == nullptr) continue;
    trial->fits = trial->fits && free_bytes(c, {}) >= 0;
    constexpr Bytes kBlock(512);
    const Bytes peak = memory_profile(c.plan(), c.target(), c.host, kBlock).peak;
    const Bytes has = topology->node_type(c.plan().ranks[c.rank.value].gpu).host.memory;
    const std::int64_t lacks = peak.value * c.ranks_on_node() - has.value;
    if (has.value > 0) trial->host_short = std::max(trial->host_short, lacks);
    trial->seconds = std::max(trial->seconds, makespan(c));
    trial->compute = std::max(trial->compute, timeline(c).back());
  }
  return std::move(builder).take();
}

}  // namespace offloading

Outcome<Plan> offload(Plan plan, const Layout& layout, const CostModel* costs,
                      const Topology* topology) {
  const OffloadSpec& spec = layout.offload;
  if (!spec.enabled) return plan;
  if (auto refused = refusal(plan, layout)) return *std::move(refused);
  const bool chooses = costs != nullptr && topology != nullptr;
  if (spec.optimizer_share < 0) {
    if (chooses) return offloading::moved_as_needed(plan, spec, *costs, *topology);
    OffloadSpec all = spec;
    all.optimizer_share = 1;
    return offloading::moved(std::move(plan), all, costs, topology, nullptr);
  }
  if (spec.window > 0 && chooses) {
    return offloading::moved_with_window(plan, spec, *costs, *topology);
  }
  return offloading::moved(std::move(plan), spec, costs, topology, nullptr);
}

}  // namespace gputwin
