// The processes of an MPI job as one crew: rank 0 hands out requests, all of them work.
//
// Two implementations, chosen by CMake: with Boost.MPI, and one that says it was built without.
#pragma once

#include <memory>

#include "sim/app/worker_pool.h"

namespace gputwin {

/// Processes that a launcher (mpirun, srun) started together, as it says in the environment; 1
/// without one. MPI is not touched.
int launched_processes();

/// MPI, initialised while this lives. At most one in a process's life.
class MpiCrew {
 public:
  /// Errors: InputError if this program was built without Boost.MPI, or if MPI does not see the
  /// processes that the launcher started.
  MpiCrew();
  ~MpiCrew();  // rank 0: lets the others go
  MpiCrew(const MpiCrew&) = delete;
  MpiCrew& operator=(const MpiCrew&) = delete;

  int rank() const;

  /// Rank 0: does `work` with its own pool and those of the others. As WorkerPool::work.
  void share(WorkerPool& pool, const WorkerPool::Work& work);

  /// Other ranks: answers requests of rank 0 until it lets go.
  void help(WorkerPool& pool);

 private:
  struct Mpi;
  std::unique_ptr<Mpi> mpi_;
};

}  // namespace gputwin
