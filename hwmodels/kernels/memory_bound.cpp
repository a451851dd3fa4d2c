#include "hwmodels/kernels/memory_bound.h"

#include <algorithm>

#include "sim/core/check.h"
#include "sim/core/codec.h"

namespace gputwin {

namespace {

constexpr double kLow = 0.85, kHigh = 1.20;
constexpr double kOpaqueShareOfPeak = 0.7;  // what large GEMMs and convolutions reach
// Elements per second and core, vectorised. Measured: 0.51 s for 2B and 1.03 s for 4B parameters on
// the 48 cores of a DGX-2 give 82e6 (Ren et al. 2021, ZeRO-Offload, table 4).
constexpr double kCpuAdamPerCore = 82e6;
constexpr double kDramEfficiency = 0.6;
constexpr std::int64_t kCpuAdamBytes = 28;
// Times a codec reads its input. To find the k largest of a token: maximum, three rounds of a radix
// select, compaction, packing (4 to 8 are usual: assumed); to quantise alone: range, then pack.
constexpr std::int64_t kSelectPasses = 6, kScalePasses = 2;
// Passes over the rows of experts in F32 besides those in their own format, for each expert and in
// torch operators (op.h, note 21). Forward: weighed bias written, read; sum written, read, copied,
// read. Backward: gradient widened, read; products for bias and for weights written and read, of
// the gradient read again; the gradient of the rows cast back.
constexpr std::int64_t kBiasWide = 6, kBiasNarrow = 2;
constexpr std::int64_t kBiasGradWide = 8, kBiasGradNarrow = 4;
constexpr std::int64_t kLambPasses = 5;  // update written; weight and update read twice

Bytes bytes_of(std::int64_t elements, DType dtype) {
  return Bytes((elements * bits(dtype) + 7) / 8);
}

// One byte per element: the mask that a dropout writes in the forward pass and reads in the
// backward pass.
Bytes mask_bytes(const Op& op, std::int64_t elements) {
  return op.dropout > 0.0f ? Bytes(elements) : Bytes(0);
}

enum class Access : std::uint8_t { Elementwise, Norm, Softmax, Reduction, Gather, Optimizer };

// How the kernel of `kind` walks memory; calls that are priced elsewhere break our own invariant.
Access access_of(OpKind kind) {
  switch (kind) {
    case OpKind::NormForward:
    case OpKind::NormBackward: return Access::Norm;
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward:
    case OpKind::RouterForward:
    case OpKind::RouterBackward:
    case OpKind::LogitsSum:
    case OpKind::CrossEntropyBackward: return Access::Softmax;
    case OpKind::BiasGrad:
    case OpKind::PositionGrad:
    case OpKind::LogitsMax:
    case OpKind::LossFromSums:
    case OpKind::AbsMax:
    case OpKind::Orthonormalise:
    case OpKind::SumOfSquares: return Access::Reduction;
    case OpKind::Permute:
    case OpKind::Unpermute:
    case OpKind::EmbeddingForward:
    case OpKind::EmbeddingBackward: return Access::Gather;
    case OpKind::AdamStep:
    case OpKind::LambStep:
    case OpKind::SgdStep: return Access::Optimizer;
    case OpKind::ActivationForward:
    case OpKind::ActivationBackward:
    case OpKind::AttentionMerge:
    case OpKind::BiasDropoutAdd:
    case OpKind::ExpertBias:
    case OpKind::DropoutBackward:
    case OpKind::Rope:
    case OpKind::MlaRope:
    case OpKind::MlaKeyValue:
    case OpKind::MlaKeyValueGrad:
    case OpKind::PositionAdd:
    case OpKind::Add:
    case OpKind::CastCopy:
    case OpKind::Quantize:
    case OpKind::Encode:
    case OpKind::Decode:
    case OpKind::Zero:
    case OpKind::Opaque: return Access::Elementwise;
    case OpKind::Gemm:
    case OpKind::GroupedGemm:
    case OpKind::AttentionScores:
    case OpKind::AttentionContext:
    case OpKind::AttentionGradProbs:
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradQuery:
    case OpKind::AttentionGradKey:
    case OpKind::FlashForward:
    case OpKind::FlashBackward:
    case OpKind::ConvForward:
    case OpKind::ConvGradInput:
    case OpKind::ConvGradWeight:
    case OpKind::RnnForward:
    case OpKind::RnnGradInput:
    case OpKind::RnnGradWeight:
    case OpKind::CpuAdam:
    case OpKind::AllReduce:
    case OpKind::AllGather:
    case OpKind::ReduceScatter:
    case OpKind::AllToAll:
    case OpKind::Broadcast:
    case OpKind::SendTo:
    case OpKind::RecvFrom:
    case OpKind::CopyBytes: GPUTWIN_CHECK(false, "only memory-bound kernels are priced here");
  }
  return Access::Elementwise;
}

double efficiency_of(const MemoryBoundParameters& m, Access access) {
  switch (access) {
    case Access::Elementwise: return m.elementwise;
    case Access::Norm: return m.norm;
    case Access::Softmax: return m.softmax;
    case Access::Reduction: return m.reduction;
    case Access::Gather: return m.gather;
    case Access::Optimizer: return m.optimizer;
  }
  return m.elementwise;
}

Cost streaming_cost(const Device& device, Bytes moved, double efficiency) {
  const Seconds memory(static_cast<double>(moved.value) /
                       (efficiency * device.memory_bandwidth.value));
  Cost cost;
  cost.time = device.memory_bound.start_up + memory;
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = device.memory_bound.start_up;
  cost.terms[static_cast<std::size_t>(Term::Memory)] = memory;
  cost.low = kLow;
  cost.high = kHigh;
  return cost;
}

}  // namespace

Bytes moved_bytes(const Op& op, Bytes read, Bytes written) {
  const auto& d = op.dims;
  const std::int64_t rows_times_width = d[0] * d[1];
  if (op.kind == OpKind::SoftmaxForward || op.kind == OpKind::SoftmaxBackward) {
    const std::int64_t elements = d[0] * d[1] * d[2] * d[3];
    const Bytes half = op.causal ? Bytes(read.value / 2) : read;
    // A separate dropout pass over the probabilities: read, write, and one mask byte.
    const Bytes dropout = op.dropout > 0.0f ? bytes_of(2 * elements, op.out) : Bytes(0);
    return half + written + dropout + mask_bytes(op, elements);
  }
  if (op.kind == OpKind::EmbeddingForward || op.kind == OpKind::PositionAdd) {
    const Bytes input =
        op.kind == OpKind::PositionAdd ? bytes_of(rows_times_width, op.dtype) : Bytes(0);
    return input + bytes_of(rows_times_width, op.dtype) + written;
  }
  if (op.kind == OpKind::EmbeddingBackward || op.kind == OpKind::PositionGrad) {
    return bytes_of(rows_times_width, op.dtype) + bytes_of(2 * rows_times_width, op.out);
  }
  if (op.kind == OpKind::Rope) return bytes_of(2 * d[0] * (d[1] + d[2]) * d[3], op.dtype);
  if (op.kind == OpKind::MlaRope) return bytes_of(2 * d[0] * d[1] * d[3], op.dtype);
  if (op.kind == OpKind::BiasDropoutAdd || op.kind == OpKind::DropoutBackward) {
    return read + written + mask_bytes(op, rows_times_width);
  }
  if (op.kind == OpKind::ExpertBias) {
    return bytes_of(rows_times_width * (op.inverse ? kBiasGradWide : kBiasWide), DType::F32) +
           bytes_of(rows_times_width * (op.inverse ? kBiasGradNarrow : kBiasNarrow), op.dtype);
  }
  if (op.kind == OpKind::AttentionMerge) return read + written + written;
  if (op.kind == OpKind::Encode) {
    const auto kind = static_cast<CodecKind>(d[4]);
    const bool sparse = kind == CodecKind::TopkPwq || kind == CodecKind::Topk;
    const std::int64_t passes = sparse ? kSelectPasses : kScalePasses;
    const Bytes x = bytes_of(rows_times_width, op.dtype);
    if (read.value <= x.value) return read * passes + written;
    // The first pass leaves x + e in the place of e, the others read that.
    const Bytes e = read - x;
    return read + e * passes + written;
  }
  // A pass over column i and those after it, twice: (r + 1) / 2 times the matrix, read and written.
  if (op.kind == OpKind::Orthonormalise) return (read + written) * (d[1] + 1);
  // A copy of the rank's own part reads that part of the view.
  if (op.kind == OpKind::CastCopy && op.slot.valid()) return bytes_of(d[0], op.dtype) + written;
  // `out` is the format of the states; they are read before they are written.
  if (op.kind == OpKind::AdamStep) return read + written + bytes_of(3 * d[0], op.out);
  if (op.kind == OpKind::SgdStep) return read + written + bytes_of(2 * d[0], op.out);
  if (op.kind == OpKind::LambStep) {
    return read + written + bytes_of(3 * d[0], op.out) + bytes_of(kLambPasses * d[0], DType::F32);
  }
  return read + written;
}

Cost memory_bound_cost(const Device& device, const Op& op, Bytes read, Bytes written) {
  const double efficiency = efficiency_of(device.memory_bound, access_of(op.kind));
  Cost cost = streaming_cost(device, moved_bytes(op, read, written), efficiency);
  if (op.kind == OpKind::Orthonormalise || op.kind == OpKind::ExpertBias) {
    // Kernels on a column, or on an expert's rows, wait for those before, so their start-ups do not
    // hide one another.
    const Seconds more = device.memory_bound.start_up * (op.launches - 1);
    cost.time = cost.time + more;
    cost.terms[static_cast<std::size_t>(Term::StartUp)] = device.memory_bound.start_up + more;
  }
  cost.model = "memory-bound: t0 + bytes / (efficiency x bandwidth)";
  const bool optimizer =
      op.kind == OpKind::AdamStep || op.kind == OpKind::LambStep || op.kind == OpKind::SgdStep;
  cost.op_class = optimizer ? "optimizer" : "memory_bound";
  return cost;
}

Cost opaque_cost(const Device& device, const Op& op, Bytes read, Bytes written) {
  if (op.stated.value > 0) {
    Cost stated;
    stated.time = op.stated;
    stated.terms[static_cast<std::size_t>(Term::Compute)] = op.stated;
    stated.low = 0.9, stated.high = 1.1;
    stated.model = "measured elsewhere, as the model file states it";
    stated.op_class = "stated";
    return stated;
  }
  Cost cost = streaming_cost(device, read + written, device.memory_bound.elementwise);
  const double peak = device.sustained_rate(op.dtype).value;
  const Seconds compute(op.flops.value / (kOpaqueShareOfPeak * peak));
  cost.terms[static_cast<std::size_t>(Term::Compute)] = compute;
  cost.time = device.memory_bound.start_up + std::max(compute, cost.term(Term::Memory));
  cost.low = 0.7;
  cost.high = 1.4;
  cost.extrapolated = true;
  cost.model = "stated work: t0 + max(flops / 70 % of peak, bytes / bandwidth)";
  cost.op_class = "opaque";
  return cost;
}

Cost cpu_adam_cost(const NodeType& node, std::int64_t elements, std::int64_t ranks) {
  const double gpus = std::max(1.0, static_cast<double>(ranks > 0 ? ranks : node.gpus));
  const double cores = std::max(1.0, node.host.cores / gpus);
  const double n = static_cast<double>(elements);
  const Seconds compute(n / (cores * kCpuAdamPerCore));
  const double dram = node.host.dram.value / gpus * kDramEfficiency;
  const Seconds memory(dram > 0 ? n * kCpuAdamBytes / dram : 0.0);
  Cost cost;
  cost.time = std::max(compute, memory);
  cost.terms[static_cast<std::size_t>(Term::Compute)] = compute;
  cost.terms[static_cast<std::size_t>(Term::Memory)] = memory;
  cost.low = 0.6;
  cost.high = 1.6;
  cost.extrapolated = true;
  cost.model = "host Adam: max(elements / (cores x rate), 28 B per element / DRAM share)";
  cost.op_class = "host_optimizer";
  return cost;
}

}  // namespace gputwin
