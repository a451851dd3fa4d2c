#include "hwmodels/hardware_model.h"

#include <algorithm>

#include "hwmodels/kernels/attention.h"
#include "hwmodels/kernels/gemm.h"
#include "hwmodels/kernels/memory_bound.h"
#include "hwmodels/kernels/training_layers.h"
#include "hwmodels/links/copies.h"
#include "hwmodels/memory/runtime_memory.h"
#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"

namespace gputwin {

namespace {

void scale(Cost& cost, double factor) {
  if (factor == 1.0) return;
  cost.time = cost.time * factor;
  for (Seconds& term : cost.terms) term = term * factor;
}

Cost gemm(const Device& device, const Op& op, Bytes read, Bytes written) {
  GemmShape shape{.m = op.dims[0], .n = op.dims[1], .k = op.dims[2], .dtype = op.dtype};
  shape.trans_a = op.trans_a;
  shape.trans_b = op.trans_b;
  if (op.slot.valid()) {  // of one member's rows: views name all of them (op.h, note 20)
    const auto [m, n, k, u0, u1, u2] = op.dims;
    read = Bytes((m * k + k * n) * bits(op.dtype) / 8);
    written = Bytes(m * n * bits(op.out) / 8);
  }
  shape.traffic = read + written + (op.accumulate ? written : Bytes(0));
  return gemm_cost(device, shape);
}

// The products of all experts as one: rows padded to tiles for each expert. Of a weight gradient
// the rows are the reduction dimension, and the outputs of the experts lie below each other.
Cost grouped_gemm(const Device& device, const Op& op, Bytes read, Bytes written) {
  const auto [g, m, n, k, u0, u1] = op.dims;
  constexpr std::int64_t kLeast = 16, kMost = 128;
  std::int64_t tile = kLeast;
  while (tile < kMost && tile < m) tile *= 2;
  const std::int64_t rows = (m + tile - 1) / tile * tile;
  GemmShape shape{.m = g * rows, .n = n, .k = k, .dtype = op.dtype};
  shape.trans_a = op.trans_a;
  shape.trans_b = op.trans_b;
  shape.traffic = read + written + (op.accumulate ? written : Bytes(0));
  Cost cost = gemm_cost(device, shape);
  cost.model = "grouped gemm: rows of each group padded to tiles, as one gemm";
  return cost;
}

Cost products(const Device& device, const Op& op, Bytes read, Bytes written) {
  return op.kind == OpKind::Gemm ? gemm(device, op, read, written)
                                 : grouped_gemm(device, op, read, written);
}

bool moves_expert_rows(const Op& op) {
  return op.weighted || op.kind == OpKind::Permute || op.kind == OpKind::Unpermute ||
         op.kind == OpKind::RouterForward || op.kind == OpKind::RouterBackward;
}

Stack adjusted(Stack stack, const Adjustments& adjustments) {
  if (!adjustments.stack_factors) stack.factors = kNoFactors;
  for (std::size_t f = 0; f < kFactors; ++f) stack.factors[f] *= adjustments.times[f];
  if (!adjustments.network.curves.empty()) stack.network = adjustments.network;
  stack.host.launch = stack.host.launch * stack.factor(Factor::Host);
  stack.host.collective_launch = stack.host.collective_launch * stack.factor(Factor::Host);
  stack.host.resume = stack.host.resume * stack.factor(Factor::Host);
  return stack;
}

}  // namespace

HardwareModel::HardwareModel(const Topology& topology, const Job& job,
                             const std::filesystem::path& data, const Adjustments& adjustments)
    : topology_(topology),
      nccl_(load_nccl_constants(data / "links" / "nccl.json")),
      forced_(adjustments.nccl) {
  const std::vector<std::string> known = list_devices(data / "devices");
  const Cluster& cluster = topology.cluster();
  for (const std::string& name : cluster.device_kinds()) {
    const bool file = std::filesystem::path(name).extension() == ".json";
    if (!file && !std::binary_search(known.begin(), known.end(), name)) {
      throw InputError(cluster.name, "/device", name, "is not a known device",
                       "nearest: " + nearest_name(name, known));
    }
    devices_.push_back(
        load_device(file ? std::filesystem::path(name) : data / "devices" / (name + ".json")));
    attach_gemm_corrections(devices_.back(), data / "residuals");
    for (const NodeGroup& group : cluster.groups) {
      if (group.type.device != name) continue;
      nodes_.push_back(&group.type);
      break;
    }
  }
  StackChoice choice = choose_stack(data / "stacks", job.stack);
  stack_deviation_ = choice.deviation;
  if (adjustments.stack_factors) experts_ = choose_experts(data / "stacks" / "experts", job.stack);
  if (!choice.note.empty()) notes_.push_back(std::move(choice.note));
  for (const Device& device : devices_) {
    stacks_.push_back(adjusted(choice.stack.on(device.architecture), adjustments));
  }
  for (Device& device : devices_) {
    if (choice.stack.benchmark) {
      device.collectives =
          load_collective_curves(data / "collectives" / "curves" / (device.name + ".json"));
    }
    if (device.processor) {
      device.processor->among_copies = adjustments.among_copies;
      device.processor->pace = adjustments.processor_pace;
    }
    if (!adjustments.power_limits) device.sustained.fill(1.0);
    if (!adjustments.head_alignment) device.attention.misaligned_head_time = 1.0;
  }
  for (const Device& device : devices_) {
    const AttentionRate& rate = device.attention.kernels[static_cast<std::size_t>(job.attention)];
    if (device.processor || !is_flash(job.attention) || rate.forward.value > 0) continue;
    notes_.push_back(std::string(to_string(job.attention)) + " attention does not run on " +
                     device.name + ": priced as the nearest kernel that does");
  }
}

Cost HardwareModel::kernel(const Op& op, Bytes read, Bytes written, DeviceKindId kind) const {
  GPUTWIN_CHECK(kind.value < devices_.size(), "device kinds come from the cluster");
  GPUTWIN_CHECK(op.kind < OpKind::AllReduce, "communication and copies are no kernels");
  const Device& device = devices_[kind.value];
  if (op.kind == OpKind::Gemm && op.stated.value > 0) {
    Cost cost = opaque_cost(device, op, read, written);
    cost.model = "bound: what a product adds to the exchange it is fused with, and one tile";
    return cost;
  }
  if (device.processor) {
    return processor_kernel(*device.processor, *nodes_[kind.value], op, read, written);
  }
  const Stack& stack = stacks_[kind.value];
  Cost cost;
  double factor = 1.0;
  switch (op.kind) {
    case OpKind::Gemm:
    case OpKind::GroupedGemm:
      cost = products(device, op, read, written);
      factor = stack.factor(Factor::Gemm);
      if (op.kind == OpKind::GroupedGemm) factor *= experts_.products;
      break;
    case OpKind::AttentionScores:
    case OpKind::AttentionContext:
    case OpKind::AttentionGradProbs:
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradQuery:
    case OpKind::AttentionGradKey:
      cost = attention_gemm_cost(device, op, read + written);
      factor = stack.factor(Factor::Attention);
      break;
    case OpKind::FlashForward:
    case OpKind::FlashBackward:
      cost = flash_cost(device, op, read + written);
      factor = stack.factor(Factor::Attention);
      break;
    case OpKind::Opaque: cost = opaque_cost(device, op, read, written); break;
    case OpKind::ConvForward:
    case OpKind::ConvGradInput:
    case OpKind::ConvGradWeight:
      cost = training_convolution_cost(device, op);  // cuDNN's, whatever the stack
      break;
    case OpKind::RnnForward:
    case OpKind::RnnGradInput:
    case OpKind::RnnGradWeight:
      cost = training_rnn_cost(device, op);
      factor = stack.factor(Factor::Gemm);
      break;
    case OpKind::CpuAdam: cost = cpu_adam_cost(*nodes_[kind.value], op.dims[0], op.dims[1]); break;
    default:  // all others move bytes
      cost = memory_bound_cost(device, op, read, written);
      factor = stack.factor(Factor::MemoryBound) * (moves_expert_rows(op) ? experts_.rows : 1.0);
      break;
  }
  scale(cost, factor);
  return cost;
}

Cost HardwareModel::copy(CopyKind kind, Bytes bytes, bool pinned, GpuId gpu) const {
  const Device& device = devices_[topology_.device_kind(gpu).value];
  if (device.processor) {
    return processor_copy(*device.processor, topology_.node_type(gpu), kind, bytes);
  }
  return copy_cost(device, topology_.node_type(gpu), kind, bytes, pinned);
}

CollectiveSchedule HardwareModel::collective(OpKind kind, Bytes bytes,
                                             std::span<const GpuId> members) const {
  GPUTWIN_CHECK(!members.empty(), "a communicator has members");
  const DeviceKindId device = topology_.device_kind(members.front());
  if (const auto& processor = devices_[device.value].processor) {
    return processor_collective(*processor, topology_.node_type(members.front()), kind, bytes,
                                static_cast<std::int32_t>(members.size()));
  }
  CollectiveSchedule schedule = nccl_schedule(nccl_, devices_[device.value], stacks_[device.value],
                                              topology_, kind, bytes, members, forced_);
  if (kind != OpKind::AllToAll || experts_.exchange == 1.0) return schedule;
  // As if so many bytes were sent.
  schedule.latency = schedule.latency * experts_.exchange;
  for (FlowEdge& edge : schedule.edges) {
    edge.bytes =
        Bytes(static_cast<std::int64_t>(static_cast<double>(edge.bytes.value) * experts_.exchange));
  }
  return schedule;
}

Interference HardwareModel::interference(DeviceKindId kind) const {
  return {devices_[kind.value].interference.compute_slowdown};
}

HostCost HardwareModel::host(DeviceKindId kind) const {
  HostCost host = stacks_[kind.value].host;
  if (const auto& processor = devices_[kind.value].processor) {
    host.launch = host.collective_launch = processor->issue;
    host.resume = Seconds{};
  }
  return host;
}

MemoryCost HardwareModel::memory(DeviceKindId kind,
                                 std::span<const std::int32_t> communicators) const {
  MemoryCost cost = runtime_memory(devices_[kind.value], communicators);
  const Stack& stack = stacks_[kind.value];
  if (stack.reserved_over_allocated > 0) {
    cost.reserved_over_allocated = stack.reserved_over_allocated;
  }
  cost.context += stack.device_extra;
  return cost;
}

}  // namespace gputwin
