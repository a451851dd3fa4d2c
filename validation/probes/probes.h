// Microbenchmarks of this computer as the host executor uses it: its kernels in small transformer
// layers, its streams, links through memory, files. The tables that gputwin calibrate turns into a
// device (hwmodels/calibrate/processor_fit.h).
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gputwin::probes {

/// Lines of the tables that a probe adds to, by table ("products", "operators", …).
using TableLines = std::map<std::string, std::vector<std::string>>;

/// One measurement that stands for itself: runs in seconds, can be left out or repeated.
struct Probe {
  std::string group;  // "layers", "collectives", … : what --only names
  std::string name;   // unique, a file's name
  std::string what;   // one line for a person
  std::function<TableLines()> run;
};

/// All probes; `quick`: one or two sizes of each, for tests.
std::vector<Probe> host_probes(bool quick);

/// The header of a table.
std::string table_header(const std::string& table);

struct ProbeOptions {
  std::filesystem::path out;
  std::vector<std::string> only;  // groups; empty: all
  bool quick = false;
  double time_limit_s = 480;
};

struct ProbeSummary {
  std::size_t measured = 0, kept = 0, left = 0;  // probes: run now, of an earlier run, not run
  std::vector<std::filesystem::path> tables;
};

/// Runs what OUT/done does not hold yet, a file for each probe that appears whole or not at all,
/// and joins all of OUT/done into the tables OUT/*.csv. `progress(done / all, name)` says no to
/// stop. Throws InputError for an unknown group and a folder that cannot be written.
ProbeSummary run_probes(const ProbeOptions& options,
                        const std::function<bool(double, const std::string&)>& progress);

/// What probes of a GPU would measure, and why they cannot be run here.
std::string cuda_probe_list();

}  // namespace gputwin::probes
