// NCCL's topology: system > cpu > pci > (pci | gpu > nvlink | nic > net).
#include <algorithm>
#include <bitset>

#include "hwmodels/import/import.h"
#include "hwmodels/import/lines.h"
#include "hwmodels/import/xml.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

struct Gpu {
  std::size_t line = 0;
  std::string bus, pci_id, speed, width;
  std::int32_t cpu = 0, bridge = -1, sm = 0, dev = -1;
  std::vector<const XmlElement*> nvlinks;
};

struct Adapter {
  NicFacts facts;
  std::int32_t cpu = 0, bridge = -1;
};

struct Walk {
  const std::string& file;
  std::vector<Gpu> gpus;
  std::vector<Adapter> adapters;
  std::int32_t cpus = 0, bridges = 0;
  std::int64_t cores = 0;
  std::vector<std::string> notes;
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool class_is(const XmlElement& pci, std::string_view first) {
  return lower(pci.text("class")).rfind(first, 0) == 0;
}

const XmlElement* child(const XmlElement& e, std::string_view name) {
  for (const XmlElement& c : e.children) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

std::int32_t number(const Walk& w, const XmlElement& e, const std::string& key,
                    std::int32_t absent) {
  const std::string text = e.text(key);
  if (text.empty()) return absent;
  const auto value = whole_number(text);
  if (!value || *value < -1 || *value > 100'000'000) {
    fail_at(w.file, e.line, text, "is no number for " + key, "is the file damaged?");
  }
  return static_cast<std::int32_t>(*value);
}

std::string pci_id(const XmlElement& pci) {
  const std::string vendor = lower(pci.text("vendor")), device = lower(pci.text("device"));
  return vendor.size() == 6 && device.size() == 6 ? vendor.substr(2) + ":" + device.substr(2) : "";
}

FabricKind fabric_of(const XmlElement* pci, const std::string& name) {
  if (pci != nullptr && lower(pci->text("vendor")) == "0x1d0f") return FabricKind::Efa;
  if (pci != nullptr && class_is(*pci, "0x0207")) return FabricKind::InfiniBand;
  if (name.rfind("mlx5", 0) == 0) return FabricKind::InfiniBand;
  return pci != nullptr && class_is(*pci, "0x0200") ? FabricKind::Roce : FabricKind::Ethernet;
}

void read_nets(Walk& w, const XmlElement& nic, const XmlElement* pci, std::int32_t cpu,
               std::int32_t bridge) {
  for (const XmlElement& net : nic.children) {
    if (net.name != "net") continue;
    Adapter a{{}, cpu, bridge};
    a.facts.name = net.text("name").empty() ? "adapter" : net.text("name");
    a.facts.Gbps = number(w, net, "speed", 0) / 1000.0;
    a.facts.fabric = fabric_of(pci, a.facts.name);
    w.adapters.push_back(std::move(a));
  }
}

void read_gpu(Walk& w, const XmlElement& pci, std::int32_t cpu, std::int32_t bridge) {
  Gpu g;
  g.line = pci.line;
  g.bus = lower(pci.text("busid"));
  g.pci_id = pci_id(pci);
  g.speed = pci.text("link_speed");
  g.width = pci.text("link_width");
  g.cpu = cpu;
  g.bridge = bridge;
  if (g.bus.empty()) fail_at(w.file, pci.line, "", "is a GPU without a busid", "add it");
  if (const XmlElement* gpu = child(pci, "gpu")) {
    g.sm = number(w, *gpu, "sm", 0);
    g.dev = number(w, *gpu, "dev", -1);
    for (const XmlElement& link : gpu->children) {
      if (link.name == "nvlink" || link.name == "xgmi") g.nvlinks.push_back(&link);
    }
  }
  w.gpus.push_back(std::move(g));
}

void read_pci(Walk& w, const XmlElement& pci, std::int32_t cpu, std::int32_t bridge) {
  const XmlElement* nic = child(pci, "nic");
  if (child(pci, "gpu") != nullptr || class_is(pci, "0x03") || class_is(pci, "0x12")) {
    read_gpu(w, pci, cpu, bridge);
  } else if (nic != nullptr) {
    read_nets(w, *nic, &pci, cpu, bridge);
  } else if (class_is(pci, "0x02")) {
    Adapter a{{}, cpu, bridge};
    a.facts.name = pci.text("busid");
    a.facts.fabric = fabric_of(&pci, "");
    w.adapters.push_back(std::move(a));
  } else {
    // A switch; switches below it count as the same one, as their common uplink is the bottleneck.
    const std::int32_t here = bridge >= 0 ? bridge : w.bridges++;
    for (const XmlElement& below : pci.children) {
      if (below.name == "pci") read_pci(w, below, cpu, here);
    }
  }
}

void read_cpu(Walk& w, const XmlElement& cpu) {
  const std::int32_t index = w.cpus++;
  for (const char c : cpu.text("affinity")) {
    if (c == ',') continue;
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) {
      fail_at(w.file, cpu.line, cpu.text("affinity"), "is no mask of CPUs", "as 00000000,00ffffff");
    }
    w.cores += static_cast<std::int64_t>(
        std::bitset<4>(std::stoul(std::string(1, c), nullptr, 16)).count());
  }
  for (const XmlElement& e : cpu.children) {
    if (e.name == "pci") {
      read_pci(w, e, index, -1);
    } else if (e.name == "nic") {
      read_nets(w, e, nullptr, index, -1);
    }
  }
}

std::int32_t generation_of(const Walk& w, const Gpu& g) {
  if (g.speed.empty()) return 0;
  const auto speed = real_number(words_of(g.speed).empty() ? "" : words_of(g.speed)[0]);
  if (!speed) fail_at(w.file, g.line, g.speed, "is no link speed", "as 16 GT/s");
  std::int32_t generation = 1;
  for (const double GTps : {5.0, 8.0, 16.0, 32.0, 64.0}) generation += *speed >= GTps ? 1 : 0;
  return generation;
}

void read_pcie(Walk& w, NodeFacts& f) {
  for (const Gpu& g : w.gpus) {
    const std::int32_t generation = generation_of(w, g);
    const auto lanes = g.width.empty() ? std::int64_t{0} : whole_number(g.width).value_or(-1);
    if (lanes < 0 || lanes > 32) fail_at(w.file, g.line, g.width, "is no link width", "1 to 16");
    if (&g == &w.gpus.front()) {
      f.pcie_generation = generation >= 3 || generation == 0 ? generation : 3;
      if (lanes > 0) f.pcie_lanes = static_cast<std::int32_t>(lanes);
      if (generation == 1 || generation == 2) {
        f.notes.push_back("not represented: PCIe generation " + std::to_string(generation) +
                          " (a GPU that sleeps reports less than it can); taken as 3");
      }
    } else if (g.speed != w.gpus[0].speed || g.width != w.gpus[0].width) {
      f.notes.push_back("not represented: the PCIe link of GPU " +
                        std::to_string(&g - w.gpus.data()) + " differs (" + g.speed + " x" +
                        g.width + "); taken as that of GPU 0");
    }
    f.pcie_switch.push_back(g.bridge);
  }
  f.pcie_switches_stated = true;
}

void read_nvlinks(Walk& w, NodeFacts& f) {
  const auto gpus = w.gpus.size();
  f.nvlinks.assign(gpus, std::vector<std::int32_t>(gpus, 0));
  std::vector<std::int32_t> to_switch(gpus, 0);
  for (std::size_t a = 0; a < gpus; ++a) {
    for (const XmlElement* link : w.gpus[a].nvlinks) {
      f.nvlinks_stated = true;
      const std::int32_t count = number(w, *link, "count", 0);
      if (count < 1 || count > 64)
        fail_at(w.file, link->line, link->text("count"), "is no count of links", "1 to 64");
      const std::string target = lower(link->text("target"));
      const auto peer =
          std::find_if(w.gpus.begin(), w.gpus.end(), [&](const Gpu& g) { return g.bus == target; });
      if (class_is(*link, "0x0680") || lower(link->text("tclass")).rfind("0x068000", 0) == 0) {
        to_switch[a] += count;
      } else if (peer == w.gpus.end() && lower(link->text("tclass")).rfind("0x03", 0) == 0) {
        fail_at(w.file, link->line, target, "is the busid of no GPU", "is the file damaged?");
      } else if (peer == w.gpus.end()) {
        f.notes.push_back("not represented: " + std::to_string(count) + " NVLinks of GPU " +
                          std::to_string(a) + " to a CPU or another device");
      } else if (static_cast<std::size_t>(peer - w.gpus.begin()) == a) {
        f.notes.push_back("not represented: " + std::to_string(count) + " NVLinks of GPU " +
                          std::to_string(a) + " to itself, as the file states; taken as none");
      } else {
        f.nvlinks[a][static_cast<std::size_t>(peer - w.gpus.begin())] += count;
      }
    }
  }
  for (std::size_t a = 0; a < gpus; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (f.nvlinks[a][b] == f.nvlinks[b][a]) continue;
      fail_at(w.file, w.gpus[a].line, std::to_string(f.nvlinks[a][b]),
              "NVLinks to GPU " + std::to_string(b) + " are " + std::to_string(f.nvlinks[b][a]) +
                  " the other way",
              "is the file damaged?");
    }
  }
  f.switch_nvlinks = *std::max_element(to_switch.begin(), to_switch.end());
  if (f.switch_nvlinks != *std::min_element(to_switch.begin(), to_switch.end())) {
    f.notes.emplace_back(
        "not represented: GPUs differ in their NVLinks to switches; taken as the most");
  }
}

[[noreturn]] void refuse_graph(const std::string& file, const XmlElement& root) {
  std::string what;
  for (const XmlElement& graph : root.children) {
    std::size_t gpus = 0, channels = 0;
    for (const XmlElement& channel : graph.children) {
      if (channel.name != "channel") continue;
      ++channels;
      gpus = 0;
      for (const XmlElement& e : channel.children) gpus += e.name == "gpu" ? 1 : 0;
    }
    what += " graph " + graph.text("id") + ": " + std::to_string(channels) + " channels over " +
            std::to_string(gpus) + " GPUs at " + graph.text("speedintra") + " GB/s inside (" +
            graph.text("typeintra") + ") and " + graph.text("speedinter") + " GB/s across (" +
            graph.text("typeinter") + ");";
  }
  throw InputError(
      file, "line " + std::to_string(root.line), "",
      "is NCCL's dump of graphs, which holds the channels it chose, not the machine:" + what,
      "give the topology, NCCL_TOPO_DUMP_FILE");
}

std::vector<NicFacts> nics_of(const Walk& w) {
  std::vector<NicFacts> nics;
  for (const Adapter& a : w.adapters) {
    NicFacts nic = a.facts;
    for (const Gpu& g : w.gpus) {
      const bool same_bridge = g.bridge >= 0 && g.bridge == a.bridge;
      nic.to_gpu.push_back(same_bridge      ? Nearness::Pix
                           : g.cpu == a.cpu ? Nearness::Phb
                                            : Nearness::Sys);
    }
    nics.push_back(std::move(nic));
  }
  return nics;
}

}  // namespace

NodeFacts parse_nccl_topology(const std::string& file, const std::string& text) {
  const XmlElement root = parse_xml(file, text);
  if (root.name == "graphs") refuse_graph(file, root);
  if (root.name != "system")
    fail_at(file, root.line, root.name, "is no topology of NCCL", "its root is <system>");
  Walk w{file, {}, {}, 0, 0, 0, {}};
  for (const XmlElement& cpu : root.children) {
    if (cpu.name == "cpu") read_cpu(w, cpu);
  }
  if (w.gpus.empty() || w.gpus.size() > 1024) {
    fail_at(file, root.line, std::to_string(w.gpus.size()), "GPUs are in the file",
            "1 to 1024 below <cpu>");
  }
  // NCCL numbers GPUs by dev where it states it, static topologies by their order.
  const bool numbered =
      std::all_of(w.gpus.begin(), w.gpus.end(), [](const Gpu& g) { return g.dev >= 0; });
  if (numbered)
    std::stable_sort(w.gpus.begin(), w.gpus.end(),
                     [](const Gpu& a, const Gpu& b) { return a.dev < b.dev; });
  NodeFacts f;
  f.origin = "NCCL topology";
  f.gpus = static_cast<std::int32_t>(w.gpus.size());
  for (std::size_t a = 0; a < w.gpus.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (w.gpus[a].bus == w.gpus[b].bus)
        fail_at(file, w.gpus[a].line, w.gpus[a].bus, "is the busid of two GPUs",
                "is the file damaged?");
    }
    if (w.gpus[a].pci_id != w.gpus[0].pci_id || w.gpus[a].sm != w.gpus[0].sm) {
      f.notes.push_back("not represented: GPU " + std::to_string(a) +
                        " is another model; taken as GPU 0");
    }
  }
  f.pci_id = w.gpus[0].pci_id;
  f.sm = w.gpus[0].sm;
  f.numa_nodes = w.cpus;
  f.cores = static_cast<std::int32_t>(std::min<std::int64_t>(w.cores, 65536));
  if (f.cores > 0) f.notes.emplace_back("assumed: each CPU of the affinity masks is a core");
  read_pcie(w, f);
  read_nvlinks(w, f);
  f.nics = nics_of(w);
  return f;
}

}  // namespace gputwin
