// Hardware facts from files of other programs, as our cluster files and tables.
//
// Every function is pure: text in, value out. Nothing is dropped in silence: what our formats
// cannot express comes back as a note "not represented: …", what the file does not state and the
// result needs as "assumed: …". Damaged, truncated and foreign text throws InputError with file,
// line and reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hwmodels/device.h"
#include "sim/core/cluster.h"

namespace gputwin {

/// A file of ours made from one of another program.
struct Imported {
  std::string text;  // a cluster file (JSON) or a table (CSV)
  std::vector<std::string> notes;
};

/// How near two devices of a node are; the words of nvidia-smi topo -m.
enum class Nearness : std::uint8_t { Pix, Pxb, Phb, Node, Sys };
std::string_view to_string(Nearness);

struct NicFacts {
  std::string name;
  double Gbps = 0.0;  // 0: not stated
  FabricKind fabric = FabricKind::InfiniBand;
  std::vector<Nearness> to_gpu;
};

/// What a file says about one node. Unstated numbers are 0, unstated texts empty.
struct NodeFacts {
  std::string origin;  // "nvidia-smi topo -m", "NCCL topology"
  std::int32_t gpus = 0;
  std::string pci_id;                              // of the GPUs, "10de:20b2"
  std::int32_t sm = 0;                             // compute capability x 10
  std::vector<std::vector<std::int32_t>> nvlinks;  // GPU to GPU, count of links
  std::int32_t switch_nvlinks = 0;                 // of each GPU to NVSwitches
  bool nvlinks_stated = false;
  std::vector<std::int32_t>
      pcie_switch;  // by GPU: which switch it hangs below; -1: none or unstated
  bool pcie_switches_stated = false;
  std::vector<NicFacts> nics;
  std::int32_t numa_nodes = 0, cores = 0;
  std::int32_t pcie_generation = 0, pcie_lanes = 16;
  std::vector<std::string> notes;
};

/// The matrix of `nvidia-smi topo -m` with GPUs, adapters, CPU and NUMA affinity.
NodeFacts parse_nvidia_smi_topo(const std::string& file, const std::string& text);

/// The dump of NCCL_TOPO_DUMP_FILE, or a static topology for NCCL_TOPO_FILE.
NodeFacts parse_nccl_topology(const std::string& file, const std::string& text);

/// The shipped device that the facts name or imply, and a note if it is an assumption; empty if
/// they leave it open. `pci_ids` is hwmodels/import/pci_ids.json.
std::string implied_device(const NodeFacts& facts,
                           const std::map<std::string, std::string>& pci_ids,
                           std::vector<std::string>& notes);
std::map<std::string, std::string> load_pci_ids(const std::filesystem::path& path);

/// Bandwidth of one NVLink of `device`, each direction; 0 without NVLink. `rates` is
/// hwmodels/links/nvlink.json.
BytesPerSecond nvlink_rate(const Device& device, const std::filesystem::path& rates);

/// A cluster file of `nodes` such nodes. GPUs may be renumbered (a note says so).
Imported cluster_of_nodes(NodeFacts facts, const Device& device, BytesPerSecond nvlink,
                          std::int32_t nodes, const std::string& name);

/// What the user knows beside a log; empty or 0: take it from the log.
struct LogOptions {
  std::string device, system, collective;
  std::int32_t ranks = 0, nodes = 0;
};

/// Output of nccl-tests, rccl-tests or all_reduce_bench.py as a table nccl_tests_logs.
Imported table_of_nccl_tests(const std::string& file, const std::string& text,
                             const LogOptions& options);

/// Slurm's topology.conf (topology/tree) as a cluster whose nodes and rates are those of
/// `node_cluster`, a cluster file (JSON).
Imported cluster_of_slurm(const std::string& file, const std::string& text,
                          const std::string& node_cluster, const std::string& name);

}  // namespace gputwin
