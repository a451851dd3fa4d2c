// What a slice of a timeline is, coarsely enough to be a colour and a line of a breakdown.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/core/plan.h"

namespace gputwin {

enum class SliceKind : std::uint8_t {
  Gemm,
  Attention,
  Pointwise,
  Optimizer,
  TpComm,
  DpComm,
  PpComm,
  OtherComm,
  Copy,
  Host,
  Other
};
inline constexpr std::size_t kSliceKinds = 11;

/// "matrix multiply", "tp communication", …: what a person reads.
std::string_view label(SliceKind kind);

constexpr bool is_communication(SliceKind k) {
  return k >= SliceKind::TpComm && k <= SliceKind::OtherComm;
}
constexpr bool is_compute(SliceKind k) { return k <= SliceKind::Optimizer; }

/// What a slice of a profile is, by its category as PyTorch's profiler (Kineto) and CUPTI spell it.
enum class ProfileEvent : std::uint8_t {
  Kernel,
  Copy,      // memcpy and memset on the GPU
  Call,      // the host's call of CUDA: runtime or driver
  HostOp,    // an operator of the framework on the host
  Frame,     // a function of the interpreter around them
  Sync,      // a record of waiting: no work, on whatever track
  Overhead,  // the profiler's own
  Range,     // around others (annotations, profiling sessions), or without a time of its own
  None       // no category of a profiler
};
ProfileEvent profile_event(std::string_view category);
constexpr bool on_gpu(ProfileEvent e) {
  return e == ProfileEvent::Kernel || e == ProfileEvent::Copy;
}

/// Kind of an instruction of a plan; `domain` is what its slot serves, for communications.
SliceKind slice_kind(const Instruction& instruction, const Plan& plan, const Program& program);

/// Kind of a slice of an imported trace, from its name and category as Kineto spells them. Ranges
/// around others are Other, whatever work their name speaks of. What a parallel dimension a
/// collective serves is not in such traces: OtherComm, unless the name of the track (`thread`)
/// begins with "tp", "dp" or "pp", as those of gputwin do.
SliceKind slice_kind(std::string_view name, std::string_view category, std::string_view thread);

/// Kind of an operation of a plan, where only its kind, phase and the name of its stream are known.
SliceKind slice_kind(OpKind kind, Phase phase, std::string_view thread);

/// What a process group serves, from its description: "TENSOR_MODEL_PARALLEL_GROUP" of Megatron,
/// "mesh_tp" of torchtitan. OtherComm if it does not say.
SliceKind communication_kind(std::string_view group);

}  // namespace gputwin
