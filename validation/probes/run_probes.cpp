#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>

#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "validation/probes/probes.h"

namespace gputwin::probes {

namespace {

namespace fs = std::filesystem;

fs::path part_of(const ProbeOptions& options, const Probe& probe) {
  return options.out / "done" / (probe.name + (options.quick ? ".quick" : "") + ".csv");
}

// "table,line" for each line of a table.
void write_part(const fs::path& path, const TableLines& lines) {
  AtomicFile file(path);
  for (const auto& [table, rows] : lines) {
    for (const std::string& row : rows) file.write(table + "," + row + "\n");
  }
  file.commit();
}

void read_part(const fs::path& path, TableLines& into) {
  std::ifstream in(path);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "remove it to measure again");
  for (std::string line; std::getline(in, line);) {
    const std::size_t comma = line.find(',');
    if (comma == std::string::npos) {
      throw InputError(path.string(), "", line, "is no line of a probe",
                       "remove the file to measure again");
    }
    into[line.substr(0, comma)].push_back(line.substr(comma + 1));
  }
}

std::vector<Probe> chosen(const ProbeOptions& options) {
  std::vector<Probe> probes = host_probes(options.quick);
  std::set<std::string> groups;
  for (const Probe& p : probes) groups.insert(p.group);
  for (const std::string& wanted : options.only) {
    if (groups.contains(wanted)) continue;
    throw InputError("--only", "", wanted, "is no group of probes",
                     fmt::format("one of: {}", fmt::join(groups, ", ")));
  }
  if (options.only.empty()) return probes;
  std::erase_if(probes, [&](const Probe& p) {
    return std::find(options.only.begin(), options.only.end(), p.group) == options.only.end();
  });
  return probes;
}

}  // namespace

std::string table_header(const std::string& table) {
  if (table == "products") return "gpu,op,batch,m,n,k,accumulate,time_us";
  if (table == "operators") return "gpu,op,rows,cols,bytes,time_us";
  if (table == "collectives") return "system,collective,nranks,size_bytes,time_us";
  if (table == "copies") return "gpu,direction,size_bytes,time_us";
  return "gpu,quantity,value";
}

ProbeSummary run_probes(const ProbeOptions& options,
                        const std::function<bool(double, const std::string&)>& progress) {
  const std::vector<Probe> probes = chosen(options);
  const auto start = std::chrono::steady_clock::now();
  const auto late = [&] {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return taken.count() > options.time_limit_s;
  };
  ProbeSummary summary;
  TableLines all;
  bool stopped = false;
  for (std::size_t i = 0; i < probes.size(); ++i) {
    const fs::path part = part_of(options, probes[i]);
    if (fs::exists(part)) {
      ++summary.kept;
    } else {
      const double share = static_cast<double>(i) / static_cast<double>(probes.size());
      stopped = stopped || late() || !progress(share, probes[i].name);
      if (stopped) {
        ++summary.left;
        continue;
      }
      write_part(part, probes[i].run());
      ++summary.measured;
    }
    read_part(part, all);
  }
  for (const auto& [table, rows] : all) {
    summary.tables.push_back(options.out / (table + ".csv"));
    AtomicFile file(summary.tables.back());
    file.write(table_header(table) + "\n");
    for (const std::string& row : rows) file.write(row + "\n");
    file.commit();
  }
  return summary;
}

std::string cuda_probe_list() {
  return "  products      cuBLASLt GEMMs of transformer layers, by layout and format\n"
         "  operators     norms, softmax, activation, Adam, Top-k, quantise, pack, by bytes\n"
         "  launch        tiny kernels on one stream\n"
         "  copies        by size and direction, pinned and pageable memory\n"
         "  collectives   NCCL by size, where there are two GPUs or more\n"
         "  interference  products beside copies and beside collectives\n"
         "  host-adam     the optimizer's step on the host\n"
         "  files         drives\n";
}

}  // namespace gputwin::probes
