#include "sim/core/spelling.h"

#include <array>

namespace gputwin {
namespace {

using std::string_view;

constexpr std::array<string_view, 11> kKind{"kernel", "collective", "send",     "recv",
                                            "copy",   "host_task",  "alloc",    "free",
                                            "record", "wait",       "host_wait"};
constexpr std::array<string_view, 65> kOpKind{"gemm",
                                              "grouped_gemm",
                                              "attention_scores",
                                              "attention_context",
                                              "attention_grad_probs",
                                              "attention_grad_value",
                                              "attention_grad_query",
                                              "attention_grad_key",
                                              "softmax_forward",
                                              "softmax_backward",
                                              "flash_forward",
                                              "flash_backward",
                                              "attention_merge",
                                              "norm_forward",
                                              "norm_backward",
                                              "activation_forward",
                                              "activation_backward",
                                              "bias_dropout_add",
                                              "bias_grad",
                                              "expert_bias",
                                              "dropout_backward",
                                              "rope",
                                              "mla_rope",
                                              "mla_key_value",
                                              "mla_key_value_grad",
                                              "router_forward",
                                              "router_backward",
                                              "permute",
                                              "unpermute",
                                              "embedding_forward",
                                              "embedding_backward",
                                              "position_add",
                                              "position_grad",
                                              "logits_max",
                                              "logits_sum",
                                              "loss_from_sums",
                                              "cross_entropy_backward",
                                              "add",
                                              "cast_copy",
                                              "quantize",
                                              "abs_max",
                                              "encode",
                                              "decode",
                                              "orthonormalise",
                                              "zero",
                                              "sum_of_squares",
                                              "adam_step",
                                              "lamb_step",
                                              "sgd_step",
                                              "cpu_adam",
                                              "opaque",
                                              "conv_forward",
                                              "conv_grad_input",
                                              "conv_grad_weight",
                                              "rnn_forward",
                                              "rnn_grad_input",
                                              "rnn_grad_weight",
                                              "all_reduce",
                                              "all_gather",
                                              "reduce_scatter",
                                              "all_to_all",
                                              "broadcast",
                                              "send_to",
                                              "recv_from",
                                              "copy_bytes"};
static_assert(kOpKind.size() == static_cast<std::size_t>(OpKind::CopyBytes) + 1);
constexpr std::array<string_view, 10> kDType{"f32",   "tf32",  "fp16", "bf16", "fp8",
                                             "mxfp8", "nvfp4", "i64",  "i32",  "u8"};
constexpr std::array<string_view, 10> kPhase{"forward", "recompute", "backward",  "weight_grad",
                                             "reduce",  "gather",    "optimizer", "pipeline",
                                             "offload", "data"};
constexpr std::array<string_view, 7> kMemoryClass{
    "weights", "gradients", "optimizer", "activations", "temporary", "communication", "context"};
constexpr std::array<string_view, 5> kDomain{"tp", "dp", "pp", "ep", "cp"};
constexpr std::array<string_view, 5> kStreamKind{"compute", "communication", "copy_in", "copy_out",
                                                 "host_cpu"};
constexpr std::array<string_view, 5> kActivation{"gelu", "relu", "sq-relu", "swiglu", "geglu"};
constexpr std::array<string_view, 2> kNorm{"layernorm", "rmsnorm"};
constexpr std::array<string_view, 3> kPositions{"learned", "rope", "alibi"};
constexpr std::array<string_view, 5> kAttentionKernel{"unfused", "flash1", "flash2", "flash3",
                                                      "cudnn"};
constexpr std::array<string_view, 4> kOptimizer{"adam", "adamw", "sgd", "lamb"};
constexpr std::array<string_view, 8> kRecipe{"none", "delayed", "current", "blockwise",
                                             "mx",   "nvfp4",   "rowwise", "tensorwise"};
constexpr std::array<string_view, 3> kContextComm{"all-gather", "ring", "all-to-all"};
constexpr std::array<string_view, 3> kExpertComm{"flat", "hierarchical", "auto"};
constexpr std::array<string_view, 7> kTpOverlap{"none",       "userbuffers",   "async-tp",
                                                "columns",    "ring-exchange", "ring-exchange-both",
                                                "fused-bound"};
constexpr std::array<string_view, 5> kCopyKind{"h2d", "d2h", "d2d", "nvme_to_host", "host_to_nvme"};
constexpr std::array<string_view, 3> kAxis{"none", "rows", "cols"};
constexpr std::array<string_view, 14> kSchedule{
    "none",  "gpipe", "1f1b",   "interleaved", "zb-h1",   "zb-h2",           "zb-1p",
    "zb-2p", "zb-v",  "hanayo", "dualpipe",    "chimera", "pipedream-async", "pipedream-stash"};
constexpr std::array<string_view, 5> kRecompute{"none", "selective", "full", "block",
                                                "all-but-last"};
constexpr std::array<string_view, 4> kAlgorithm{"ring", "tree", "nvlink", "direct"};
constexpr std::array<string_view, 3> kProtocol{"ll", "ll128", "simple"};
constexpr std::array<string_view, 10> kPart{"compute",    "exposed_tp", "exposed_dp", "exposed_pp",
                                            "exposed_ep", "exposed_cp", "copy_stall", "bubble",
                                            "optimizer",  "host"};
constexpr std::array<string_view, 5> kIntraKind{"none", "nvswitch", "nvlink-mesh", "nvlink-pairs",
                                                "pcie"};
constexpr std::array<string_view, 7> kFabricKind{"none", "infiniband", "roce",     "ethernet",
                                                 "efa",  "slingshot",  "omni-path"};

template <std::size_t N, class Enum>
string_view word(const std::array<string_view, N>& words, Enum value) {
  return words.at(static_cast<std::size_t>(value));
}

}  // namespace

string_view to_string(Kind v) { return word(kKind, v); }
string_view to_string(OpKind v) { return word(kOpKind, v); }
string_view to_string(DType v) { return word(kDType, v); }
string_view to_string(Phase v) { return word(kPhase, v); }
string_view to_string(MemoryClass v) { return word(kMemoryClass, v); }
string_view to_string(Domain v) { return word(kDomain, v); }
string_view to_string(StreamKind v) { return word(kStreamKind, v); }
string_view to_string(Activation v) { return word(kActivation, v); }
string_view to_string(Norm v) { return word(kNorm, v); }
string_view to_string(Positions v) { return word(kPositions, v); }
string_view to_string(AttentionKernel v) { return word(kAttentionKernel, v); }
string_view to_string(Optimizer v) { return word(kOptimizer, v); }
string_view to_string(Recipe v) { return word(kRecipe, v); }
string_view to_string(ContextComm v) { return word(kContextComm, v); }
string_view to_string(ExpertComm v) { return word(kExpertComm, v); }
string_view to_string(TpOverlap v) { return word(kTpOverlap, v); }
string_view to_string(CopyKind v) { return word(kCopyKind, v); }
string_view to_string(Axis v) { return word(kAxis, v); }
string_view to_string(Schedule v) { return word(kSchedule, v); }
string_view to_string(Recompute v) { return word(kRecompute, v); }
string_view to_string(Algorithm v) { return word(kAlgorithm, v); }
string_view to_string(Protocol v) { return word(kProtocol, v); }
string_view to_string(Part v) { return word(kPart, v); }
string_view to_string(IntraKind v) { return word(kIntraKind, v); }
string_view to_string(FabricKind v) { return word(kFabricKind, v); }

template <>
std::span<const string_view> spellings<Kind>() {
  return kKind;
}
template <>
std::span<const string_view> spellings<OpKind>() {
  return kOpKind;
}
template <>
std::span<const string_view> spellings<DType>() {
  return kDType;
}
template <>
std::span<const string_view> spellings<Phase>() {
  return kPhase;
}
template <>
std::span<const string_view> spellings<MemoryClass>() {
  return kMemoryClass;
}
template <>
std::span<const string_view> spellings<Domain>() {
  return kDomain;
}
template <>
std::span<const string_view> spellings<StreamKind>() {
  return kStreamKind;
}
template <>
std::span<const string_view> spellings<Activation>() {
  return kActivation;
}
template <>
std::span<const string_view> spellings<Norm>() {
  return kNorm;
}
template <>
std::span<const string_view> spellings<Positions>() {
  return kPositions;
}
template <>
std::span<const string_view> spellings<AttentionKernel>() {
  return kAttentionKernel;
}
template <>
std::span<const string_view> spellings<Optimizer>() {
  return kOptimizer;
}
template <>
std::span<const string_view> spellings<Recipe>() {
  return kRecipe;
}
template <>
std::span<const string_view> spellings<ContextComm>() {
  return kContextComm;
}
template <>
std::span<const string_view> spellings<ExpertComm>() {
  return kExpertComm;
}
template <>
std::span<const string_view> spellings<TpOverlap>() {
  return kTpOverlap;
}
template <>
std::span<const string_view> spellings<CopyKind>() {
  return kCopyKind;
}
template <>
std::span<const string_view> spellings<Axis>() {
  return kAxis;
}
template <>
std::span<const string_view> spellings<Schedule>() {
  return kSchedule;
}
template <>
std::span<const string_view> spellings<Recompute>() {
  return kRecompute;
}
template <>
std::span<const string_view> spellings<Algorithm>() {
  return kAlgorithm;
}
template <>
std::span<const string_view> spellings<Protocol>() {
  return kProtocol;
}
template <>
std::span<const string_view> spellings<Part>() {
  return kPart;
}
template <>
std::span<const string_view> spellings<IntraKind>() {
  return kIntraKind;
}
template <>
std::span<const string_view> spellings<FabricKind>() {
  return kFabricKind;
}

string_view dimension_letters(OpKind kind) {
  switch (kind) {
    case OpKind::Gemm: return "mnk";
    case OpKind::GroupedGemm: return "gmnk";
    case OpKind::AttentionScores:
    case OpKind::AttentionContext:
    case OpKind::AttentionGradProbs:
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradQuery:
    case OpKind::AttentionGradKey:
    case OpKind::FlashForward:
    case OpKind::FlashBackward: return "bagsud";
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward: return "basu";
    case OpKind::AttentionMerge: return "basd";
    case OpKind::NormForward:
    case OpKind::NormBackward:
    case OpKind::BiasDropoutAdd:
    case OpKind::BiasGrad:
    case OpKind::DropoutBackward:
    case OpKind::PositionAdd:
    case OpKind::PositionGrad:
    case OpKind::Quantize: return "th";
    case OpKind::Encode: return "thkqc";
    case OpKind::Decode: return "thkqcp";
    case OpKind::ActivationForward:
    case OpKind::ActivationBackward: return "tf";
    case OpKind::Rope: return "tagds";
    case OpKind::MlaRope: return "tanrs";
    case OpKind::MlaKeyValue:
    case OpKind::MlaKeyValueGrad: return "tanrvs";
    case OpKind::RouterForward:
    case OpKind::RouterBackward: return "tek";
    case OpKind::Permute:
    case OpKind::Unpermute: return "thkec";
    case OpKind::ExpertBias: return "the";
    case OpKind::EmbeddingForward:
    case OpKind::EmbeddingBackward: return "thv";
    case OpKind::LogitsMax:
    case OpKind::LogitsSum:
    case OpKind::CrossEntropyBackward: return "tv";
    case OpKind::LossFromSums: return "t";
    case OpKind::Orthonormalise:
    case OpKind::CpuAdam: return "nr";
    case OpKind::Opaque: return "";
    case OpKind::ConvForward:
    case OpKind::ConvGradInput:
    case OpKind::ConvGradWeight: return "ncfhwo";
    case OpKind::RnnForward:
    case OpKind::RnnGradInput:
    case OpKind::RnnGradWeight: return "bsihg";
    case OpKind::Add:
    case OpKind::CastCopy:
    case OpKind::AbsMax:
    case OpKind::Zero:
    case OpKind::SumOfSquares:
    case OpKind::AdamStep:
    case OpKind::LambStep:
    case OpKind::SgdStep:
    case OpKind::AllReduce:
    case OpKind::AllGather:
    case OpKind::ReduceScatter:
    case OpKind::AllToAll:
    case OpKind::Broadcast:
    case OpKind::SendTo:
    case OpKind::RecvFrom:
    case OpKind::CopyBytes: return "n";
  }
  return "";
}

}  // namespace gputwin
