#include "validation/executors/cuda/cuda_memory.h"

#include "sim/core/check.h"
#include "validation/executors/interpreter/interpreter.h"

namespace gputwin::executors {

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

CudaMemory::CudaMemory(const Plan& plan, const Program& program, int bodies)
    : plan_(plan), homes_(homes_of(plan)), map_(memory_map(plan, program, homes_, bodies)) {
  for (std::size_t home = 0; home < kHomes; ++home) {
    const auto bytes = static_cast<std::size_t>(map_.bytes[home]);
    if (bytes == 0) continue;
    Piece& piece = pieces_[home];
    if (home == static_cast<std::size_t>(Home::Gpu)) {
      piece.gpu.emplace(bytes);
      piece.data = static_cast<std::byte*>(piece.gpu->data());
    } else {
      piece.host.emplace(bytes, home == static_cast<std::size_t>(Home::Pinned));
      piece.data = static_cast<std::byte*>(piece.host->data());
    }
  }
}

std::shared_ptr<CudaStay> CudaMemory::allocate(BufferId buffer) {
  GPUTWIN_CHECK(next_ < map_.stays.size() && map_.stays[next_].buffer == buffer,
                "the walker allocates in the order of the map");
  const Home home = homes_[buffer.value];
  std::byte* const piece = pieces_[static_cast<std::size_t>(home)].data;
  const std::int64_t bytes = plan_.buffers[buffer.value].bytes.value;
  return std::make_shared<CudaStay>(CudaStay{piece + map_.stays[next_++].offset, bytes, home});
}

}  // namespace gputwin::executors
