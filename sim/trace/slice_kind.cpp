#include "sim/trace/slice_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

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

SliceKind slice_kind(std::string_view name, std::string_view category, std::string_view thread) {
  const std::string n = lower(name), c = lower(category), t = lower(thread);
  const bool gpu = c.starts_with("kernel") || c.starts_with("gpu_");
  const bool ours = c == "forward" || c == "backward" || c == "recompute" || c == "weight_grad" ||
                    c == "reduce" || c == "gather" || c == "optimizer" || c == "pipeline" ||
                    c == "offload" || c == "data";
  if (c == "gpu_memcpy" || c == "gpu_memset" || n.starts_with("memcpy") || c == "offload") {
    return SliceKind::Copy;
  }
  const bool collective = n.find("nccl") != std::string::npos ||
                          (!n.starts_with("void at::") &&
                           has_any(n, {"all_reduce", "allreduce", "all_gather", "reduce_scatter",
                                       "alltoall", "all_to_all", "broadcast"}));
  if (collective && (gpu || ours)) return of_communication(t);
  if (c == "pipeline") return SliceKind::PpComm;
  if (c == "optimizer" || (gpu && has_any(n, {"adam", "lamb_", "lambfunctor", "lambstage", "sgd",
                                              "optimizer", "multi_tensor", "l2norm"}))) {
    return SliceKind::Optimizer;
  }
  if (!gpu && !ours) {
    const bool host = c == "cpu_op" || c == "operator" || c == "python_function" ||
                      c.starts_with("cuda_") || c == "runtime" || c == "user_annotation";
    return host ? SliceKind::Host : SliceKind::Other;
  }
  if (c == "gpu_user_annotation") return SliceKind::Other;
  if (has_any(n, {"attention", "attn", "flash", "fmha", "softmax"})) return SliceKind::Attention;
  if (has_any(n, {"gemm", "gemv", "cutlass", "cublas", "xmma", "nvjet", "wgrad", "dgrad", "qkv",
                  "proj", "fc1", "fc2", "_mm", "matmul"})) {
    return SliceKind::Gemm;
  }
  return SliceKind::Pointwise;
}

}  // namespace gputwin
