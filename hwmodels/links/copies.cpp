#include "hwmodels/links/copies.h"

#include "sim/core/error.h"

namespace gputwin {

namespace {

constexpr Seconds kStartUp(10e-6);      // driver and DMA engine
constexpr Seconds kNvmeStartUp(80e-6);  // one queued request of a data-centre drive
constexpr double kPageableShare = 0.4;

}  // namespace

Cost copy_cost(const Device& device, const NodeType& node, CopyKind kind, Bytes bytes,
               bool pinned) {
  BytesPerSecond rate{};
  Seconds start_up = kStartUp;
  switch (kind) {
    case CopyKind::HostToDevice:
    case CopyKind::DeviceToHost:
      rate = node.pcie.per_gpu * node.pcie.efficiency;
      if (!pinned) rate = rate * kPageableShare;
      break;
    case CopyKind::DeviceToDevice:
      rate = device.memory_bandwidth * (device.memory_bound.elementwise / 2.0);
      start_up = device.memory_bound.start_up;
      break;
    case CopyKind::NvmeToHost:
      rate = node.nvme_read;
      start_up = kNvmeStartUp;
      break;
    case CopyKind::HostToNvme:
      rate = node.nvme_write;
      start_up = kNvmeStartUp;
      break;
  }
  if (rate.value <= 0) {
    throw InputError(node.device, "/node", "", "has no link for this copy",
                     "give the node PCIe or NVMe bandwidth");
  }
  Cost cost;
  const Seconds transfer = bytes / rate;
  cost.time = start_up + transfer;
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = start_up;
  cost.terms[static_cast<std::size_t>(Term::Bandwidth)] = transfer;
  cost.low = 0.9;
  cost.high = 1.15;
  cost.model = "copy: start-up + bytes / link";
  cost.op_class = "copy";
  return cost;
}

}  // namespace gputwin
