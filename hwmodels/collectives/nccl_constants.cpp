#include "hwmodels/collectives/nccl.h"

namespace gputwin {

namespace {

constexpr std::array<const char*, kProtocols> kProtocolKeys{"ll", "ll128", "simple"};
constexpr std::array<const char*, kNcclGenerations> kGenerationKeys{"volta", "ampere", "hopper",
                                                                    "blackwell"};
constexpr std::array<const char*, 3> kNodeKeys{"1_node", "2_nodes", "4_nodes"};

std::array<Seconds, kProtocols> latencies(ConstantsFile& file, const std::string& at) {
  std::array<Seconds, kProtocols> out;
  for (std::size_t p = 0; p < kProtocols; ++p) {
    out[p] = Seconds(file.number(at + "/" + kProtocolKeys[p] + "_us", Range::NotNegative) * 1e-6);
  }
  return out;
}

}  // namespace

std::size_t nccl_generation(Architecture architecture) {
  switch (architecture) {
    case Architecture::Maxwell:
    case Architecture::Pascal:
    case Architecture::Volta:
    case Architecture::Turing: return 0;
    case Architecture::Ampere:
    case Architecture::Ada: return 1;
    case Architecture::Hopper: return 2;
    case Architecture::Blackwell: return 3;
  }
  return 0;
}

NcclConstants load_nccl_constants(const std::filesystem::path& path) {
  ConstantsFile file(path);
  NcclConstants n;
  n.ring_base = latencies(file, "/ring/base");
  n.ring_nvlink = latencies(file, "/ring/nvlink_step");
  n.ring_pcie = latencies(file, "/ring/pcie_step");
  n.ring_net = latencies(file, "/ring/net_step");
  n.tree_base = latencies(file, "/tree/base");
  n.tree_nvlink = latencies(file, "/tree/nvlink_step");
  n.tree_pcie = latencies(file, "/tree/pcie_step");
  n.tree_net = latencies(file, "/tree/net_step");
  n.tree_efficiency = file.number("/tree/efficiency", Range::Fraction);
  n.nvls_latency = Seconds(file.number("/nvls/latency_us") * 1e-6);
  n.send_base = Seconds(file.number("/send/base_us", Range::NotNegative) * 1e-6);
  constexpr std::array<const char*, 2> kCounts{"2", "4"};
  for (std::size_t i = 0; i < kCounts.size(); ++i) {
    const std::string count = kCounts[i];
    n.all_reduce_share[i] = file.number("/ranks_share/all_reduce_" + count, Range::Fraction);
    n.others_share[i] = file.number("/ranks_share/others_" + count, Range::Fraction);
  }
  n.nvls_share = file.number("/ranks_share/nvls_4", Range::Fraction);
  n.pcie_ring_share = file.number("/pcie/ring_share", Range::Fraction);
  for (std::size_t p = 0; p < kProtocols; ++p) {
    n.wire_bytes[p] = file.number(std::string("/wire_bytes_per_byte/") + kProtocolKeys[p]);
  }
  for (std::size_t a = 0; a < kNcclGenerations; ++a) {
    for (std::size_t i = 0; i < kNodeKeys.size(); ++i) {
      const std::string at = std::string("/ll_limit/") + kGenerationKeys[a] + "_" + kNodeKeys[i];
      n.ll_limit[a][i] = BytesPerSecond(file.number(at + "_GBps") * 1e9);
    }
  }
  file.finish();
  n.constants = file.constants();
  return n;
}

}  // namespace gputwin
