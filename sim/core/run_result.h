// Figures of a run: what an executor measured (Execution), and with the job's FLOPs and memory the
// RunResult that becomes result.json.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

/// Where the time of one rank went. Sums to the iteration time.
enum class Part : std::uint8_t {
  Compute,
  ExposedTp,
  ExposedDp,
  ExposedPp,
  ExposedEp,
  ExposedCp,
  CopyStall,
  Bubble,
  Optimizer,
  Host
};
inline constexpr std::size_t kParts = 10;

/// The part of communication in a domain that nothing hides.
constexpr Part exposed(Domain domain) {
  switch (domain) {
    case Domain::Tp: return Part::ExposedTp;
    case Domain::Dp: return Part::ExposedDp;
    case Domain::Pp: return Part::ExposedPp;
    case Domain::Ep: return Part::ExposedEp;
    case Domain::Cp: return Part::ExposedCp;
  }
  return Part::Bubble;
}
using Breakdown = std::array<Ps, kParts>;  // indexed by Part

struct EngineStats {
  std::int64_t tasks = 0;  // executed, on simulated ranks
  std::int64_t instructions = 0;
  std::int64_t flows = 0;          // transfers over links
  std::int64_t simgrid_flows = 0;  // of these, the ones that shared a link and went through SimGrid
  std::int32_t simulated_ranks = 0;
  std::int32_t bodies = 0;
  bool folded = false;
  std::string unfolded_because;     // empty, or why folding was not possible
  double wall_s = 0.0;              // not part of deterministic output
  std::int64_t peak_rss_bytes = 0;  // likewise
};

/// Blocked forever: which ranks, on which operation, waiting for whom.
struct Deadlock {
  struct Blocked {
    RankId rank;
    std::string instruction;  // full name and stream
    std::string waiting_for;  // "rank 3 to join all_reduce #17 of tp0", "event e4", …
  };
  std::vector<Blocked> ranks;  // at most 16, smallest first
  std::int32_t total = 0;
};

struct Execution {
  Ps iteration = 0;                  // period of the body
  Ps makespan = 0;                   // until the last rank ends
  std::vector<Ps> rank_end;          // by rank (folded ranks carry their representative's)
  std::vector<Breakdown> breakdown;  // by rank, of the last body; sums to `iteration`
  RankId last_rank{};                // smallest rank that ends last
  bool period_converged = true;      // false: eight bodies and still changing
  EngineStats engine;
};

struct MemoryFigures {
  std::array<Bytes, kMemoryClasses> at_peak{};  // split at the moment of the allocated peak
  Bytes allocated{}, reserved{}, device{}, host{};
  Bytes reserved_at_peak{};   // held by the allocator at the moment of the allocated peak
  std::int64_t segments = 0;  // of the allocator, at most
  std::int64_t retries = 0;   // cached segments given back because the device was full
  std::string out_of_memory;  // what the framework says where the device does not suffice, or empty

  /// Share of the reserved bytes that nothing uses at the allocated peak.
  double fragmentation() const {
    if (reserved_at_peak.value <= 0) return 0;
    return 1.0 - static_cast<double>(allocated.value) / static_cast<double>(reserved_at_peak.value);
  }
};

struct RoleMemory {
  std::string role;
  MemoryFigures figures;
  Bytes capacity{};
};

/// One class of tensors that communicate, and its codec.
struct CodedClass {
  std::string tensors;              // "layer activations", "gradients over dp" …
  std::string codec;                // codecs.h, describe()
  Bytes blocking_bytes{}, bytes{};  // that a rank sends in an iteration, of the stage with most
  std::optional<double> expected_error;  // as PassFigures'; none for low rank
  bool operator==(const CodedClass&) const = default;
};

/// What the passes overlap and compress did, beside the same job with blocking collectives.
struct PassFigures {
  std::vector<std::int64_t> forward_chunks, backward_chunks;  // samples of each
  bool chunks_asked = false;     // by the pass overlap; else there is one
  bool sequence_chunks = false;  // tokens of each instead
  Ps blocking_iteration = 0;
  // Exposed communication of the rank that ends last: tensor-parallel, of gradients, of messages.
  Ps blocking_exposed = 0, exposed = 0;
  Ps blocking_exposed_dp = 0, exposed_dp = 0;
  Ps blocking_exposed_pp = 0, exposed_pp = 0;
  Bytes blocking_bytes{}, bytes{};  // that a rank of the first stage sends over tp in an iteration
  std::string forward_codec, backward_codec;  // of the layers
  std::vector<CodedClass> classes;            // those that communicate
  double expected_error =
      0;  // the largest of all classes: relative, of one exchange of normally distributed values
  double gain_bound = 1;  // of splitting a forward layer: (C + R) / max(C, R)
  std::string verdict;    // one sentence
  bool operator==(const PassFigures&) const = default;
};

/// What offloading moves in one iteration, of one rank of a role.
struct OffloadFigures {
  std::string role;
  Bytes to_gpu{}, from_gpu{};         // over PCIe or what stands for it
  double in_busy = 0, out_busy = 0;   // share of the iteration that a link of its own would need
  Seconds host_optimizer{}, stall{};  // the host's steps; waits of the compute stream for copies
  bool operator==(const OffloadFigures&) const = default;
};

struct RunResult {
  std::string scenario;
  Execution execution;
  double tokens_per_s = 0, samples_per_s = 0;
  double model_tflops_per_gpu = 0, hardware_tflops_per_gpu = 0, mfu = 0, hfu = 0;
  std::vector<RoleMemory> memory;         // by program
  Seconds low{}, high{};                  // 80 % interval of the iteration time
  std::vector<std::string> extrapolated;  // op names outside the fitted range
  std::vector<std::string> warnings;
  std::optional<PassFigures> passes;
  std::vector<OffloadFigures> offload;  // by role that copies or steps on the host
};

}  // namespace gputwin
