#include "validation/executors/cuda/cuda_memory.h"

#include <algorithm>

#include "sim/core/check.h"
#include "validation/executors/interpreter/interpreter.h"

namespace gputwin::executors {

namespace {

constexpr std::int64_t kAlignment = 256;

std::int64_t aligned(std::int64_t bytes) {
  return (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t index(Home home) { return static_cast<std::size_t>(home); }

/// Addresses of a program's buffers by the plan, and how far they reach in each home. An address
/// that overlaps another one of its home says nothing: then all of that home are placed.
void fix_addresses(const Plan& plan, const Program& program, const std::vector<Home>& homes,
                   MemoryMap& map) {
  for (const Home home : {Home::Gpu, Home::Pinned, Home::Pageable}) {
    std::vector<std::pair<std::int64_t, BufferId>> fixed;
    for (const BufferId id : program.buffers) {
      const Buffer& b = plan.buffers[id.value];
      if (b.address >= 0 && homes[id.value] == home && !b.framed) fixed.emplace_back(b.address, id);
    }
    std::sort(fixed.begin(), fixed.end());
    std::int64_t end = 0;
    bool apart = true;
    for (const auto& [address, id] : fixed) {
      apart = apart && address >= end && address % kAlignment == 0;
      end = address + plan.buffers[id.value].bytes.value;
    }
    if (!apart || fixed.empty()) continue;
    for (const auto& [address, id] : fixed) map.address[id.value] = address;
    map.fixed[index(home)] = aligned(end);
  }
}

/// Issues the Allocs and Frees of a program.
class DryRun {
 public:
  DryRun(const Plan& plan, const Program& program, const std::vector<Home>& homes,
         const MemoryMap& map)
      : plan_(plan), homes_(homes), map_(map) {
    for (const BufferId id : program.buffers) {
      const Buffer& b = plan.buffers[id.value];
      const std::uint32_t stays = !b.persistent ? 0 : b.framed ? program.frames : 1;
      for (std::uint32_t k = 0; k < stays; ++k) take(id);
    }
  }

  void issue(const std::vector<Instruction>& list) {
    for (const Instruction& i : list) {
      if (i.kind != Kind::Alloc && i.kind != Kind::Free) continue;
      const BufferId id = i.buffer_id();
      const std::uint32_t frame = plan_.buffers[id.value].framed ? i.frame() : kNoFrame;
      if (i.kind == Kind::Alloc) {
        live_[{id.value, frame}] = take(id);
      } else if (map_.address[id.value] < 0) {
        const std::int64_t bytes = plan_.buffers[id.value].bytes.value;
        placement_[index(homes_[id.value])].give_back(live_.at({id.value, frame}), bytes);
      }
    }
  }

  std::int64_t high(std::size_t home) const { return placement_[home].high(); }

 private:
  std::int64_t take(BufferId id) {
    if (map_.address[id.value] >= 0) return map_.address[id.value];
    return placement_[index(homes_[id.value])].take(plan_.buffers[id.value].bytes.value);
  }

  const Plan& plan_;
  const std::vector<Home>& homes_;
  const MemoryMap& map_;
  std::array<Placement, kHomes> placement_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::int64_t> live_;
};

}  // namespace

std::vector<Home> homes_of(const Plan& plan) {
  std::vector<Home> homes;
  for (const Buffer& buffer : plan.buffers) {
    const std::string& arena = plan.arenas[buffer.arena.value].name;
    if (arena != "gpu" && arena != "host") {
      throw Fault("buffer " + buffer.name + " lies in \"" + arena +
                  "\", and there is memory of a " + "GPU and of its host");
    }
    homes.push_back(arena == "gpu" ? Home::Gpu : Home::Pinned);
  }
  for (const Call& call : plan.calls) {
    if (call.op.kind != OpKind::CopyBytes || call.op.pinned) continue;
    for (const auto* views : {&call.reads, &call.writes}) {
      for (const View& view : *views) {
        Home& home = homes[view.buffer.value];
        if (home == Home::Pinned) home = Home::Pageable;
      }
    }
  }
  return homes;
}

std::int64_t Placement::take(std::int64_t bytes) {
  const std::int64_t size = aligned(bytes);
  for (auto at = free_.begin(); at != free_.end(); ++at) {
    const auto [begin, end] = *at;
    if (end - begin < size) continue;
    free_.erase(at);
    if (begin + size < end) free_.emplace(begin + size, end);
    return begin;
  }
  const std::int64_t begin = top_;
  top_ += size;
  high_ = std::max(high_, top_);
  return begin;
}

void Placement::give_back(std::int64_t offset, std::int64_t bytes) {
  std::int64_t begin = offset, end = offset + aligned(bytes);
  const auto after = free_.find(end);
  if (after != free_.end()) {
    end = after->second;
    free_.erase(after);
  }
  const auto next = free_.lower_bound(begin);
  if (next != free_.begin() && std::prev(next)->second == begin) {
    begin = std::prev(next)->first;
    free_.erase(std::prev(next));
  }
  if (end == top_) {
    top_ = begin;
  } else {
    free_.emplace(begin, end);
  }
}

MemoryMap memory_map(const Plan& plan, const Program& program, const std::vector<Home>& homes,
                     int bodies) {
  MemoryMap map;
  map.address.assign(plan.buffers.size(), -1);
  fix_addresses(plan, program, homes, map);
  DryRun run(plan, program, homes, map);
  run.issue(program.prologue);
  for (int body = 0; body < bodies; ++body) run.issue(program.body);
  for (std::size_t home = 0; home < kHomes; ++home) {
    map.bytes[home] = map.fixed[home] + run.high(home);
  }
  return map;
}

CudaMemory::CudaMemory(const Plan& plan, const Program& program, int bodies)
    : plan_(plan),
      homes_(homes_of(plan)),
      map_(memory_map(plan, program, homes_, bodies)),
      finished_(program.streams.size()) {
  for (std::size_t home = 0; home < kHomes; ++home) {
    const auto bytes = static_cast<std::size_t>(map_.bytes[home]);
    if (bytes == 0) continue;
    Piece& piece = pieces_[home];
    if (home == index(Home::Gpu)) {
      piece.gpu.emplace(bytes);
      piece.data = static_cast<std::byte*>(piece.gpu->data());
    } else {
      piece.host.emplace(bytes, home == index(Home::Pinned));
      piece.data = static_cast<std::byte*>(piece.host->data());
    }
  }
}

std::shared_ptr<CudaStay> CudaMemory::allocate(BufferId buffer) {
  const std::int64_t bytes = plan_.buffers[buffer.value].bytes.value;
  const Home home = homes_[buffer.value];
  Piece& piece = pieces_[index(home)];
  const std::int64_t address = map_.address[buffer.value];
  const std::int64_t offset =
      address >= 0 ? address : map_.fixed[index(home)] + piece.placement.take(bytes);
  GPUTWIN_CHECK(offset + bytes <= map_.bytes[index(home)], "the dry run saw this allocation");
  auto stay = std::make_unique<CudaStay>();
  stay->data = piece.data + offset;
  stay->bytes = bytes;
  stay->home = home;
  stay->last_use.assign(finished_.size(), 0);
  look_back(*stay, offset);
  return {stay.release(),
          [this, buffer, offset](CudaStay* ended) { give_back(buffer, offset, ended); }};
}

void CudaMemory::look_back(CudaStay& stay, std::int64_t offset) {
  std::vector<std::uint64_t> latest(finished_.size(), 0);
  const std::int64_t end = offset + aligned(stay.bytes);
  std::erase_if(left_, [&](const Left& left) {
    bool running = false;
    for (std::size_t s = 0; s < latest.size(); ++s) running |= left.last_use[s] > finished_[s];
    if (!running) return true;
    if (left.home != stay.home || left.end <= offset || left.begin >= end) return false;
    for (std::size_t s = 0; s < latest.size(); ++s) {
      latest[s] = std::max(latest[s], left.last_use[s]);
    }
    return left.begin >= offset && left.end <= end;  // who comes next asks this stay
  });
  for (std::size_t s = 0; s < latest.size(); ++s) {
    if (latest[s] > finished_[s]) stay.before.emplace_back(static_cast<std::uint8_t>(s), latest[s]);
  }
}

void CudaMemory::give_back(BufferId buffer, std::int64_t offset, CudaStay* ended) {
  const std::unique_ptr<CudaStay> stay(ended);
  if (map_.address[buffer.value] < 0) {
    const std::size_t home = index(stay->home);
    pieces_[home].placement.give_back(offset - map_.fixed[home], stay->bytes);
  }
  // Nobody may have used the stay, or not on all streams: those before it are not forgotten.
  for (const auto& [stream, number] : stay->before) {
    stay->last_use[stream] = std::max(stay->last_use[stream], number);
  }
  left_.push_back({stay->home, offset, offset + aligned(stay->bytes), std::move(stay->last_use)});
}

}  // namespace gputwin::executors
