// Runs the points of a sweep: in children of this process, or in all processes of an MPI job.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sim/app/sweep.h"
#include "sim/app/sweep_journal.h"
#include "sim/app/sweep_mpi.h"
#include "sim/app/worker_pool.h"

namespace gputwin {

/// Row of every point, in input order; none where the sweep was stopped before.
using SweepRows = std::vector<std::optional<nlohmann::ordered_json>>;

struct SweepDoing {
  SweepJournal* journal = nullptr;       // or null; read first, then appended to
  MpiCrew* crew = nullptr;               // rank 0 of an MPI job, or null
  std::function<bool(double)> progress;  // share done; false stops
  std::function<bool()> cancelled;       // polled; true stops
};

/// Points with a row in the journal are not run again. Rows with status "error" (a worker died, a
/// bug) are not written to it, so that the next time they are tried again.
SweepRows run_sweep(const Sweep& sweep, WorkerPool& pool, const SweepDoing& doing);

}  // namespace gputwin
