// Collectives as NCCL picks and runs them, expressed as flows.
//
//   ring   all-reduce 2 (n-1)/n S bytes from each member to the next, all-gather and reduce-scatter
//          half of it (S: the larger of input and output), broadcast S. Members go domain by
//          domain (node, or NVLink domain); the traffic between two domains is spread over as many
//          members as both have, member j to member j. On an NVLink mesh one ring lies along every
//          link, so the data is spread over all links between members.
//          latency = base + intra steps x step + inter steps x (net step + wire)
//   tree   all-reduce over nodes: double binary tree, S/2 up and down each tree, spread over k
//          rails; a chain inside the node. Between two nodes it passes S each way, a ring
//          2 (n-1)/n S.
//          latency = base + 2 ((k-1) step + log2(nodes) (net step + wire))
//   NVLS   all-reduce in the NVLink switch, if the stack enables it: (1 + 1/n) S per GPU and
//          direction. Over several nodes (NVLSTree): reduced in each switch, then the tree between
//          the nodes, spread over all rails
//   direct all-to-all S/n to every other member; Send/Recv: one flow
//
// The protocol is chosen by least predicted time: Simple; LL128 (120 of 128 bytes are data, lower
// latency, needs NVLink or InfiniBand); LL (half of the bytes are flags, least latency, limited
// rate). Edges carry wire bytes. `rate_cap` makes an intra-node ring as fast as the measured bus
// bandwidth of the device: t = 2 (n-1)/n S / bus. The share of a network adapter that is usable
// belongs to the cluster's links.
// Source  NCCL src/graph/tuning.cc (latencies, LL limits; links/nccl.json); rates measured
//         (devices/*.json); closed form 2 (n-1) alpha + 2 (n-1)/n S / bandwidth is the usual one.
// Range   8 B to 16 GiB; one node: mean error 7 % of three-line fits bounds what this form can
//         reach; NCCL's own constants without fit were 7-21 % off on H100 nodes of 2, 4 and 8.
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "hwmodels/device.h"
#include "hwmodels/stack.h"
#include "sim/core/cost.h"
#include "sim/core/op.h"
#include "sim/core/topology.h"

namespace gputwin {

inline constexpr std::size_t kProtocols = 3;
inline constexpr std::size_t kNcclGenerations = 4;

/// Constants of NCCL itself; indexed by Protocol where an array.
struct NcclConstants {
  std::array<Seconds, kProtocols> ring_base{}, tree_base{};
  std::array<Seconds, kProtocols> ring_nvlink{}, ring_pcie{}, ring_net{};  // per step
  std::array<Seconds, kProtocols> tree_nvlink{}, tree_pcie{}, tree_net{};
  double tree_efficiency = 1.0;  // share of the bus bandwidth a tree reaches
  Seconds nvls_latency{};
  std::array<double, kProtocols> wire_bytes{};  // bytes on the wire per byte of data
  /// LL's limit by nccl_generation() and by 1, 2, or at least 4 nodes.
  std::array<std::array<BytesPerSecond, 3>, kNcclGenerations> ll_limit{};
  Seconds send_base{};  // fixed part of a Send/Recv pair
  /// Share of the NVLink bandwidth of eight GPUs that two, and three to seven, reach.
  std::array<double, 2> all_reduce_share{1.0, 1.0}, others_share{1.0, 1.0};
  double nvls_share = 1.0;       // of NVLS with less than eight GPUs
  double pcie_ring_share = 1.0;  // share of the usable PCIe rate that a ring without NVLink reaches
  std::vector<Constant> constants;
};

/// Row of NCCL's tables for a GPU: compute capability below 8, 8, 9, or 10 and above (tuning.cc).
std::size_t nccl_generation(Architecture architecture);

/// Reads hwmodels/links/nccl.json. Throws InputError as ConstantsFile does.
NcclConstants load_nccl_constants(const std::filesystem::path& path);

/// What NCCL_ALGO and NCCL_PROTO force; nothing: NCCL's own choice.
struct NcclChoice {
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;
};

/// Flows of one collective or Send/Recv pair (kind SendTo).
///
/// `bytes`: the larger of input and output of one rank; `device`: the members' device (the first
/// member's if they differ). One member: no edges and no latency. Curves that were measured on the
/// stack's network, then on the device, go before the equations above; what they say is the
/// schedule's closed form unless a link of the cluster is slower. Throws InputError if `forced`
/// cannot run, with the reason. O(members), all-to-all O(members^2).
CollectiveSchedule nccl_schedule(const NcclConstants& nccl, const Device& device,
                                 const Stack& stack, const Topology& topology, OpKind kind,
                                 Bytes bytes, std::span<const GpuId> members,
                                 const NcclChoice& forced = {});

/// Ring all-reduce in closed form: 2 (n-1) alpha + 2 (n-1)/n bytes / bandwidth; all-gather and
/// reduce-scatter take half.
Seconds ring_all_reduce_time(std::int32_t ranks, Bytes bytes, Seconds alpha,
                             BytesPerSecond bandwidth);

}  // namespace gputwin
