// The crew of a program built without Boost.MPI.
#include "sim/app/sweep_mpi.h"
#include "sim/core/check.h"
#include "sim/core/error.h"

namespace gputwin {

struct MpiCrew::Mpi {};

MpiCrew::MpiCrew() {
  throw InputError("sweep", "", std::to_string(launched_processes()) + " processes",
                   "were started together, but this gputwin was built without Boost.MPI",
                   "install libboost-mpi-dev and build again, or start it once with -j");
}

MpiCrew::~MpiCrew() = default;

int MpiCrew::rank() const { return 0; }

void MpiCrew::share(WorkerPool&, const WorkerPool::Work&) {
  GPUTWIN_CHECK(false, "without MPI there is no crew");
}

void MpiCrew::help(WorkerPool&) { GPUTWIN_CHECK(false, "without MPI there is no crew"); }

}  // namespace gputwin
