// How wrong a calibrated description of this computer is: plans are predicted, run for real, and
// compared operation by operation and in total.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "validation/probes/host_job.h"

namespace gputwin::probes {

struct HostCase {
  std::string family;  // variants of one job: their order is judged
  HostJob job;
};

/// Two-rank tensor-parallel layers with and without chunked overlap, at two link speeds; a
/// two-stage 1F1B pipeline; a GPT whose optimizer is offloaded by buckets, and the same without.
/// None of their shapes is one that probes measure. `quick`: smaller and fewer.
std::vector<HostCase> host_cases(bool quick);

struct KindError {
  std::string kind;            // of operation, as operator_key; of collectives their kind
  std::size_t operations = 0;  // in one iteration over all ranks
  double mean = 0, p50 = 0, p95 = 0, bias = 0;  // predicted / measured - 1; absolute but the bias
  double measured_s = 0, predicted_s = 0;       // in one iteration over all ranks
};

struct CaseResult {
  std::string family, name;
  double predicted_s = 0;
  double pace = 1;             // of the computer during the runs, by its yardstick; predicted with
  double as_probed_s = 0;      // predicted without
  std::vector<double> runs_s;  // iteration of every run: median of its bodies
  double measured_s = 0;       // median of runs
  double operation_error = 0;  // mean absolute, every operation of the iteration counting once
  double weighted_error = 0;   // the same, weighted by measured time
  std::vector<KindError> kinds;
  double error() const { return predicted_s / measured_s - 1.0; }
};

/// A pair of variants whose predictions differ by 10 % or more.
struct Order {
  std::string faster, slower;          // as predicted
  double predicted = 0, measured = 0;  // slower / faster
  bool right() const { return measured > 1.0; }
};

struct HostValidation {
  std::vector<CaseResult> cases;
  std::vector<Order> orders;
  double mean_operation_error = 0, worst_error = 0;  // over cases
};

struct ValidationOptions {
  std::string device = "host-cpu";
  std::vector<std::string> only;  // families; empty: all
  int repeats = 5, bodies = 5;
  bool quick = false;
};

/// Runs of all cases take turns, so that a slow minute of the computer falls on each alike.
/// `progress` says no to stop; then cases without a run are left out.
HostValidation validate_host(const ValidationOptions& options,
                             const std::function<bool(double)>& progress);

std::string validation_table(const HostValidation& validation);
std::string validation_json(const HostValidation& validation);

}  // namespace gputwin::probes
