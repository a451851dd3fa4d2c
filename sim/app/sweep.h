// Many runs of one scenario that differ by overrides: a grid, a list, or both.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/app/scenario.h"

namespace gputwin {

/// One override of a point, as in --set.
struct Setting {
  std::string path, value;
  bool operator==(const Setting&) const = default;
};

/// The value a point sets at a path; of several the last, empty if it sets none.
std::string value_at(const std::vector<Setting>& point, const std::string& path);

struct Sweep {
  ScenarioSource base;
  std::string name;                          // of the scenario
  std::vector<std::string> sets;             // of every point, before its own
  std::vector<std::string> plugins;          // shared libraries, see plugin.h
  std::vector<std::string> columns;          // paths that points set, by first appearance
  std::vector<std::vector<Setting>> points;  // in input order
  bool extrapolate = false;                  // see extrapolate.h
};

inline constexpr std::size_t kMaxSweepPoints = 1'000'000;

struct SweepRequest {
  std::filesystem::path scenario;  // as for load_scenario
  std::vector<std::string> sets, plugins;
  std::vector<std::string> vary;  // "path=v1,v2"; "a=1,2;b=3,4" varies both together
  std::filesystem::path list;     // file of points, or empty
  bool extrapolate = false;
};

/// The points of `request`: those of the list times the grid, the first --vary slowest.
///
/// Values are split at commas outside brackets and quotes. The list has one point a line, its
/// overrides "path=value" apart by blanks; '#' begins a comment.
/// Errors  InputError for an unknown path, a value of the wrong type, a path or value that stands
///         twice, or too many points. Rules between values are for the points to break.
Sweep plan_sweep(const SweepRequest& request, const std::vector<std::filesystem::path>& data_dirs);

/// What a worker is asked for point `i` (worker.h).
nlohmann::ordered_json sweep_request(const Sweep& sweep, std::size_t i);

/// What makes one sweep another: hashes of everything its figures follow from, by name.
nlohmann::ordered_json sweep_identity(const Sweep& sweep, const std::string& version);

/// A worker's answer cut down to what a sweep keeps of it; the same wherever and whenever it ran.
///
/// {"status": "ok", figures of result.json but /engine and /memory/by_role}, or {"status":
/// "infeasible" | "invalid" | "error" | "cancelled", "reason": text}.
nlohmann::ordered_json sweep_row(const nlohmann::ordered_json& answer);

}  // namespace gputwin
