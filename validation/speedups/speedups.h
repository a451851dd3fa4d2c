// Published speed-ups of one way to run a job over another, against predictions of both.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gputwin {

/// One comparison, as a file gives it (README.md).
struct SpeedupRow {
  std::string id, group, source, note;
  std::string set;  // rows held against each other: one job, several ways; the row's id if alone
  std::string scenario;                    // JSON
  std::vector<std::string> variant, free;  // overrides "path=value" of the scenario
  std::string operation;                   // empty: the iteration; else of the first layer, forward
  std::optional<double> speedup, hidden;   // published
};

/// Seconds of the job as it is, of its variant, and of the job without what the variant hides;
/// samples of an iteration of the variant over those of the job as it is.
struct SpeedupTimes {
  double plain_s = 0, variant_s = 0, free_s = 0, samples_ratio = 1;

  /// Of samples per second.
  double speedup() const { return plain_s / variant_s * samples_ratio; }
  /// Share of what could be hidden that is: 1 where the variant takes no longer than the free job.
  double hidden() const { return (plain_s - variant_s) / (plain_s - free_s); }
};

struct ScoredSpeedup {
  SpeedupRow row;
  SpeedupTimes times;
};

/// Rows of a file. Throws InputError with file and pointer for what is missing, unknown or of the
/// wrong type.
std::vector<SpeedupRow> read_speedups(const std::filesystem::path& file);

/// Simulates each row's job two or three times. Of an operation the time runs from the first
/// begin to the last end of the tasks whose name starts with it, on rank 0; free is the sum of its
/// kernels in the plain job. `progress` gets the share done; false stops, and what is done is
/// given. Throws InputError if a scenario is wrong, std::runtime_error if one does not run.
std::vector<ScoredSpeedup> score_speedups(const std::vector<SpeedupRow>& rows,
                                          const std::function<bool(double)>& progress);

/// Pairs of ways of one set whose published figures differ, and those predicted in their order.
struct PairCount {
  int pairs = 0, right = 0;
};

/// The job as it is counts as one of its set's ways, with a speed-up of 1. Pairs count whose
/// larger published speed-up is more than `apart` times the smaller; a tie is predicted wrong.
PairCount pairs_in_order(const std::vector<ScoredSpeedup>& scored, double apart);

std::string speedups_report(const std::vector<ScoredSpeedup>& scored);
std::string speedups_json(const std::vector<ScoredSpeedup>& scored);

}  // namespace gputwin
