// Copies between GPU, host memory and NVMe.
//
//   t = start-up + bytes / rate
//   host <-> device   PCIe of the GPU x usable share; pageable memory reaches 40 % of it (staged)
//   device -> device  on one GPU: read and write through HBM
//   host <-> NVMe     the node's drives
// Source  start-up 10 us and 40 %: bandwidthTest on A100-SXM4-80GB (25.7 GB/s pinned, 10 GB/s
//         pageable).
// Range   from 64 KiB on; smaller copies are start-up alone.
#pragma once

#include "hwmodels/device.h"
#include "sim/core/cluster.h"
#include "sim/core/cost.h"

namespace gputwin {

/// Cost of a copy that has its links to itself. Throws InputError if the node has no such link (no
/// NVMe).
Cost copy_cost(const Device& device, const NodeType& node, CopyKind kind, Bytes bytes, bool pinned);

}  // namespace gputwin
