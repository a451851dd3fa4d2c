// Published training runs: what was run, what was measured.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace gputwin {

/// What a source measured. Never an input of a prediction.
struct RunTarget {
  std::optional<double> time_s;
  bool of_iteration = true;            // false: forward and backward of one layer
  std::optional<double> memory_bytes;  // of the fullest device
  std::string memory_kind;             // "allocated", "reserved", "nvidia-smi", "model-states", …
  std::optional<double> tflops;        // per GPU, as `validate curves` counts them
  bool trains = true;                  // false: the source says that memory does not suffice
};

struct PublishedRun {
  std::string id, group, kind;
  nlohmann::ordered_json config;  // the inputs; keys in validation/runs/README.md
  RunTarget target;
  bool scorable = true;
  std::vector<std::string> not_scorable_why;
};

/// Reads a file of rows: an array, or an object {"defaults": config, "rows": array} whose rows
/// leave out what equals the defaults.
///
/// Throws InputError with file, JSON pointer and value: unreadable, no JSON, a row without id or
/// config, a number where it cannot be.
std::vector<PublishedRun> read_published_runs(const std::filesystem::path& path);

}  // namespace gputwin
