// The facts of one node as a cluster file.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "hwmodels/constants_file.h"
#include "hwmodels/import/import.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "sim/core/topology.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;
using Order = std::vector<std::size_t>;  // new number -> old number

constexpr std::int32_t kNewestGeneration = 7;

double pcie_GBps(std::int32_t generation, std::int32_t lanes) {
  // 8, 16, 32, 64 GT/s a lane; 128/130 coding (generation 6 codes in flits, within 2 %).
  return std::ldexp(8.0, generation - 3) * 128.0 / 130.0 * lanes / 8.0;
}

std::int32_t generation_of(Architecture architecture) {
  if (architecture >= Architecture::Hopper) return 5;
  return architecture >= Architecture::Ampere ? 4 : 3;
}

std::vector<std::vector<std::int32_t>> renumbered(const NodeFacts& f, const Order& order) {
  auto links = f.nvlinks;
  for (std::size_t a = 0; a < order.size(); ++a) {
    for (std::size_t b = 0; b < order.size(); ++b) links[a][b] = f.nvlinks[order[a]][order[b]];
  }
  return links;
}

// Partners beside each other, if every GPU has exactly one; else empty.
Order pairs_first(const std::vector<std::vector<std::int32_t>>& links) {
  Order order;
  std::vector<bool> placed(links.size(), false);
  for (std::size_t a = 0; a < links.size(); ++a) {
    std::size_t partners = 0, partner = a;
    for (std::size_t b = 0; b < links.size(); ++b) {
      if (links[a][b] > 0) ++partners, partner = b;
    }
    if (partners != 1) return {};
    if (placed[a]) continue;
    placed[a] = placed[partner] = true;
    order.insert(order.end(), {a, partner});
  }
  return order;
}

// Links of the eight-GPU mesh that Topology has, six a GPU.
std::vector<std::vector<std::int32_t>> cube_mesh() {
  Cluster cluster;
  NodeType type;
  type.device = "any";
  type.gpus = 8;
  type.intra = {IntraKind::NvLinkMesh, BytesPerSecond(6.0), 1.0, 0};
  cluster.groups.push_back({type, 1});
  const Topology topology(cluster);
  std::vector<std::vector<std::int32_t>> links(8, std::vector<std::int32_t>(8, 0));
  for (std::uint32_t a = 0; a < 8; ++a) {
    for (std::uint32_t b = 0; b < 8; ++b) {
      links[a][b] =
          static_cast<std::int32_t>(std::lround(topology.direct_nvlink(GpuId(a), GpuId(b)).value));
    }
  }
  return links;
}

// Extends `order` until `links` in that order equal `wanted`; false if no order does.
bool match(const std::vector<std::vector<std::int32_t>>& links,
           const std::vector<std::vector<std::int32_t>>& wanted, Order& order) {
  const std::size_t at = order.size();
  if (at == links.size()) return true;
  for (std::size_t old = 0; old < links.size(); ++old) {
    if (std::find(order.begin(), order.end(), old) != order.end()) continue;
    bool fits = true;
    for (std::size_t b = 0; b < at; ++b) fits = fits && links[old][order[b]] == wanted[at][b];
    if (!fits) continue;
    order.push_back(old);
    if (match(links, wanted, order)) return true;
    order.pop_back();
  }
  return false;
}

void renumber(NodeFacts& f, const Order& order) {
  Order same(order.size());
  std::iota(same.begin(), same.end(), 0u);
  if (order.empty() || order == same) return;
  f.nvlinks = renumbered(f, order);
  const NodeFacts old = f;
  std::string numbers;
  for (std::size_t g = 0; g < order.size(); ++g) {
    numbers += (g > 0 ? ", " : "") + std::to_string(order[g]);
    if (!f.pcie_switch.empty()) f.pcie_switch[g] = old.pcie_switch[order[g]];
    for (std::size_t n = 0; n < f.nics.size(); ++n) {
      f.nics[n].to_gpu[g] = old.nics[n].to_gpu[order[g]];
    }
  }
  f.notes.push_back(
      "GPUs are renumbered so that the format can express their links: new 0, 1 ... are " +
      numbers + " of the file");
}

struct Intra {
  IntraKind kind = IntraKind::Pcie;
  std::int32_t links = 0;  // of one GPU
};

Intra mesh_intra(NodeFacts& f) {
  const auto gpus = static_cast<std::size_t>(f.gpus);
  std::int32_t least = 1 << 20, most = 0, sum = 0, busiest = 0;
  for (std::size_t a = 0; a < gpus; ++a) {
    std::int32_t own = 0;
    for (std::size_t b = 0; b < gpus; ++b) {
      if (a == b) continue;
      least = std::min(least, f.nvlinks[a][b]);
      most = std::max(most, f.nvlinks[a][b]);
      own += f.nvlinks[a][b];
    }
    sum += own;
    busiest = std::max(busiest, own);
  }
  if (most == 0) return {};
  const Order pairs = pairs_first(f.nvlinks);
  if (!pairs.empty() && least == (gpus == 2 ? most : 0)) {
    renumber(f, pairs);
    if (most * f.gpus != sum) {
      f.notes.emplace_back(
          "not represented: pairs differ in their count of NVLinks; taken as the most");
    }
    return {IntraKind::NvLinkPairs, most};
  }
  if (gpus == 8) {
    Order order;
    if (match(f.nvlinks, cube_mesh(), order)) {
      renumber(f, order);
      return {IntraKind::NvLinkMesh, 6};
    }
  }
  if (least == most && gpus != 8) return {IntraKind::NvLinkMesh, busiest};
  if (least == most) {
    f.notes.emplace_back(
        "not represented: every GPU is joined to each other one directly; taken as one switch with "
        "the "
        "same bandwidth a GPU, which a single pair of GPUs may then use alone");
    return {IntraKind::NvSwitch, busiest};
  }
  std::string rows;
  for (const auto& row : f.nvlinks) {
    for (const std::int32_t count : row) rows += std::to_string(count) + " ";
    rows.back() = ';';
  }
  const std::int32_t mean = std::max(1, (sum + f.gpus / 2) / f.gpus);
  f.notes.push_back("not represented: a partial mesh of NVLinks (" + rows + "); taken as " +
                    (gpus == 8 ? "the cube mesh" : "an even mesh") + " with " +
                    std::to_string(mean) + " links a GPU");
  return {IntraKind::NvLinkMesh, mean};
}

Intra intra_of(NodeFacts& f, const Device& device, double link_GBps) {
  if (f.gpus < 2) return {};
  const auto own = static_cast<std::int32_t>(
      link_GBps > 0 ? std::lround(device.nvlink.nominal.value / 1e9 / link_GBps) : 0);
  Intra intra;
  if (f.switch_nvlinks > 0) {
    intra = {IntraKind::NvSwitch, f.switch_nvlinks};
  } else if (!f.nvlinks_stated && own > 0) {
    intra = {own > 6 ? IntraKind::NvSwitch : IntraKind::NvLinkMesh, own};
    f.notes.push_back("assumed: the file lists no NVLinks (NCCL asks the driver); taken as " +
                      std::string(to_string(intra.kind)) + " with the " + std::to_string(own) +
                      " links of " + device.name);
  } else if (!f.nvlinks.empty()) {
    // Behind an NVSwitch every pair shows all links of a GPU.
    const std::int32_t shown = f.nvlinks[0][1];
    bool even = shown > 0;
    for (std::size_t a = 0; a < f.nvlinks.size(); ++a) {
      for (std::size_t b = 0; b < f.nvlinks.size(); ++b) {
        even = even && (a == b || f.nvlinks[a][b] == shown);
      }
    }
    const bool behind_switch = even && f.gpus > 2 && shown * (f.gpus - 1) > std::max(own, shown);
    intra = behind_switch ? Intra{IntraKind::NvSwitch, shown} : mesh_intra(f);
  }
  if (intra.links > 0 && link_GBps <= 0) {
    f.notes.push_back("not represented: " + std::to_string(intra.links) +
                      " NVLinks a GPU, since the file of " + device.name + " has no NVLink");
    return {};
  }
  return intra;
}

// GPUs below one PCIe switch, from groups of neighbours.
std::int32_t gpus_per_switch(NodeFacts& f) {
  if (!f.pcie_switches_stated) {
    if (f.gpus > 1) f.notes.emplace_back("assumed: no two GPUs share a PCIe switch (not stated)");
    return 1;
  }
  std::vector<std::int32_t> sizes;
  bool contiguous = true;
  std::set<std::int32_t> seen;
  for (std::size_t g = 0; g < f.pcie_switch.size(); ++g) {
    const std::int32_t here = f.pcie_switch[g];
    if (here >= 0 && g > 0 && here == f.pcie_switch[g - 1]) {
      ++sizes.back();
      continue;
    }
    sizes.push_back(1);
    if (here >= 0) contiguous = seen.insert(here).second && contiguous;
  }
  const auto [least, most] = std::minmax_element(sizes.begin(), sizes.end());
  if (*least != *most || !contiguous) {
    f.notes.push_back("not represented: PCIe switches with different GPUs below them; taken as " +
                      std::to_string(std::min(*most, 64)) + " neighbours each");
  }
  return std::min(*most, 64);
}

// Adapters in the order of the GPUs they are near; those near no GPU are left out if others are.
void order_nics(NodeFacts& f) {
  const auto gpus = static_cast<std::size_t>(f.gpus);
  const auto near = [](const NicFacts& n) {
    return std::any_of(n.to_gpu.begin(), n.to_gpu.end(),
                       [](Nearness d) { return d <= Nearness::Pxb; });
  };
  if (std::any_of(f.nics.begin(), f.nics.end(), near)) {
    std::string far;
    for (const NicFacts& n : f.nics) {
      if (!near(n)) far += (far.empty() ? "" : ", ") + n.name;
    }
    if (!far.empty()) {
      f.notes.push_back(
          "not represented: adapters below no switch with a GPU, taken as storage or "
          "management: " +
          far);
    }
    f.nics.erase(
        std::remove_if(f.nics.begin(), f.nics.end(), [&](const NicFacts& n) { return !near(n); }),
        f.nics.end());
  }
  std::stable_sort(f.nics.begin(), f.nics.end(), [](const NicFacts& a, const NicFacts& b) {
    const auto first = [](const NicFacts& n) {
      return std::min_element(n.to_gpu.begin(), n.to_gpu.end()) - n.to_gpu.begin();
    };
    return first(a) < first(b);
  });
  std::string others;
  for (std::size_t g = 0; g < gpus && !f.nics.empty(); ++g) {
    const NicFacts& given = f.nics[g * f.nics.size() / gpus];
    const auto best = std::min_element(
        f.nics.begin(), f.nics.end(),
        [&](const NicFacts& a, const NicFacts& b) { return a.to_gpu[g] < b.to_gpu[g]; });
    if (best->to_gpu[g] == given.to_gpu[g]) continue;
    others += (others.empty() ? "" : "; ") + std::string("GPU ") + std::to_string(g) + " to " +
              best->name + " (" + std::string(to_string(best->to_gpu[g])) + "), given " +
              given.name + " (" + std::string(to_string(given.to_gpu[g])) + ")";
  }
  if (!others.empty()) {
    f.notes.push_back("not represented: nearest adapters that the format's order does not give: " +
                      others);
  }
}

Json nics_json(NodeFacts& f, std::int32_t generation, std::int32_t nodes) {
  order_nics(f);
  if (f.nics.empty() && nodes > 1) {
    throw InputError("--nodes", "", std::to_string(nodes),
                     "needs network adapters; the file has none",
                     "import one node and add \"nics\" by hand");
  }
  if (f.nics.empty()) return {};
  double slowest = f.nics[0].Gbps, fastest = f.nics[0].Gbps;
  for (const NicFacts& n : f.nics) {
    slowest = std::min(slowest, n.Gbps);
    fastest = std::max(fastest, n.Gbps);
  }
  double each = slowest;
  if (each <= 0) {
    each = generation <= 3 ? 100 : generation == 4 ? 200 : 400;
    f.notes.push_back("assumed: adapters of " + std::to_string(static_cast<int>(each)) +
                      " Gb/s, usual with PCIe " + std::to_string(generation) +
                      "; the file does not state their speed");
  } else if (fastest > slowest) {
    f.notes.emplace_back("not represented: adapters of several speeds; taken as the slowest");
  }
  return {{"per_node", f.nics.size()}, {"each_Gbps", each}, {"source", f.origin}};
}

Json host_json(NodeFacts& f, std::int32_t generation) {
  const std::int32_t sockets = f.numa_nodes == 0 ? (f.gpus > 4 ? 2 : 1) : std::min(f.numa_nodes, 2);
  if (f.numa_nodes > 2) {
    f.notes.push_back("not represented: " + std::to_string(f.numa_nodes) +
                      " NUMA nodes; taken as 2 sockets");
  }
  if (f.cores == 0) f.notes.emplace_back("assumed: 16 cores a GPU; the file does not state them");
  const std::int32_t cores = f.cores > 0 ? f.cores : 16 * f.gpus;
  const double dram = generation <= 3 ? 128.0 : generation == 4 ? 204.8 : 307.2;
  f.notes.push_back("assumed: host memory (256 GiB a GPU, at " +
                    std::to_string(static_cast<int>(dram)) +
                    " GB/s a socket); the file does not state it");
  return {{"sockets", sockets},
          {"cores", cores},
          {"memory_GiB", 256 * f.gpus},
          {"dram_GBps", dram * sockets},
          {"source", f.origin + "; memory assumed"}};
}

Json fabric_json(const NodeFacts& f, std::int32_t nodes) {
  if (nodes < 2) return {{"kind", "none"}};
  return {{"kind", to_string(f.nics[0].fabric)},
          {"levels", Json::array({{{"nodes_per_group", nodes}}})},
          {"source", "assumed: one switch joins all nodes"}};
}

Json pcie_json(NodeFacts& f, const Device& device, std::int32_t generation) {
  if (f.pcie_generation == 0) {
    f.notes.push_back("assumed: PCIe " + std::to_string(generation) + " x" +
                      std::to_string(f.pcie_lanes) + ", usual with " + device.name);
  }
  return {{"generation", std::max(generation, 3)},
          {"bandwidth_GBps", std::round(pcie_GBps(generation, f.pcie_lanes) * 100) / 100},
          {"gpus_per_switch", gpus_per_switch(f)},
          {"source", f.origin}};
}

}  // namespace

std::string_view to_string(Nearness n) {
  constexpr std::array<std::string_view, 5> kWords{"PIX", "PXB", "PHB", "NODE", "SYS"};
  return kWords[static_cast<std::size_t>(n)];
}

Imported cluster_of_nodes(NodeFacts facts, const Device& device, BytesPerSecond nvlink,
                          std::int32_t nodes, const std::string& name) {
  const Intra intra = intra_of(facts, device, nvlink.value / 1e9);
  const std::int32_t generation = std::min(
      facts.pcie_generation > 0 ? facts.pcie_generation : generation_of(device.architecture),
      kNewestGeneration);
  Json type{{"device", device.name}, {"gpus", facts.gpus}};
  if (facts.gpus > 1) {
    type["intra"] = {{"kind", to_string(intra.kind)}, {"source", facts.origin}};
    if (intra.links > 0) type["intra"]["bandwidth_GBps"] = intra.links * nvlink.value / 1e9;
  }
  type["pcie"] = pcie_json(facts, device, generation);
  type["host"] = host_json(facts, generation);
  if (Json nics = nics_json(facts, generation, nodes); !nics.is_null()) type["nics"] = nics;
  const Json cluster{
      {"name", name},
      {"source", "imported from " + facts.origin + "; " + std::to_string(facts.notes.size()) +
                     " notes on what it assumes and lacks were printed"},
      {"groups", Json::array({{{"type", type}, {"count", nodes}}})},
      {"fabric", fabric_json(facts, nodes)}};
  return {cluster.dump(2) + "\n", std::move(facts.notes)};
}

BytesPerSecond nvlink_rate(const Device& device, const std::filesystem::path& rates) {
  if (device.nvlink.nominal.value <= 0) return BytesPerSecond(0);
  ConstantsFile file(rates);
  std::string key(to_string(device.architecture));
  // Parts with a bridge of four narrow links carry less than half of what A100 does.
  if (device.architecture == Architecture::Ampere && device.nvlink.nominal.value < 100e9) {
    key += "_bridge";
  }
  if (file.has("/" + device.name)) key = device.name;
  return BytesPerSecond(file.number_or("/" + key + "/link_GBps", 0.0) * 1e9);
}

std::map<std::string, std::string> load_pci_ids(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "restore the file");
  try {
    return nlohmann::json::parse(in).at("ids").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw InputError(path.string(), "/ids", "", "is no table of PCI ids", "restore the file");
  }
}

std::string implied_device(const NodeFacts& f, const std::map<std::string, std::string>& pci_ids,
                           std::vector<std::string>& notes) {
  if (const auto found = pci_ids.find(f.pci_id); found != pci_ids.end()) return found->second;
  std::int32_t links = f.switch_nvlinks, shown = 0;
  for (const auto& row : f.nvlinks) {
    links = std::max(links, std::accumulate(row.begin(), row.end(), 0));
    for (const std::int32_t count : row) shown = std::max(shown, count);
  }
  // Behind a switch each pair shows all links of a GPU; no GPU has more than 18.
  if (links > 18) links = shown;
  std::string device;
  if (f.sm == 100 || f.sm == 103)
    device = f.sm == 100 ? "b200-sxm" : "b300-sxm";
  else if (f.sm == 90 || links == 18)
    device = "h100-sxm-80gb";
  else if (f.sm == 80 || links == 12)
    device = "a100-sxm-80gb";
  else if (f.sm == 70 || links == 6)
    device = "v100-sxm2-32gb";
  else if (f.sm == 89)
    device = "l40s";
  else if (f.sm == 75)
    device = "t4";
  else if (f.sm == 86 || links == 4)
    device = "rtx-3090";
  else if (links == 2)
    device = "rtx-2080-ti";
  if (!device.empty()) {
    notes.push_back("assumed: the GPUs are " + device + ", the nearest by " +
                    (f.sm > 0 ? "compute capability" : std::to_string(links) + " NVLinks a GPU") +
                    "; state them with --device");
  }
  return device;
}

}  // namespace gputwin
