// Memory of one rank: one piece on the GPU and one or two on the host, taken before the run, and
// where in them every stay of a buffer lies, decided before the run as well.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "sim/core/plan.h"
#include "validation/executors/cuda/device.h"

namespace gputwin::executors {

/// Pageable: a host buffer that a copy without page-locked memory (op.h, `pinned`) reads or writes.
enum class Home : std::uint8_t { Gpu, Pinned, Pageable };
inline constexpr std::size_t kHomes = 3;

/// By buffer. Fault for an arena that is neither GPU nor host.
std::vector<Home> homes_of(const Plan& plan);

/// Where a stay lies in the piece of its home.
struct PlacedStay {
  BufferId buffer{};
  std::int64_t offset = 0;
};

/// Addresses of all stays of a program in the order in which Walker allocates them: persistent
/// buffers, then Allocs of the prologue and of `bodies` bodies.
///
/// Buffers with an address of the plan have it, unless those of a home overlap. Others are placed
/// first fit, in units of 256 bytes, where nothing lies and where whatever lay is out of use: by
/// the plan's own order of streams, events and waits, every use of the new stay comes after every
/// use of the old one. Memory that no such order frees is not taken again, as PyTorch's allocator
/// leaves a block that another stream may use; so placing never makes a stream wait.
struct MemoryMap {
  std::array<std::int64_t, kHomes> bytes{};  // of each piece
  std::vector<PlacedStay> stays;
};
MemoryMap memory_map(const Plan& plan, const Program& program, const std::vector<Home>& homes,
                     int bodies);

struct CudaStay {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Home home = Home::Gpu;
};

class CudaMemory {
 public:
  CudaMemory(const Plan& plan, const Program& program, int bodies);
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  /// The next stay of the map, which is one of `buffer`.
  std::shared_ptr<CudaStay> allocate(BufferId buffer);
  std::int64_t gpu_bytes() const { return map_.bytes[0]; }

 private:
  struct Piece {
    std::optional<cuda::Arena> gpu;
    std::optional<cuda::HostBuffer> host;
    std::byte* data = nullptr;
  };
  const Plan& plan_;
  std::vector<Home> homes_;
  MemoryMap map_;
  std::array<Piece, kHomes> pieces_;
  std::size_t next_ = 0;
};

}  // namespace gputwin::executors
