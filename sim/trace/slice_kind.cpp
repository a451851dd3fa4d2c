#include "sim/trace/slice_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

#include "sim/core/spelling.h"

namespace gputwin {

std::string_view label(SliceKind kind) {
  switch (kind) {
    case SliceKind::Gemm: return "matrix multiply";
    case SliceKind::Attention: return "attention";
    case SliceKind::Pointwise: return "other kernels";
    case SliceKind::Optimizer: return "optimizer";
    case SliceKind::TpComm: return "tp communication";
    case SliceKind::DpComm: return "dp communication";
    case SliceKind::PpComm: return "pp communication";
    case SliceKind::OtherComm: return "other communication";
    case SliceKind::Copy: return "copy";
    case SliceKind::Host: return "host";
    case SliceKind::Other: return "other";
  }
  return "";
}

namespace {

SliceKind of_domain(Domain domain) {
  switch (domain) {
    case Domain::Tp: return SliceKind::TpComm;
    case Domain::Dp: return SliceKind::DpComm;
    case Domain::Pp: return SliceKind::PpComm;
    case Domain::Ep:
    case Domain::Cp: return SliceKind::OtherComm;
  }
  return SliceKind::OtherComm;
}

SliceKind of_kernel(OpKind kind) {
  if (kind == OpKind::Gemm) return SliceKind::Gemm;
  const bool attention = kind >= OpKind::AttentionScores && kind <= OpKind::AttentionMerge;
  return attention ? SliceKind::Attention : SliceKind::Pointwise;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

bool has_any(const std::string& text, std::initializer_list<std::string_view> words) {
  return std::any_of(words.begin(), words.end(), [&text](std::string_view word) {
    return text.find(word) != std::string::npos;
  });
}

SliceKind of_communication(const std::string& thread) {
  if (thread.starts_with("tp")) return SliceKind::TpComm;
  if (thread.starts_with("dp")) return SliceKind::DpComm;
  if (thread.starts_with("pp")) return SliceKind::PpComm;
  return SliceKind::OtherComm;
}

}  // namespace

SliceKind slice_kind(const Instruction& instruction, const Plan& plan, const Program& program) {
  switch (instruction.kind) {
    case Kind::Collective:
    case Kind::Send:
    case Kind::Recv: {
      const std::uint32_t slot = plan.call(instruction).op.slot.value;
      return slot < program.slots.size() ? of_domain(program.slots[slot].domain)
                                         : SliceKind::OtherComm;
    }
    case Kind::Copy: return SliceKind::Copy;
    case Kind::HostTask: return SliceKind::Host;
    case Kind::Kernel: break;
    case Kind::Alloc:
    case Kind::Free:
    case Kind::Record:
    case Kind::Wait:
    case Kind::HostWait: return SliceKind::Other;
  }
  if (plan.names[instruction.name].phase == Phase::Optimizer) return SliceKind::Optimizer;
  return of_kernel(plan.call(instruction).op.kind);
}

SliceKind slice_kind(OpKind kind, Phase phase, std::string_view thread) {
  if (kind == OpKind::CopyBytes) return SliceKind::Copy;
  if (kind == OpKind::CpuAdam) return SliceKind::Host;
  if (kind >= OpKind::AllReduce && kind <= OpKind::RecvFrom) return of_communication(lower(thread));
  return phase == Phase::Optimizer ? SliceKind::Optimizer : of_kernel(kind);
}

SliceKind communication_kind(std::string_view group) {
  const std::string g = lower(group);
  if (has_any(g, {"tensor", "_tp", "tp_"}) || g == "tp") return SliceKind::TpComm;
  if (has_any(g, {"pipeline", "_pp", "pp_"}) || g == "pp") return SliceKind::PpComm;
  if (has_any(g, {"data", "_dp", "dp_", "fsdp"}) || g == "dp") return SliceKind::DpComm;
  return SliceKind::OtherComm;
}

ProfileEvent profile_event(std::string_view category) {
  static constexpr std::pair<std::string_view, ProfileEvent> kEvents[] = {
      {"kernel", ProfileEvent::Kernel},
      {"concurrent_kernel", ProfileEvent::Kernel},
      {"gpu_memcpy", ProfileEvent::Copy},
      {"gpu_memset", ProfileEvent::Copy},
      {"memcpy", ProfileEvent::Copy},
      {"memset", ProfileEvent::Copy},
      {"cuda_runtime", ProfileEvent::Call},
      {"cuda_driver", ProfileEvent::Call},
      {"runtime", ProfileEvent::Call},
      {"driver", ProfileEvent::Call},
      {"cpu_op", ProfileEvent::HostOp},
      {"operator", ProfileEvent::HostOp},
      {"python_function", ProfileEvent::Frame},
      {"cuda_sync", ProfileEvent::Sync},
      {"synchronization", ProfileEvent::Sync},
      {"overhead", ProfileEvent::Overhead},
      {"user_annotation", ProfileEvent::Range},
      {"gpu_user_annotation", ProfileEvent::Range},
      {"trace", ProfileEvent::Range},
      // CUPTI's range profiler: one range a kernel, each an equal share of the whole session.
      {"cuda_profiler_range", ProfileEvent::Range}};
  const std::string c = lower(category);
  for (const auto& [name, event] : kEvents) {
    if (c == name) return event;
  }
  return ProfileEvent::None;
}

namespace {

bool is_collective(const std::string& name) {
  return name.find("nccl") != std::string::npos ||
         (!name.starts_with("void at::") &&
          has_any(name, {"all_reduce", "allreduce", "all_gather", "reduce_scatter", "alltoall",
                         "all_to_all", "broadcast"}));
}

/// By the name of a kernel, or of an operation of ours.
SliceKind of_computation(const std::string& name) {
  if (has_any(name, {"attention", "attn", "flash", "fmha", "softmax"})) {
    return SliceKind::Attention;
  }
  if (has_any(name, {"gemm", "gemv", "cutlass", "cublas", "xmma", "nvjet", "wgrad", "dgrad", "qkv",
                     "proj", "fc1", "fc2", "_mm", "matmul"})) {
    return SliceKind::Gemm;
  }
  return SliceKind::Pointwise;
}

SliceKind of_kernel_named(const std::string& name, const std::string& thread) {
  if (name.starts_with("memcpy") || name.starts_with("memset")) return SliceKind::Copy;
  if (is_collective(name)) return of_communication(thread);
  if (has_any(name, {"adam", "lamb_", "lambfunctor", "lambstage", "sgd", "optimizer",
                     "multi_tensor", "l2norm"})) {
    return SliceKind::Optimizer;
  }
  return of_computation(name);
}

/// A slice of gputwin's own: the category is a phase of the plan.
SliceKind of_phase(const std::string& name, const std::string& phase, const std::string& thread) {
  if (name.starts_with("memcpy") || phase == "offload") return SliceKind::Copy;
  if (!from_string<Phase>(phase)) return SliceKind::Other;
  if (is_collective(name)) return of_communication(thread);
  if (phase == "pipeline") return SliceKind::PpComm;
  return phase == "optimizer" ? SliceKind::Optimizer : of_computation(name);
}

}  // namespace

SliceKind slice_kind(std::string_view name, std::string_view category, std::string_view thread) {
  switch (profile_event(category)) {
    case ProfileEvent::Kernel: return of_kernel_named(lower(name), lower(thread));
    case ProfileEvent::Copy: return SliceKind::Copy;
    case ProfileEvent::Call:
    case ProfileEvent::HostOp:
    case ProfileEvent::Frame: return SliceKind::Host;
    case ProfileEvent::Sync:
    case ProfileEvent::Overhead:
    case ProfileEvent::Range: return SliceKind::Other;
    case ProfileEvent::None: break;
  }
  return of_phase(lower(name), lower(category), lower(thread));
}

}  // namespace gputwin
