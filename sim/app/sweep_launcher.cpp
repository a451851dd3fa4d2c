// Whether a launcher of MPI jobs started this process.
#include <algorithm>
#include <cstdlib>

#include "sim/app/sweep_mpi.h"

namespace gputwin {

int launched_processes() {
  // Open MPI; MPICH and Intel MPI (Hydra), and Slurm's PMI-1 and 2; a step of srun.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* size = std::getenv(name);
    if (size != nullptr) return std::max(1, std::atoi(size));
  }
  return 1;
}

}  // namespace gputwin
