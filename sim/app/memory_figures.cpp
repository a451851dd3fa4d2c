#include "sim/app/memory_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/app/allocator_replay.h"
#include "sim/core/memory_profile.h"

namespace gputwin {
namespace {

// PyTorch's caching allocator rounds every block up to this (c10/cuda/CUDACachingAllocator.cpp,
// kMinBlockSize).
constexpr Bytes kBlock{512};

double gib(Bytes b) { return static_cast<double>(b.value) / (1024.0 * 1024.0 * 1024.0); }

std::optional<ArenaId> arena_named(const Plan& plan, const char* name) {
  for (std::uint32_t a = 0; a < plan.arenas.size(); ++a) {
    if (plan.arenas[a].name == name) return ArenaId(a);
  }
  return std::nullopt;
}

std::vector<std::int32_t> communicator_sizes(const Plan& plan, const Rank& rank) {
  const Program& p = plan.programs[rank.program.value];
  std::vector<std::uint32_t> seen;
  std::vector<std::int32_t> sizes;
  for (std::size_t s = 0; s < rank.slots.size(); ++s) {
    const std::uint32_t c = rank.slots[s];
    if (p.slots[s].peer || c == SlotId::kNone) continue;
    if (std::find(seen.begin(), seen.end(), c) != seen.end()) continue;
    seen.push_back(c);
    sizes.push_back(static_cast<std::int32_t>(plan.communicators[c].members.size()));
  }
  return sizes;
}

// PyTorch's allocator, by replaying what the program allocates and frees.
void use_allocator(const Plan& plan, const Program& program, const AllocatorOptions& options,
                   const MemoryCost& extra, MemoryFigures& f) {
  const AllocatorReplay replay = replay_allocator(plan, program, ArenaId(0),
                                                  {.options = options,
                                                   .workspace = extra.workspace,
                                                   .capacity = extra.capacity,
                                                   .other = extra.context + extra.communicators});
  f.at_peak = replay.at_peak;
  f.allocated = replay.figures.peak_allocated;
  f.reserved = replay.figures.peak_reserved;
  f.reserved_at_peak = replay.figures.reserved_at_peak;
  f.segments = replay.figures.peak_segments;
  f.retries = replay.figures.retries;
  f.out_of_memory = replay.out_of_memory;
}

// A framework of which only the ratio is known.
void use_ratio(const Plan& plan, const Program& program, const MemoryCost& extra,
               MemoryFigures& f) {
  const MemoryProfile profile = memory_profile(plan, program, ArenaId(0), kBlock);
  f.at_peak = profile.at_peak;
  f.at_peak[static_cast<std::size_t>(MemoryClass::Temporary)] += extra.workspace;
  f.allocated = profile.peak + extra.workspace;
  const double reserved = static_cast<double>(f.allocated.value) * extra.reserved_over_allocated;
  f.reserved = Bytes(static_cast<std::int64_t>(std::ceil(reserved)));
  f.reserved_at_peak = f.reserved;
}

RoleMemory role_memory(const Plan& plan, const Rank& rank, const CostModel& costs,
                       const Topology& topology, const AllocatorOptions& allocator) {
  const Program& program = plan.programs[rank.program.value];
  const std::vector<std::int32_t> sizes = communicator_sizes(plan, rank);
  const MemoryCost extra = costs.memory(topology.device_kind(rank.gpu), sizes);
  RoleMemory role{program.name, {}, extra.capacity};
  MemoryFigures& f = role.figures;
  if (extra.reserved_over_allocated > 0) {
    use_ratio(plan, program, extra, f);
  } else {
    use_allocator(plan, program, allocator, extra, f);
  }
  f.at_peak[static_cast<std::size_t>(MemoryClass::Communication)] += extra.communicators;
  f.at_peak[static_cast<std::size_t>(MemoryClass::Context)] += extra.context;
  f.device = f.reserved + extra.communicators + extra.context;
  if (const auto host = arena_named(plan, "host")) {
    f.host = memory_profile(plan, program, *host, kBlock).peak;
  }
  return role;
}

}  // namespace

std::vector<RoleMemory> predict_memory(const Plan& plan, const CostModel& costs,
                                       const Topology& topology,
                                       const AllocatorOptions& allocator) {
  std::vector<RoleMemory> roles(plan.programs.size());
  std::vector<std::vector<std::uint32_t>> kinds_done(plan.programs.size());
  for (const Rank& rank : plan.ranks) {
    const std::uint32_t p = rank.program.value;
    const std::uint32_t kind = topology.device_kind(rank.gpu).value;
    if (std::find(kinds_done[p].begin(), kinds_done[p].end(), kind) != kinds_done[p].end())
      continue;
    const bool first = kinds_done[p].empty();
    kinds_done[p].push_back(kind);
    RoleMemory role = role_memory(plan, rank, costs, topology, allocator);
    const auto shortage = [](const RoleMemory& r) {
      return r.figures.device.value - r.capacity.value;
    };
    if (first || shortage(role) > shortage(roles[p])) roles[p] = std::move(role);
  }
  return roles;
}

std::vector<std::int64_t> host_bytes(const Plan& plan, const std::vector<RoleMemory>& memory,
                                     const Topology& topology) {
  std::vector<std::int64_t> host(static_cast<std::size_t>(topology.cluster().nodes()), 0);
  for (const Rank& rank : plan.ranks) {
    host[static_cast<std::size_t>(topology.node_of(rank.gpu))] +=
        memory[rank.program.value].figures.host.value;
  }
  return host;
}

std::optional<Infeasible> memory_shortage(const Plan& plan, const std::vector<RoleMemory>& memory,
                                          const Topology& topology) {
  std::optional<Infeasible> worst;
  const auto note = [&](Bytes short_by, std::string reason) {
    if (worst && *worst->short_by >= short_by) return;
    worst = Infeasible{std::move(reason), short_by, ""};
  };
  for (const RoleMemory& role : memory) {
    if (role.capacity.value == 0 || role.figures.device <= role.capacity) continue;
    const Bytes short_by = role.figures.device - role.capacity;
    std::string reason = fmt::format(
        "{} needs {:.1f} GiB of GPU memory, the device has {:.1f} GiB: {:.2f} GiB too much",
        role.role, gib(role.figures.device), gib(role.capacity), gib(short_by));
    if (!role.figures.out_of_memory.empty()) {
      reason += "; PyTorch would say: " + role.figures.out_of_memory;
    }
    note(short_by, std::move(reason));
  }
  const std::vector<std::int64_t> host = host_bytes(plan, memory, topology);
  for (const Rank& rank : plan.ranks) {
    const Bytes has = topology.node_type(rank.gpu).host.memory;
    const auto node = static_cast<std::size_t>(topology.node_of(rank.gpu));
    if (has.value == 0 || host[node] <= has.value) continue;
    note(Bytes(host[node]) - has,
         fmt::format(
             "node {} needs {:.1f} GiB of host memory and has {:.1f} GiB: {:.2f} GiB too much",
             node, gib(Bytes(host[node])), gib(has), gib(Bytes(host[node]) - has)));
  }
  return worst;
}

}  // namespace gputwin
