// A scenario: one training job on one cluster, read from JSON, checked, and ready to be lowered.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sim/app/ablation.h"
#include "sim/core/cluster.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/workload.h"

namespace gputwin {

/// A rank whose kernels take `slowdown` times as long as its device would (0.5: twice as fast).
struct Straggler {
  RankId rank{};
  double slowdown = 1.0;
  bool operator==(const Straggler&) const = default;
};

struct WhatIf {
  Mechanisms without;                 // cost nothing
  StackFactors times = kNoFactors;    // on top of the stack's own
  std::vector<Straggler> stragglers;  // each rank at most once
  std::vector<NicFault> nics;         // each adapter at most once
  std::optional<Jitter> jitter;
  bool unlimited_memory = false;  // simulate although some rank needs more memory than there is
  bool operator==(const WhatIf&) const = default;
};

/// What the job says about PyTorch's allocator; the rest is as its software stack has it.
struct AllocatorChoice {
  std::optional<bool> expandable_segments;
  std::optional<Bytes> max_split_size;  // 0: unlimited
  std::optional<std::int32_t> roundup_power2_divisions;
  bool operator==(const AllocatorChoice&) const = default;
};

struct Plugin;

struct Scenario {
  std::string name;
  Workload workload;
  Cluster cluster;
  Job job;
  AllocatorChoice allocator;
  Layout layout;
  WhatIf what_if;
  std::vector<const Plugin*> plugins;  // strategies of others, not part of the file
  std::string resolved;  // JSON: overrides applied, model and cluster inlined; loads to the same
};

/// The text of a scenario, and where the names in it are looked up.
struct ScenarioSource {
  std::string text;
  std::string file;  // for errors
  std::vector<std::filesystem::path> dirs;
};

/// What load_scenario reads before it parses. Errors: InputError if there is no such file or run.
ScenarioSource find_scenario(const std::filesystem::path& path,
                             const std::vector<std::filesystem::path>& data_dirs);

/// Reads, completes and checks a scenario file.
///
/// path       the file; if there is none, the name of a run in a data directory
/// sets       overrides "path=value" in order, for example "layout.tp=4" (see set_path.h)
/// data_dirs  directories that hold models/, clusters/ and runs/; the folder above the file's is
///            searched before them
/// Errors     InputError naming file ("--set" for an override), JSON pointer, value and a way out
Scenario load_scenario(const std::filesystem::path& path, const std::vector<std::string>& sets = {},
                       const std::vector<std::filesystem::path>& data_dirs = {});

/// The same from text in memory; `file` names it in errors.
Scenario parse_scenario(const std::string& text, const std::string& file,
                        const std::vector<std::string>& sets = {},
                        const std::vector<std::filesystem::path>& data_dirs = {});

/// One shipped file: its name and its facts in one line.
struct Listing {
  std::string name;
  std::string facts;
};

/// Models, clusters and runs of the data directories, by name. A name that stands in two
/// directories is listed once, from the first. Errors: InputError for a file that does not load.
std::vector<Listing> list_models(const std::vector<std::filesystem::path>& data_dirs);
std::vector<Listing> list_clusters(const std::vector<std::filesystem::path>& data_dirs);
std::vector<Listing> list_runs(const std::vector<std::filesystem::path>& data_dirs);

/// A model or a cluster by name, for commands that need no scenario. Errors: InputError.
Workload load_model(const std::string& name, const std::vector<std::filesystem::path>& data_dirs);
Cluster load_cluster(const std::string& name, const std::vector<std::filesystem::path>& data_dirs);

}  // namespace gputwin
