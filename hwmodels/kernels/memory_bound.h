// Kernels that move bytes: norms, softmax, pointwise, reductions, embedding, cross-entropy,
// optimizer, casts; and the two kinds whose work is stated or done elsewhere (Opaque, CpuAdam).
//
//   t = t0 + bytes / (eff BW)          eff by kind of access, per device (devices/*.json)
//
// `bytes` are those of the call's views, corrected where a kernel moves less or more than its views
// span (moved_bytes): a causal softmax reads half of the scores; an embedding touches t rows of its
// table; dropout reads or writes one mask byte per element; optimizers read back the states they
// write; LAMB writes its update, then reads weight and update for their norms and again for the
// step (Apex, multi_tensor_lamb.cu: two functors and multi_tensor_l2norm between them); accumulated
// matrices are read before they are written; a merge of attention parts reads the part it adds to.
// Source  operator tables: t0 + bytes/BW fits their element-wise, norm and softmax rows to 2 %
//         median, 7 % mean.
// Range   from 1 MB on; below it t0 dominates and one launch is as uncertain as the whole kernel.
#pragma once

#include "hwmodels/device.h"
#include "sim/core/cluster.h"
#include "sim/core/cost.h"
#include "sim/core/op.h"

namespace gputwin {

/// Bytes that the kernel of `op` moves between HBM and SMs.
Bytes moved_bytes(const Op& op, Bytes read, Bytes written);

/// Any kernel kind that is neither a GEMM nor attention nor communication nor on the host.
Cost memory_bound_cost(const Device& device, const Op& op, Bytes read, Bytes written);

/// A kernel whose time is stated takes it. With stated FLOPs: t0 + max(flops / (70 % of the
/// sustained peak), bytes / (eff BW)).
Cost opaque_cost(const Device& device, const Op& op, Bytes read, Bytes written);

/// Adam on the host, `ranks` of the node at once (0: as many as it has GPUs):
/// t = max( n / (cores x rate), bytes / (60 % of DRAM share) ), 28 bytes per element.
/// Source  28 bytes: gradient 4, master, m and v read and written 24. The rate per core is measured
///         on a DGX-2 (memory_bound.cpp); the usable share of DRAM is assumed.
Cost cpu_adam_cost(const NodeType& node, std::int64_t elements, std::int64_t ranks = 0);

}  // namespace gputwin
