// Where the shipped scenarios lie, for the tests of the loader.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/app/scenario.h"

namespace gputwin::test {

inline std::vector<std::filesystem::path> data_dirs() {
  return {std::filesystem::path(GPUTWIN_SOURCE_DIR) / "scenarios"};
}

/// JSON files of one folder of scenarios/, by name.
inline std::vector<std::filesystem::path> shipped(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(data_dirs()[0] / folder)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

inline constexpr const char* kFlagship = "gpt3_175b__a100_128x8__tp8_pp16_dp8";

/// A small job on two nodes of eight GPUs, written inline: every key that is required, and no
/// other.
inline const char* const kTinyScenario = R"({
  "model": {"layers": 4, "hidden": 64, "heads": 8, "ffn": 256, "vocab": 512,
            "activation": "swiglu", "positions": "rope"},
  "cluster": {"groups": [{"count": 2, "type": {"device": "a100-sxm-80gb", "gpus": 8,
      "intra": {"kind": "nvswitch", "bandwidth_GBps": 300},
      "pcie": {"bandwidth_GBps": 31.5},
      "host": {"cores": 64, "memory_GiB": 1024, "dram_GBps": 400},
      "nics": {"per_node": 8, "each_Gbps": 200}}}],
    "fabric": {"kind": "infiniband", "levels": [{"nodes_per_group": 2}]}},
  "job": {"sequence": 128, "global_batch": 16}
})";

}  // namespace gputwin::test
