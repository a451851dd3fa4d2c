#include "hwmodels/collectives/nccl.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "hwmodels/collectives/placement.h"
#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"

namespace gputwin {

namespace {

// 80 % of single-node rows lie within these factors of a three-line fit, widened by what NCCL's
// constants add.
// A gradient norm or a loss: it takes nanoseconds on any link, its latency microseconds. Without
// flows all members are alike, which folding uses.
constexpr Bytes kLatencyOnly{64};

constexpr double kLow = 0.85, kHigh = 1.25;

// Exponent of two stages of a pipeline; chosen by hand on four nodes of eight H200.
constexpr double kPipeline = 8.0;

// Share of a measured time that may count as transfer, the rest is start-up.
constexpr double kMostTransfer = 0.999;

// What one schedule is built from; rates are per member and direction.
struct Setting {
  const NcclConstants& nccl;
  const Device& device;
  const Stack& stack;
  const NodeType& node;
  const GroupPlacement& placement;
  const Topology& topology;
  std::span<const GpuId> members;
  double mesh = 0.0;  // share of a GPU's NVLinks that lead to other members, least; 0: no mesh

  double nvlink_scale() const {
    const double nominal = device.nvlink.nominal.value;
    if (nominal <= 0) return 1.0;
    return node.intra.per_gpu.value / nominal * (mesh > 0 ? mesh : 1.0);
  }
  bool nvlink() const {
    return placement.inner == PathKind::NvLink && device.nvlink.nominal.value > 0;
  }
};

struct Candidate {
  Algorithm algorithm = Algorithm::Ring;
  Protocol protocol = Protocol::Simple;
  double latency = 0.0;
  double inflation = 1.0;  // wire bytes per byte
  double cap = 0.0;        // wire bytes per second of an inner edge; 0: the link alone limits
  double time = 0.0;       // predicted, only to choose
};

// Bytes of data that each member passes on in a ring.
double ring_bytes(OpKind kind, double bytes, double n) {
  switch (kind) {
    case OpKind::AllReduce: return 2.0 * (n - 1.0) / n * bytes;
    case OpKind::AllGather:
    case OpKind::ReduceScatter:
    case OpKind::AllToAll: return (n - 1.0) / n * bytes;
    case OpKind::Broadcast:
    case OpKind::SendTo:
    case OpKind::RecvFrom: return bytes;
    case OpKind::Gemm:
    case OpKind::GroupedGemm:
    case OpKind::MlaRope:
    case OpKind::MlaKeyValue:
    case OpKind::MlaKeyValueGrad:
    case OpKind::RouterForward:
    case OpKind::RouterBackward:
    case OpKind::Permute:
    case OpKind::Unpermute:
    case OpKind::AttentionScores:
    case OpKind::AttentionContext:
    case OpKind::AttentionGradProbs:
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradQuery:
    case OpKind::AttentionGradKey:
    case OpKind::SoftmaxForward:
    case OpKind::SoftmaxBackward:
    case OpKind::FlashForward:
    case OpKind::FlashBackward:
    case OpKind::AttentionMerge:
    case OpKind::NormForward:
    case OpKind::NormBackward:
    case OpKind::ActivationForward:
    case OpKind::ActivationBackward:
    case OpKind::BiasDropoutAdd:
    case OpKind::BiasGrad:
    case OpKind::ExpertBias:
    case OpKind::DropoutBackward:
    case OpKind::Rope:
    case OpKind::EmbeddingForward:
    case OpKind::EmbeddingBackward:
    case OpKind::PositionAdd:
    case OpKind::PositionGrad:
    case OpKind::LogitsMax:
    case OpKind::LogitsSum:
    case OpKind::LossFromSums:
    case OpKind::CrossEntropyBackward:
    case OpKind::Add:
    case OpKind::CastCopy:
    case OpKind::Quantize:
    case OpKind::AbsMax:
    case OpKind::Encode:
    case OpKind::Decode:
    case OpKind::Orthonormalise:
    case OpKind::Zero:
    case OpKind::SumOfSquares:
    case OpKind::AdamStep:
    case OpKind::LambStep:
    case OpKind::SgdStep:
    case OpKind::CpuAdam:
    case OpKind::Opaque:
    case OpKind::ConvForward:
    case OpKind::ConvGradInput:
    case OpKind::ConvGradWeight:
    case OpKind::RnnForward:
    case OpKind::RnnGradInput:
    case OpKind::RnnGradWeight:
    case OpKind::CopyBytes: GPUTWIN_CHECK(false, "only communication has a schedule");
  }
  return bytes;
}

double latency_factor(const Device& device, Protocol protocol) {
  switch (protocol) {
    case Protocol::LL: return device.nvlink.ll_latency;
    case Protocol::LL128: return device.nvlink.ll128_latency;
    case Protocol::Simple: return device.nvlink.simple_latency;
  }
  return 1.0;
}

double inner_step(const Setting& s, Algorithm algorithm, Protocol protocol) {
  const auto p = static_cast<std::size_t>(protocol);
  const bool tree = algorithm == Algorithm::Tree;
  const Seconds nvlink = tree ? s.nccl.tree_nvlink[p] : s.nccl.ring_nvlink[p];
  const Seconds pcie = tree ? s.nccl.tree_pcie[p] : s.nccl.ring_pcie[p];
  const Seconds step = s.placement.inner == PathKind::Pcie ? pcie : nvlink;
  return step.value * latency_factor(s.device, protocol) + s.placement.inner_wire.value;
}

// Few GPUs behind a switch use its links less well than eight, for which the rates hold. Meshes
// have fewer links then, and across domains the network limits.
double ranks_share(const Setting& s, OpKind kind) {
  const std::int32_t n = s.placement.size();
  if (n >= 8 || s.mesh > 0 || s.placement.domains() > 1) return 1.0;
  const auto& shares = kind == OpKind::AllReduce ? s.nccl.all_reduce_share : s.nccl.others_share;
  return shares[n == 2 ? 0 : 1];
}

// Rate of a ring inside a domain, Simple protocol; 0 if the links alone limit.
double ring_rate(const Setting& s, OpKind kind) {
  if (s.nvlink()) {
    return s.device.nvlink.ring_bus.value * s.nvlink_scale() * ranks_share(s, kind);
  }
  if (s.placement.inner != PathKind::Pcie) return 0.0;
  return s.node.pcie.per_gpu.value * s.node.pcie.efficiency * s.nccl.pcie_ring_share;
}

// Wire rate of an inner edge under the protocol; 0 if only the links limit it.
double inner_rate(const Setting& s, OpKind kind, Protocol protocol) {
  const auto p = static_cast<std::size_t>(protocol);
  const double ring = ring_rate(s, kind);
  switch (protocol) {
    case Protocol::Simple: return ring;
    case Protocol::LL128:
      if (!s.nvlink()) return ring;
      return s.device.nvlink.ll128_bus.value * s.nvlink_scale() * ranks_share(s, kind) *
             s.nccl.wire_bytes[p];
    case Protocol::LL: {
      const std::size_t nodes = s.placement.domains() == 1 ? 0 : s.placement.domains() < 4 ? 1 : 2;
      const double limit = s.nccl.ll_limit[nccl_generation(s.device.architecture)][nodes].value;
      const double data = ring > 0 ? std::min(limit, ring / 2) : limit;
      return data * s.nccl.wire_bytes[p];
    }
  }
  return ring;
}

// Rate at which a domain reaches the network: the adapters of its members, nominal x usable share.
double network_rate(const Setting& s) {
  const double per_gpu = static_cast<double>(s.node.nics.per_node) / std::max(1, s.node.gpus);
  const double each = s.node.nics.each.value * s.node.nics.efficiency * std::max(1.0, per_gpu);
  return std::max(1.0, each * s.placement.rails);
}

// Rate of a pipeline through two stages of nearly the same rate: each waits for the other at times.
double both(double inside, double across) {
  const double p = kPipeline;
  return std::pow(std::pow(inside, -p) + std::pow(across, -p), -1.0 / p);
}

double ring_latency(const Setting& s, OpKind kind, Protocol protocol) {
  const auto p = static_cast<std::size_t>(protocol);
  const double passes = kind == OpKind::AllReduce ? 2.0 : 1.0;
  const double inter = s.placement.domains() - 1.0;
  const double intra = s.placement.size() - 1.0 - inter;
  const double net = s.nccl.ring_net[p].value + s.placement.wire.value;
  return s.nccl.ring_base[p].value +
         passes * (intra * inner_step(s, Algorithm::Ring, protocol) + inter * net);
}

double tree_latency(const Setting& s, Protocol protocol) {
  const auto p = static_cast<std::size_t>(protocol);
  const double depth = std::bit_width(static_cast<std::uint32_t>(s.placement.domains())) - 1.0;
  const double net = s.nccl.tree_net[p].value + s.placement.wire.value;
  return s.nccl.tree_base[p].value +
         2.0 * ((s.placement.per_domain - 1.0) * inner_step(s, Algorithm::Tree, protocol) +
                depth * net);
}

Candidate ring_candidate(const Setting& s, OpKind kind, double bytes, Protocol protocol) {
  const double wire = s.nccl.wire_bytes[static_cast<std::size_t>(protocol)];
  Candidate c{Algorithm::Ring, protocol, ring_latency(s, kind, protocol), wire,
              inner_rate(s, kind, protocol)};
  if (kind == OpKind::AllToAll) c.algorithm = Algorithm::Direct;
  const double load = ring_bytes(kind, bytes, s.placement.size()) * wire;
  double slowest = c.cap > 0 ? load / c.cap : 0.0;
  if (s.placement.domains() > 1) {
    slowest = std::max(slowest, load / network_rate(s));
  }
  c.time = c.latency + slowest;
  return c;
}

Candidate tree_candidate(const Setting& s, double bytes, Protocol protocol) {
  // The tuner counts on a part of the bus bandwidth alone; here as more bytes on the wire.
  const double wire =
      s.nccl.wire_bytes[static_cast<std::size_t>(protocol)] / s.nccl.tree_efficiency;
  // A GPU of the chain passes the data up and down, so each direction of an edge gets half the
  // rate.
  Candidate c{Algorithm::Tree, protocol, tree_latency(s, protocol), wire,
              inner_rate(s, OpKind::AllReduce, protocol) / 2};
  const double inner = s.placement.per_domain > 1 && c.cap > 0 ? bytes * wire / c.cap : 0.0;
  // A node is inner in one tree and a leaf in the other; of two nodes each is the other's only
  // neighbour.
  const double across = s.placement.domains() == 2 ? 1.0 : 2.0;
  c.time = c.latency + std::max(inner, across * bytes * wire / network_rate(s));
  return c;
}

// Bus bandwidth of the reduction inside one switch.
double nvls_bus(const Setting& s) {
  const std::int32_t n = s.placement.per_domain;
  return s.device.nvlink.nvls_bus.value * s.nvlink_scale() * (n < 8 ? s.nccl.nvls_share : 1.0);
}

Candidate nvls_candidate(const Setting& s, double bytes) {
  const double n = s.placement.per_domain;
  const double wire = (1.0 + 1.0 / n) * bytes;
  double transfer = ring_bytes(OpKind::AllReduce, bytes, n) / nvls_bus(s);
  Candidate c{Algorithm::NvLink, Protocol::Simple, s.nccl.nvls_latency.value};
  if (s.placement.domains() > 1) {
    const double across = s.placement.domains() == 2 ? 1.0 : 2.0;
    const double net = across * bytes / s.nccl.tree_efficiency / network_rate(s);
    transfer = 1.0 / both(1.0 / transfer, 1.0 / net);
    const double depth = std::bit_width(static_cast<std::uint32_t>(s.placement.domains())) - 1.0;
    const auto simple = static_cast<std::size_t>(Protocol::Simple);
    c.latency += 2.0 * depth * (s.nccl.tree_net[simple].value + s.placement.wire.value);
  }
  c.cap = wire / transfer;
  c.time = c.latency + transfer;
  return c;
}

// Why an algorithm or protocol cannot run here; empty if it can.
std::string refusal(const Setting& s, OpKind kind, const NcclChoice& forced) {
  const bool one = s.placement.domains() == 1;
  if (forced.protocol == Protocol::LL128 && !s.nvlink()) return "LL128 needs NVLink";
  if (!forced.algorithm) return "";
  switch (*forced.algorithm) {
    case Algorithm::Ring:
      return kind == OpKind::AllToAll ? "all-to-all sends to each rank directly" : "";
    case Algorithm::Tree:
      if (kind != OpKind::AllReduce) return "trees reduce and broadcast: only all-reduce has both";
      if (one) return "inside one node NCCL's tree is its chain; a ring is never slower";
      return s.placement.per_domain > 0 ? "" : "nodes hold different numbers of ranks";
    case Algorithm::NvLink:
      if (kind != OpKind::AllReduce) return "NVLS is modelled for all-reduce only";
      if (s.node.intra.kind != IntraKind::NvSwitch || s.device.nvlink.nvls_bus.value <= 0)
        return "needs NVLink switches that reduce (Hopper and later)";
      return s.placement.per_domain > 2 ? "" : "needs more than two ranks in each node";
    case Algorithm::Direct:
      return kind == OpKind::AllToAll || kind == OpKind::SendTo || kind == OpKind::RecvFrom
                 ? ""
                 : "only all-to-all and send/receive are direct";
  }
  return "";
}

bool nvls_offered(const Setting& s, OpKind kind) {
  return s.stack.nvls && refusal(s, kind, {Algorithm::NvLink, std::nullopt}).empty();
}

Candidate choose(const Setting& s, OpKind kind, double bytes, const NcclChoice& forced) {
  std::optional<Candidate> best;
  const auto offer = [&](const Candidate& c) {
    if (forced.algorithm && c.algorithm != *forced.algorithm) return;
    if (forced.protocol && c.protocol != *forced.protocol) return;
    if (!best || c.time < best->time) best = c;
  };
  offer(ring_candidate(s, kind, bytes, Protocol::Simple));
  const bool ll128 = s.placement.inner != PathKind::Pcie && s.device.nvlink.nominal.value > 0;
  const bool tree =
      kind == OpKind::AllReduce && s.placement.domains() > 1 && s.placement.per_domain > 0;
  for (Protocol protocol : {Protocol::LL, Protocol::LL128, Protocol::Simple}) {
    if (protocol == Protocol::LL128 && !ll128) continue;
    offer(ring_candidate(s, kind, bytes, protocol));
    if (tree) offer(tree_candidate(s, bytes, protocol));
  }
  const bool nvls = forced.algorithm == Algorithm::NvLink || nvls_offered(s, kind);
  if (nvls && kind == OpKind::AllReduce) offer(nvls_candidate(s, bytes));
  if (!best) {
    throw InputError("--protocol", "", std::string(to_string(*forced.protocol)),
                     "does not go with this algorithm", "NVLS runs Simple alone");
  }
  return *best;
}

Bytes whole(double bytes) { return Bytes(std::llround(bytes)); }

// NVLinks between members `i` and `j` (indices), if they form a mesh.
BytesPerSecond direct(const Setting& s, std::uint32_t i, std::uint32_t j) {
  return s.topology.direct_nvlink(s.members[i], s.members[j]);
}

std::int32_t domain_size(const GroupPlacement& p, std::int32_t d) {
  return static_cast<std::int32_t>(p.first[d + 1] - p.first[d]);
}

// Share of a GPU's NVLinks that lead to members of its domain, the least of all members; 0 if the
// NVLinks form no mesh.
double mesh_share(const Setting& s) {
  const GroupPlacement& p = s.placement;
  if (!s.nvlink() || s.node.intra.kind == IntraKind::NvSwitch) return 0.0;
  double least = 1.0;
  for (std::int32_t d = 0; d < p.domains(); ++d) {
    for (std::uint32_t i = p.first[d]; domain_size(p, d) > 1 && i < p.first[d + 1]; ++i) {
      double sum = 0.0;
      for (std::uint32_t j = p.first[d]; j < p.first[d + 1]; ++j) {
        sum += direct(s, p.order[i], p.order[j]).value;
      }
      least = std::min(least, sum / (s.node.intra.per_gpu.value * s.node.intra.efficiency));
    }
  }
  return least;
}

// `load` bytes leave and reach every member of domain `d` over its mesh. NCCL lays one ring along
// every NVLink, so all links carry data in proportion to their rate and end together, after load /
// `cap`; the links' own limit is expressed by more bytes, as the edges have unlike rates.
void add_mesh(const Setting& s, std::int32_t d, double load, double cap,
              std::vector<FlowEdge>& edges) {
  const GroupPlacement& p = s.placement;
  for (std::uint32_t i = p.first[d]; i < p.first[d + 1]; ++i) {
    for (std::uint32_t j = p.first[d]; j < p.first[d + 1]; ++j) {
      const double rate = direct(s, p.order[i], p.order[j]).value;
      if (rate > 0) edges.push_back({p.order[i], p.order[j], whole(load * rate / cap)});
    }
  }
}

// A ring through all members, domain by domain; the hop to the next domain is spread over as many
// members as both have.
void add_ring(const Setting& s, double load, bool closed, double cap,
              std::vector<FlowEdge>& edges) {
  const GroupPlacement& p = s.placement;
  const std::int32_t domains = p.domains();
  const auto at = [&](std::int32_t d, std::int32_t j) {
    return p.order[p.first[d] + static_cast<std::uint32_t>(j % domain_size(p, d))];
  };
  edges.reserve(static_cast<std::size_t>(2 * p.size()));
  for (std::int32_t d = 0; d < domains; ++d) {
    const std::int32_t size = domain_size(p, d);
    if (s.mesh > 0 && size > 1) add_mesh(s, d, load, cap, edges);
    const std::int32_t inner = s.mesh > 0 || size == 1 ? 0
                               : domains > 1 || closed ? size
                                                       : size - 1;
    for (std::int32_t j = 0; j < inner; ++j) edges.push_back({at(d, j), at(d, j + 1), whole(load)});
    if (domains == 1 || (!closed && d + 1 == domains)) break;
    const std::int32_t next = (d + 1) % domains;
    const std::int32_t rails = std::min(size, domain_size(p, next));
    for (std::int32_t j = 0; j < rails; ++j)
      edges.push_back({at(d, j), at(next, j), whole(load / rails)});
  }
}

// Ordered pairs of domains that exchange data in the double binary tree, with the number of trees
// that use them; sorted.
std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, int>> tree_links(
    std::int32_t domains) {
  std::vector<std::pair<std::int32_t, std::int32_t>> links;
  links.reserve(static_cast<std::size_t>(4 * domains));
  for (std::int32_t d = 0; d < domains; ++d) {
    for (int tree = 0; tree < 2; ++tree) {
      const std::int32_t parent = tree_parent(d, domains, tree);
      if (parent < 0) continue;
      links.push_back({d, parent});
      links.push_back({parent, d});
    }
  }
  std::sort(links.begin(), links.end());
  std::vector<std::pair<std::pair<std::int32_t, std::int32_t>, int>> counted;
  for (const auto& link : links) {
    if (counted.empty() || counted.back().first != link) counted.push_back({link, 0});
    ++counted.back().second;
  }
  return counted;
}

void add_tree(const Setting& s, double bytes, double cap, std::vector<FlowEdge>& edges) {
  const GroupPlacement& p = s.placement;
  const std::int32_t k = p.per_domain;
  const auto at = [&](std::int32_t domain, std::int32_t j) { return p.order[p.first[domain] + j]; };
  const auto links = tree_links(p.domains());
  edges.reserve((links.size() + static_cast<std::size_t>(2 * p.domains())) *
                static_cast<std::size_t>(k));
  for (std::int32_t d = 0; d < p.domains(); ++d) {
    if (s.mesh > 0 && k > 1) add_mesh(s, d, bytes, cap, edges);
    for (std::int32_t j = 0; s.mesh <= 0 && j + 1 < k; ++j) {
      edges.push_back({at(d, j), at(d, j + 1), whole(bytes)});
      edges.push_back({at(d, j + 1), at(d, j), whole(bytes)});
    }
  }
  for (const auto& [link, trees] : links) {
    const Bytes share = whole(bytes * trees / (2.0 * k));
    for (std::int32_t j = 0; j < k; ++j)
      edges.push_back({at(link.first, j), at(link.second, j), share});
  }
}

void add_direct(std::int32_t n, double share, std::vector<FlowEdge>& edges) {
  edges.reserve(static_cast<std::size_t>(n) * (n - 1));
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t step = 1; step < n; ++step) {
      edges.push_back({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>((i + step) % n),
                       whole(share)});
    }
  }
}

// The stack's factors: a later start, and a lower cap where the cap binds or more bytes where the
// links do.
void apply_stack(const Setting& s, CollectiveSchedule& schedule) {
  const bool inside = s.placement.domains() == 1;
  if (inside) {
    const Seconds start = s.nccl.ring_base[static_cast<std::size_t>(Protocol::Simple)];
    schedule.latency = schedule.latency + start * (s.stack.factor(Factor::CollectiveStart) - 1.0);
  }
  const double factor =
      s.stack.factor(inside ? Factor::CollectiveInNode : Factor::CollectiveAcrossNodes);
  if (factor == 1.0) return;
  schedule.latency = schedule.latency * factor;
  if (inside && schedule.rate_cap.value > 0) {
    schedule.rate_cap = schedule.rate_cap / factor;
    return;
  }
  for (FlowEdge& edge : schedule.edges)
    edge.bytes = whole(static_cast<double>(edge.bytes.value) * factor);
}

CollectiveSchedule send_schedule(const Setting& s, Bytes bytes) {
  const auto simple = static_cast<std::size_t>(Protocol::Simple);
  CollectiveSchedule schedule;
  schedule.edges.push_back({0, 1, bytes});
  schedule.algorithm = Algorithm::Direct;
  const bool network = s.placement.domains() > 1;
  const Seconds step = network                               ? s.nccl.ring_net[simple]
                       : s.placement.inner == PathKind::Pcie ? s.nccl.ring_pcie[simple]
                                                             : s.nccl.ring_nvlink[simple];
  schedule.latency =
      s.nccl.send_base + step + (network ? s.placement.wire : s.placement.inner_wire);
  if (!network && s.nvlink()) {
    schedule.rate_cap = s.device.nvlink.point_to_point * s.nvlink_scale();
  }
  schedule.model = "send/recv: base + step + wire, bytes / path";
  return schedule;
}

const char* model_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Ring:
      return "NCCL ring: base + steps x step latency, 2 (n-1)/n bytes / bus bandwidth";
    case Algorithm::Tree:
      return "NCCL double binary tree: base + 2 depth x step latency, 2 bytes / rate";
    case Algorithm::NvLink: return "NCCL NVLS: latency + 2 (n-1)/n bytes / bus bandwidth";
    case Algorithm::Direct:
      return "NCCL direct: base + steps x step latency, (n-1)/n bytes / bus bandwidth";
  }
  return "";
}

// NVLSTree: every GPU sends and gets (1 + 1/k) S in its switch; the tree passes the sums.
void add_nvls_tree(const Setting& s, double bytes, std::vector<FlowEdge>& edges) {
  const GroupPlacement& p = s.placement;
  const std::int32_t k = p.per_domain;
  const auto at = [&](std::int32_t d, std::int32_t j) {
    return p.order[p.first[d] + static_cast<std::uint32_t>(j % k)];
  };
  for (std::int32_t d = 0; d < p.domains(); ++d) {
    for (std::int32_t j = 0; j < k; ++j)
      edges.push_back({at(d, j), at(d, j + 1), whole((1.0 + 1.0 / k) * bytes)});
  }
  for (const auto& [link, trees] : tree_links(p.domains())) {
    for (std::int32_t j = 0; j < k; ++j)
      edges.push_back({at(link.first, j), at(link.second, j), whole(bytes * trees / (2.0 * k))});
  }
}

void add_edges(const Setting& s, OpKind kind, double bytes, const Candidate& c,
               CollectiveSchedule& schedule) {
  const std::int32_t n = s.placement.size();
  switch (c.algorithm) {
    case Algorithm::Ring:
      add_ring(s, ring_bytes(kind, bytes, n) * c.inflation, kind != OpKind::Broadcast, c.cap,
               schedule.edges);
      break;
    case Algorithm::NvLink:
      if (s.placement.domains() > 1) {
        add_nvls_tree(s, bytes, schedule.edges);
      } else {
        add_ring(s, (1.0 + 1.0 / n) * bytes, true, c.cap, schedule.edges);
      }
      break;
    case Algorithm::Tree: add_tree(s, bytes * c.inflation, c.cap, schedule.edges); break;
    case Algorithm::Direct: {
      add_direct(n, bytes / n * c.inflation, schedule.edges);
      // The GPU's rate is shared by its flows to all others.
      schedule.rate_cap =
          s.placement.domains() == 1 ? BytesPerSecond(c.cap / (n - 1)) : BytesPerSecond(0);
      return;
    }
  }
  schedule.rate_cap = BytesPerSecond(s.mesh > 0 ? 0.0 : c.cap);
}

// What the curves of the stack's network or of the device say; nothing where none was measured, or
// where they were measured with another algorithm or protocol than is forced.
std::optional<CurvePoint> measured(const Setting& s, OpKind kind, double bytes,
                                   const NcclChoice& forced) {
  const std::int32_t ranks = s.placement.size();
  std::int32_t nodes = s.placement.domains();
  // Networks were measured by node, also where an NVLink domain spans several.
  std::int32_t machines = 1;
  for (std::size_t i = 1; i < s.placement.order.size() && !s.stack.network.curves.empty(); ++i) {
    machines += s.topology.node_of(s.members[s.placement.order[i]]) !=
                s.topology.node_of(s.members[s.placement.order[i - 1]]);
  }
  const bool network = s.stack.network.has(kind, machines > 1);
  if (network) nodes = machines;
  // Devices with NVLink were measured over switches or a full mesh of it.
  const bool linked = s.device.nvlink.nominal.value > 0;
  const bool same_links = nodes == 1 && linked == (s.placement.inner == PathKind::NvLink) &&
                          s.node.intra.kind != IntraKind::NvLinkPairs;
  if (!network && !same_links) return std::nullopt;
  const CollectiveCurves& curves = network ? s.stack.network : s.device.collectives;
  const double scale = network || !linked ? 1.0 : s.nvlink_scale();
  const auto point = evaluate(curves, kind, nodes, ranks, bytes, scale);
  if (!point) return point;
  if (forced.algorithm && point->algorithm != *forced.algorithm) return std::nullopt;
  if (forced.protocol && point->protocol != *forced.protocol) return std::nullopt;
  const bool nvls = s.stack.nvls || forced.algorithm == Algorithm::NvLink;
  if (point->algorithm == Algorithm::NvLink && !nvls && !network) return std::nullopt;
  return point;
}

std::string forced_words(const NcclChoice& forced) {
  std::string words;
  if (forced.algorithm) words = to_string(*forced.algorithm);
  if (forced.protocol)
    words += (words.empty() ? "" : "/") + std::string(to_string(*forced.protocol));
  return words;
}

// Bytes on the busiest edge of a schedule inside one domain.
double inner_load(const Setting& s, OpKind kind, double bytes, Algorithm algorithm) {
  const double n = s.placement.size();
  if (algorithm == Algorithm::NvLink) return (1.0 + 1.0 / n) * bytes;
  return ring_bytes(kind, bytes, n);
}

// The schedule whose closed form is the curve's time: by its cap inside a domain, by more or fewer
// bytes on meshes and networks. What the links themselves need comes out of the start-up. Edges are
// added unless there are some.
void follow_curve(const Setting& s, OpKind kind, double bytes, CurvePoint point,
                  CollectiveSchedule& schedule) {
  const std::vector<GpuId> members(s.members.begin(), s.members.end());
  const double time = point.time().value;
  const bool uneven = s.placement.domains() > 1 && s.placement.per_domain == 0;
  if (uneven && point.algorithm != Algorithm::Direct) point.algorithm = Algorithm::Ring;
  const double load = inner_load(s, kind, bytes, point.algorithm);
  const Candidate c{point.algorithm, point.protocol, 0.0, 1.0, load / time};
  if (schedule.edges.empty()) add_edges(s, kind, bytes, c, schedule);
  schedule.rate_cap = BytesPerSecond(0);
  const double links = closed_form(schedule, members, s.topology).value;
  const bool capped = s.placement.domains() == 1 && s.mesh <= 0;
  const double least = capped ? std::min(links, kMostTransfer * time) : (1 - kMostTransfer) * time;
  const double transfer = std::max(point.transfer.value, least);
  if (capped) {
    std::int64_t most = 1;
    for (const FlowEdge& edge : schedule.edges) most = std::max(most, edge.bytes.value);
    schedule.rate_cap = BytesPerSecond(static_cast<double>(most) / transfer);
  } else if (links > 0) {
    for (FlowEdge& edge : schedule.edges)
      edge.bytes = whole(static_cast<double>(edge.bytes.value) * transfer / links);
  }
  schedule.latency =
      Seconds(bytes <= static_cast<double>(kLatencyOnly.value) ? time : time - transfer);
  schedule.algorithm = point.algorithm;
  schedule.protocol = point.protocol;
  schedule.low = point.low, schedule.high = point.high;
  schedule.extrapolated = point.extrapolated;
  schedule.model = "measured curve: start + ramp S/(S + half) + bus bytes / bus bandwidth";
}

}  // namespace

CollectiveSchedule nccl_schedule(const NcclConstants& nccl, const Device& device,
                                 const Stack& stack, const Topology& topology, OpKind kind,
                                 Bytes bytes, std::span<const GpuId> members,
                                 const NcclChoice& forced) {
  GPUTWIN_CHECK(!members.empty(), "a communicator has members");
  CollectiveSchedule schedule;
  schedule.model = model_of(Algorithm::Ring);
  schedule.low = kLow;
  schedule.high = kHigh;
  schedule.sm_share = device.interference.collective_sms / device.sms;
  if (members.size() == 1) return schedule;
  const GroupPlacement placement = place(topology, members);
  Setting setting{nccl,      device,   stack,  topology.node_type(members.front()),
                  placement, topology, members};
  const bool send = kind == OpKind::SendTo || kind == OpKind::RecvFrom;
  if (!send) setting.mesh = mesh_share(setting);
  if (const std::string why = refusal(setting, kind, forced); !why.empty()) {
    throw InputError("--algorithm", "", forced_words(forced), "cannot run: " + why,
                     "leave the choice to NCCL");
  }
  const double size = static_cast<double>(bytes.value);
  GPUTWIN_CHECK(!send || members.size() == 2, "a send has a sender and a receiver");
  if (const auto point = measured(setting, kind, size, forced)) {
    if (send) schedule.edges.push_back({0, 1, bytes});
    follow_curve(setting, kind, size, *point, schedule);
  } else if (send) {
    const double share = schedule.sm_share;
    schedule = send_schedule(setting, bytes);
    schedule.low = kLow, schedule.high = kHigh, schedule.sm_share = share;
    return schedule;
  } else {
    const Candidate best = choose(setting, kind, size, forced);
    schedule.algorithm = best.algorithm;
    schedule.protocol = best.protocol;
    schedule.latency = Seconds(best.latency);
    schedule.model = model_of(best.algorithm);
    schedule.extrapolated =
        kind == OpKind::Broadcast || (kind == OpKind::AllToAll && placement.domains() > 1);
    add_edges(setting, kind, size, best, schedule);
  }
  apply_stack(setting, schedule);
  if (bytes <= kLatencyOnly) schedule.edges.clear();
  return schedule;
}

Seconds ring_all_reduce_time(std::int32_t ranks, Bytes bytes, Seconds alpha,
                             BytesPerSecond bandwidth) {
  const double n = ranks;
  return alpha * (2.0 * (n - 1.0)) +
         Seconds(2.0 * (n - 1.0) / n * static_cast<double>(bytes.value) / bandwidth.value);
}

}  // namespace gputwin
