// What leaves the GPU for host memory or NVMe, and by which policy it comes back.
#pragma once

#include <cstdint>

namespace gputwin {

enum class OffloadPlace : std::uint8_t { Gpu, Cpu, Nvme };

/// When what left comes back. Greedy: as early as a slot of the GPU is free, the occupant to leave
/// chosen by stall and by its next use. OnDemand: when a kernel needs it and nothing runs; the
/// occupant with the farthest next use leaves (PatrickStar; with one slot L2L).
enum class OffloadPolicy : std::uint8_t { Greedy, OnDemand };

/// Where 16-bit gradients become the F32 ones that the host's step reads, and its F32 weights
/// 16-bit ones. Host: there, so that 2 bytes a parameter are copied each way; Gpu: 4 bytes;
/// Cheaper: on the GPU where the link takes the other 2 in less time than the host's memory a pass
/// over 2 and 4 (SuperOffload).
enum class OffloadCast : std::uint8_t { Host, Gpu, Cheaper };

struct OffloadSpec {
  bool enabled = false;
  OffloadPlace params = OffloadPlace::Gpu;     // 16-bit weights
  OffloadPlace gradients = OffloadPlace::Gpu;  // as accumulated and reduced
  OffloadPlace optimizer = OffloadPlace::Gpu;  // states; the step runs where they are
  // What a layer keeps for its backward pass; with full recomputation its input.
  OffloadPlace activations = OffloadPlace::Gpu;
  bool step_on_gpu = false;  // states that leave come back for the step (L2L)
  // F32 masters stay beside the host's copies of them: F32 gradients, clipped on the GPU, go down,
  // F32 weights come up (Megatron's HybridDeviceOptimizer).
  bool masters_on_gpu = false;
  bool params_auto = false;  // weights leave only as far as memory is short
  OffloadPolicy policy = OffloadPolicy::Greedy;
  bool delayed_update = false;       // a step uses the gradients of the iteration before
  bool clip_by_norm = true;          // false: no step waits for the norm of all gradients
  bool optimizer_by_bucket = false;  // the step of a bucket starts when its gradient has arrived
  bool pinned = true;                // page-locked host memory
  bool overlap_copies = true;        // false: copies run in the compute stream, between kernels
  // Of the states that leave; the rest is updated on the GPU. Below 0: as little as memory asks
  // for, and weights and gradients leave only where all states must.
  double optimizer_share = 1.0;
  // Buckets of the first layers that stay whole, weights, gradients and states, and are stepped on
  // the GPU; as many of these as fit beside as many slots (StrongHold's first window).
  std::int64_t window = 0;
  OffloadCast cast = OffloadCast::Host;
  bool writes_back = false;          // weights are copied down when they leave, though unchanged
  std::int64_t slots = 0;            // of weights on the GPU, at most; 0: as many as fit
  std::int64_t bucket_elements = 0;  // 0: searched
  double reserve = 0.05;             // share of GPU memory left free
  bool operator==(const OffloadSpec&) const = default;
};

}  // namespace gputwin
