// A measured collective as a table describes it.
#pragma once

#include <cstdint>
#include <string>

namespace gputwin {

/// What a row of a table was measured on; texts as the table spells them.
struct CollectiveRow {
  std::string system;      // "alps_gh200", "aic-h100_sxm", "vidur-a100_dgx": a file of systems/
  std::string collective;  // all_reduce, all_gather, reduce_scatter, alltoall, broadcast, sendrecv
  std::string env;         // settings of the run that change times
  std::string version;     // of NCCL, or of the folder it was read from
  std::int32_t ranks = 2, nodes = 1;
  double bytes = 0;  // larger of input and output of one rank
};

}  // namespace gputwin
