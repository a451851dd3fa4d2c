// nvidia-smi topo -m: a header of device names, one row a device, legends behind.
#include <algorithm>
#include <set>

#include "hwmodels/import/import.h"
#include "hwmodels/import/lines.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

constexpr std::int32_t kMostGpus = 1024;  // of a node, as the cluster format

struct Matrix {
  std::vector<std::string> names;               // columns
  std::vector<std::vector<std::string>> cells;  // by column index of the row's name
  std::vector<std::size_t> line;                // of each row
  std::vector<std::string> cpus, numa;          // of each row; empty: none
};

bool is_gpu(const std::string& name) {
  return name.rfind("GPU", 0) == 0 && whole_number(std::string_view(name).substr(3)).has_value();
}

bool is_relation(const std::string& word) {
  if (word == "X") return true;
  for (const Nearness n :
       {Nearness::Pix, Nearness::Pxb, Nearness::Phb, Nearness::Node, Nearness::Sys}) {
    if (word == to_string(n)) return true;
  }
  const auto links =
      word.rfind("NV", 0) == 0 ? whole_number(std::string_view(word).substr(2)) : std::nullopt;
  return links && *links > 0 && *links <= 64;
}

Nearness nearness_of(const std::string& word) {
  for (const Nearness n : {Nearness::Pix, Nearness::Pxb, Nearness::Phb, Nearness::Node}) {
    if (word == to_string(n)) return n;
  }
  return Nearness::Sys;
}

std::vector<std::string> header_names(const std::string& file, std::size_t line,
                                      const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const std::string& word : words) {
    if (word == "CPU" || word == "NUMA" || word == "GPU") break;
    if (std::find(names.begin(), names.end(), word) != names.end()) {
      fail_at(file, line, word, "stands in the header twice", "save the output again");
    }
    names.push_back(word);
  }
  const auto gpus = std::count_if(names.begin(), names.end(), is_gpu);
  for (std::int64_t g = 0; g < gpus; ++g) {
    if (names[static_cast<std::size_t>(g)] != "GPU" + std::to_string(g)) {
      fail_at(file, line, names[static_cast<std::size_t>(g)],
              "stands where GPU" + std::to_string(g) + " belongs", "save the output again");
    }
  }
  if (gpus > kMostGpus) fail_at(file, line, "", "names more than 1024 GPUs", "give one node");
  return names;
}

void read_row(const std::string& file, std::size_t line, const std::vector<std::string>& words,
              Matrix& m) {
  const auto column = std::find(m.names.begin(), m.names.end(), words[0]) - m.names.begin();
  const auto row = static_cast<std::size_t>(column);
  if (!m.cells[row].empty()) fail_at(file, line, words[0], "has two rows", "keep one matrix");
  if (words.size() < m.names.size() + 1) {
    fail_at(file, line, words[0],
            "has " + std::to_string(words.size() - 1) + " relations where the header names " +
                std::to_string(m.names.size()) + " devices",
            "is the line cut off?");
  }
  for (std::size_t c = 0; c < m.names.size(); ++c) {
    const std::string& word = words[c + 1];
    if (!is_relation(word) || (word == "X") != (c == row)) {
      fail_at(file, line, word, "is no relation of " + words[0] + " and " + m.names[c],
              "X with itself, else NV<links>, PIX, PXB, PHB, NODE or SYS");
    }
    m.cells[row].push_back(word);
  }
  m.line[row] = line;
  const std::size_t rest = m.names.size() + 1;
  if (is_gpu(words[0]) && words.size() > rest) m.cpus[row] = words[rest];
  if (is_gpu(words[0]) && words.size() > rest + 1) m.numa[row] = words[rest + 1];
}

// CPUs of "0-23,48-71"; throws for anything else but N/A.
void add_cpus(const std::string& file, std::size_t line, const std::string& text,
              std::set<std::int64_t>& cpus, bool& two_ranges) {
  if (text.empty() || text == "N/A") return;
  std::size_t ranges = 0;
  for (std::size_t at = 0; at <= text.size(); ++ranges) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const std::size_t dash = part.find('-');
    const auto first = whole_number(part.substr(0, dash));
    const auto last = dash == std::string::npos ? first : whole_number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last >= 65536) {
      fail_at(file, line, text, "is no list of CPUs", "as 0-23,48-71");
    }
    for (std::int64_t c = *first; c <= *last; ++c) cpus.insert(c);
    at = end + 1;
  }
  two_ranges = two_ranges || ranges == 2;
}

void check_whole(const std::string& file, const Matrix& m) {
  for (std::size_t r = 0; r < m.names.size(); ++r) {
    if (m.cells[r].empty()) {
      throw InputError(file, "", m.names[r], "has no row in the matrix", "is the file cut off?");
    }
    for (std::size_t c = 0; c < r; ++c) {
      if (m.cells[r][c] == m.cells[c][r]) continue;
      fail_at(
          file, m.line[r], m.cells[r][c],
          "joins " + m.names[r] + " and " + m.names[c] + ", the other way it is " + m.cells[c][r],
          "save the output again");
    }
  }
}

FabricKind fabric_of(const std::string& adapter) {
  const auto starts = [&](const char* text) { return adapter.rfind(text, 0) == 0; };
  if (starts("efa") || starts("rdmap")) return FabricKind::Efa;
  if (starts("cxi") || starts("hsn")) return FabricKind::Slingshot;
  if (starts("bnxt") || starts("rocep")) return FabricKind::Roce;
  if (starts("eth")) return FabricKind::Ethernet;
  if (starts("hfi")) return FabricKind::OmniPath;
  return FabricKind::InfiniBand;
}

// PCIe switches by union of GPUs that are PIX or PXB to each other or to the same adapter.
void find_switches(const Matrix& m, NodeFacts& facts) {
  const auto gpus = static_cast<std::size_t>(facts.gpus);
  facts.pcie_switch.assign(gpus, -1);
  const auto near = [&](std::size_t a, std::size_t b) {
    return m.cells[a][b] == "PIX" || m.cells[a][b] == "PXB";
  };
  bool hidden = false;
  for (std::size_t a = 0; a < gpus; ++a) {
    if (facts.pcie_switch[a] < 0) facts.pcie_switch[a] = static_cast<std::int32_t>(a);
    for (std::size_t b = a + 1; b < gpus; ++b) {
      bool same = near(a, b);
      for (std::size_t nic = gpus; nic < m.names.size(); ++nic) {
        same = same || (near(a, nic) && near(b, nic));
      }
      if (same) facts.pcie_switch[b] = facts.pcie_switch[a];
      hidden = hidden || m.cells[a][b].rfind("NV", 0) == 0;
    }
  }
  // NVLink hides how two GPUs hang on PCIe; adapters near them still tell.
  bool told = !hidden;
  for (std::size_t a = 0; a < gpus; ++a) {
    for (std::size_t nic = gpus; nic < m.names.size(); ++nic) told = told || near(a, nic);
  }
  facts.pcie_switches_stated = told;
}

void read_affinity(const std::string& file, const Matrix& m, NodeFacts& facts) {
  std::set<std::int64_t> cpus;
  std::set<std::string> numa;
  bool threads = false;
  for (std::size_t g = 0; g < static_cast<std::size_t>(facts.gpus); ++g) {
    add_cpus(file, m.line[g], m.cpus[g], cpus, threads);
    if (!m.numa[g].empty() && m.numa[g] != "N/A") numa.insert(m.numa[g]);
  }
  facts.numa_nodes = static_cast<std::int32_t>(numa.size());
  facts.cores = static_cast<std::int32_t>(threads ? cpus.size() / 2 : cpus.size());
  if (facts.cores > 0) {
    facts.notes.push_back(threads ? "assumed: two ranges of CPUs a GPU are two threads a core"
                                  : "assumed: each CPU of the affinity is a core");
  }
}

NodeFacts facts_of(const std::string& file, const Matrix& m,
                   const std::map<std::string, std::string>& legend) {
  NodeFacts facts;
  facts.origin = "nvidia-smi topo -m";
  facts.gpus = static_cast<std::int32_t>(std::count_if(m.names.begin(), m.names.end(), is_gpu));
  const auto gpus = static_cast<std::size_t>(facts.gpus);
  facts.nvlinks_stated = true;
  facts.nvlinks.assign(gpus, std::vector<std::int32_t>(gpus, 0));
  for (std::size_t a = 0; a < gpus; ++a) {
    for (std::size_t b = 0; b < gpus; ++b) {
      const std::string& word = m.cells[a][b];
      if (word.rfind("NV", 0) != 0) continue;
      facts.nvlinks[a][b] =
          static_cast<std::int32_t>(*whole_number(std::string_view(word).substr(2)));
    }
  }
  for (std::size_t n = gpus; n < m.names.size(); ++n) {
    NicFacts nic;
    const auto real = legend.find(m.names[n]);
    nic.name = real == legend.end() ? m.names[n] : real->second;
    nic.fabric = fabric_of(nic.name);
    for (std::size_t g = 0; g < gpus; ++g) nic.to_gpu.push_back(nearness_of(m.cells[n][g]));
    facts.nics.push_back(std::move(nic));
  }
  find_switches(m, facts);
  read_affinity(file, m, facts);
  return facts;
}

}  // namespace

NodeFacts parse_nvidia_smi_topo(const std::string& file, const std::string& text) {
  const std::vector<std::string> lines = text_lines(file, text);
  Matrix m;
  std::map<std::string, std::string> legend;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::vector<std::string> words = words_of(lines[i]);
    if (words.empty() || words[0][0] == '#') continue;
    if (m.names.empty()) {
      if (words[0] != "GPU0" || (words.size() > 1 && words[1] == "X")) continue;
      m.names = header_names(file, i + 1, words);
      m.cells.resize(m.names.size());
      m.line.resize(m.names.size());
      m.cpus.resize(m.names.size());
      m.numa.resize(m.names.size());
    } else if (std::find(m.names.begin(), m.names.end(), words[0]) != m.names.end()) {
      read_row(file, i + 1, words, m);
    } else if (is_gpu(words[0])) {
      fail_at(file, i + 1, words[0], "has a row but no column", "save the output again");
    } else if (words.size() == 2 && words[0].back() == ':') {
      legend[words[0].substr(0, words[0].size() - 1)] = words[1];
    }
  }
  if (m.names.empty()) {
    throw InputError(file, "line 1", "", "is no matrix of nvidia-smi topo -m",
                     "its header begins with GPU0");
  }
  check_whole(file, m);
  return facts_of(file, m, legend);
}

}  // namespace gputwin
