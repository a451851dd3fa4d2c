#include "sim/app/sweep_run.h"

#include <atomic>
#include <mutex>
#include <utility>

namespace gputwin {

SweepRows run_sweep(const Sweep& sweep, WorkerPool& pool, const SweepDoing& doing) {
  SweepRows rows(sweep.points.size());
  std::size_t done = 0;
  if (doing.journal != nullptr) {
    for (const auto& [point, row] : doing.journal->rows()) rows[point] = row, ++done;
  }
  std::vector<std::size_t> pending;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) pending.push_back(i);
  }
  std::atomic<bool> stopped{false};
  std::mutex mutex;
  std::size_t next = 0;
  WorkerPool::Work work;
  work.cancelled = [&] {
    if (doing.cancelled && doing.cancelled()) stopped = true;
    return stopped.load();
  };
  work.next = [&]() -> std::optional<WorkerPool::Task> {
    const std::lock_guard lock(mutex);
    if (stopped || next == pending.size()) return std::nullopt;
    const std::size_t i = pending[next++];
    return WorkerPool::Task{i, sweep_request(sweep, i)};
  };
  work.answered = [&](std::size_t i, nlohmann::ordered_json answer) {
    const std::lock_guard lock(mutex);
    rows[i] = sweep_row(answer);
    const bool keep = (*rows[i])["status"] != "error";
    try {
      if (doing.journal != nullptr && keep) doing.journal->append(i, *rows[i]);
    } catch (...) {
      stopped = true;
      throw;
    }
    ++done;
    const double share = static_cast<double>(done) / static_cast<double>(rows.size());
    if (doing.progress && !doing.progress(share)) stopped = true;
  };
  if (doing.crew != nullptr) {
    doing.crew->share(pool, work);
  } else {
    pool.work(work);
  }
  return rows;
}

}  // namespace gputwin
