// Time of one instruction as named terms with their origin, and what a collective puts on the
// links.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/topology.h"
#include "sim/core/units.h"

namespace gputwin {

/// Terms of a cost. `time` is what the model makes of them (a maximum, a p-norm, a sum), not always
/// their sum.
enum class Term : std::uint8_t { Compute, Memory, Wave, SplitK, StartUp, Latency, Bandwidth };
inline constexpr std::size_t kTerms = 7;

struct Cost {
  Seconds time{};
  std::array<Seconds, kTerms> terms{};  // indexed by Term
  double low = 1.0, high = 1.0;         // 80 % interval as factors on `time`
  bool extrapolated = false;            // outside the range the model was fitted on
  const char* model = "";  // "gemm: tile and wave quantisation" — static text naming the equation
  const char* op_class = "";  // errors of one class are correlated: "gemm", "attention", …

  Seconds term(Term t) const { return terms[static_cast<std::size_t>(t)]; }
};

enum class Algorithm : std::uint8_t { Ring, Tree, NvLink, Direct };
enum class Protocol : std::uint8_t { LL, LL128, Simple };

/// Bytes that one member sends to another during a collective.
struct FlowEdge {
  std::uint32_t from = 0, to = 0;  // member indices
  Bytes bytes{};
  bool operator==(const FlowEdge&) const = default;
};

/// A collective as flows: all edges start together after `latency`, each at most at `rate_cap`; the
/// collective ends with its last edge. Closed form, reference executor and SimGrid all read this
/// value.
struct CollectiveSchedule {
  std::vector<FlowEdge> edges;
  Seconds latency{};          // protocol steps and wires
  BytesPerSecond rate_cap{};  // per edge; 0: none
  double sm_share = 0.0;      // fraction of the GPU's SMs the collective occupies
  Algorithm algorithm = Algorithm::Ring;
  Protocol protocol = Protocol::Simple;
  double low = 1.0, high = 1.0;
  bool extrapolated = false;
  const char* model = "";
};

/// Time of a schedule whose links carry nothing else: latency + the slowest of all edges at their
/// cap and of all links with the bytes routed over them. `members[i]` is the GPU of member i.
Seconds closed_form(const CollectiveSchedule& schedule, const std::vector<GpuId>& members,
                    const Topology& topology);

/// How kernels slow down while communication runs on the same GPU (SM share and memory bandwidth).
struct Interference {
  double compute_slowdown = 1.0;  // factor on the duration of kernels while a collective is active
};

struct HostCost {
  Seconds launch{};             // host time to issue one instruction
  Seconds collective_launch{};  // to issue one collective, send or receive
  Seconds resume{};             // more for the first task issued after HostWaits, however many
  /// Tasks issued and not yet ended, at most: task k is issued when task k - depth has ended. It is
  /// a ring freed in issue order, like the driver's.
  std::int32_t queue_depth = 1024;
};

/// Memory beside the plan's own buffers.
struct MemoryCost {
  Bytes context{};        // CUDA context and libraries
  Bytes communicators{};  // NCCL buffers of all communicators of the rank
  Bytes workspace{};      // cuBLAS and others, inside the allocator
  double reserved_over_allocated = 1.0;
  Bytes capacity{};  // memory of the device; 0: unknown, nothing is refused
};

}  // namespace gputwin
