// Memory of one rank: one piece on the GPU and one or two on the host, taken before the run; stays
// of buffers are placed in them as the host issues Alloc and Free.
#pragma once

#include <array>
#include <cstddef>
#include <map>
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

/// Offsets in one piece of memory: first fit, in units of 256 bytes, as cudaMalloc aligns.
class Placement {
 public:
  std::int64_t take(std::int64_t bytes);
  void give_back(std::int64_t offset, std::int64_t bytes);
  /// Bytes of the piece that were in use at the highest moment.
  std::int64_t high() const { return high_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // from begin to end, apart, all below top_
  std::int64_t top_ = 0, high_ = 0;
};

/// What a program's memory needs: the plan's addresses where it has some that do not overlap, then
/// everything else as Placement puts it when prologue and bodies are issued.
struct MemoryMap {
  std::array<std::int64_t, kHomes> fixed{}, bytes{};  // of addresses; in all
  std::vector<std::int64_t> address;                  // by buffer; -1: placed
};
MemoryMap memory_map(const Plan& plan, const Program& program, const std::vector<Home>& homes,
                     int bodies);

/// One stay of a buffer. Tasks of a stream are numbered from 1.
struct CudaStay {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
  Home home = Home::Gpu;
  std::vector<std::uint64_t> last_use;  // by stream: its last task that uses the stay; 0: none
  /// Tasks that use what lay here before; a stream that uses the stay waits for those of others.
  std::vector<std::pair<std::uint8_t, std::uint64_t>> before;
  std::uint64_t ordered = 0;  // bit s: stream s has waited for them
};

class CudaMemory {
 public:
  CudaMemory(const Plan& plan, const Program& program, int bodies);
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  /// Room for a buffer until the last copy of the handle goes, which must be before the memory.
  std::shared_ptr<CudaStay> allocate(BufferId buffer);
  /// The task `number` of a stream and all before it have ended.
  void finished(std::uint8_t stream, std::uint64_t number) { finished_[stream] = number; }
  std::uint64_t finished(std::uint8_t stream) const { return finished_[stream]; }
  std::int64_t gpu_bytes() const { return map_.bytes[0]; }

 private:
  struct Piece {
    std::optional<cuda::Arena> gpu;
    std::optional<cuda::HostBuffer> host;
    std::byte* data = nullptr;
    Placement placement;
  };
  /// Memory of a stay that has ended, and the tasks that may still use it.
  struct Left {
    Home home = Home::Gpu;
    std::int64_t begin = 0, end = 0;
    std::vector<std::uint64_t> last_use;
  };
  void give_back(BufferId buffer, std::int64_t offset, CudaStay* stay);
  void look_back(CudaStay& stay, std::int64_t offset);

  const Plan& plan_;
  std::vector<Home> homes_;
  MemoryMap map_;
  std::array<Piece, kHomes> pieces_;
  std::vector<Left> left_;
  std::vector<std::uint64_t> finished_;  // by stream
};

}  // namespace gputwin::executors
