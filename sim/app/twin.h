// The twin loop: a folder that holds one cluster's job, what was predicted before runs, what runs
// then showed, and what that says about the cluster.
//
//   DIR/scenario.json               the cluster and the job, as given
//   DIR/history.jsonl               a line for every event, in order; never changed, only added to
//   DIR/predictions/pN/             scenario.json, result.json, timeline.gtr
//   DIR/observations/oN/            comparison.json (of a trace), or iterations.json (of a log)
//
// Files are written before the line that names them, so that a process killed at any moment leaves
// a folder that holds everything its history names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/app/journal.h"
#include "sim/app/run_log.h"
#include "sim/app/scenario.h"

namespace gputwin {

/// Windows in a row outside the predicted interval after which a run has drifted; and the share of
/// the predicted rate of transfers below which links are slow. Source: the twin's rules
/// (Megatron-LM PR 4662 for stragglers, run_comparison.h).
inline constexpr int kDriftWindows = 3;
inline constexpr double kSlowLinks = 0.8;
inline constexpr std::int64_t kIterationsOfWindow = 10;

/// Medians of windows of kIterationsOfWindow iterations or more, as lines of the log end; its first
/// line is left out as warm-up if there are more; a shorter last window counts from three
/// iterations on.
std::vector<double> windows_of(const std::vector<LoggedIterations>& lines);

/// True if the last kDriftWindows of `windows` lie all above, or all below, the interval.
bool drifted(const std::vector<double>& windows, double low, double high);

class Twin {
 public:
  using Json = Journal::Json;

  /// Makes the folder, and returns the first line of its history. Killed before that line is whole
  /// it leaves no twin, and may be called again. InputError if the folder holds a twin already.
  static Json init(const std::filesystem::path& folder, const Scenario& scenario);
  /// Opens it; InputError if it is none.
  explicit Twin(std::filesystem::path folder);

  /// Simulates the job with `sets` and the factors learned so far, keeps it, and returns its line.
  Json predict(const std::vector<std::string>& sets);
  /// Holds a trace or log against a prediction ("p3"; empty: the latest) and returns its line, with
  /// alerts. `learn`: factors of classes with enough evidence count in later predictions.
  Json observe(const std::filesystem::path& file, const std::string& prediction, bool learn);

  const std::vector<Json>& history() const { return history_.lines(); }
  /// Alerts that nothing later took back: those of the latest observation; if that is a log, which
  /// tells of no links and ranks, also those that the latest trace raised about them.
  std::vector<std::string> standing_alerts() const;

 private:
  Json factors() const;
  const Json& prediction_line(const std::string& id) const;
  std::string next_id(const char* event, char letter) const;
  Json observe_log(const std::filesystem::path& file, const Json& prediction,
                   const std::filesystem::path& into);
  Json observe_trace(const std::filesystem::path& file, const Json& prediction,
                     const std::filesystem::path& into);
  std::vector<double> earlier_windows(const std::string& prediction) const;

  std::filesystem::path folder_;
  Journal history_;
};

}  // namespace gputwin
