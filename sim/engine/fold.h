// Which ranks are alike, so that one of them can be simulated for all (colour refinement).
#pragma once

#include <string>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/plan.h"
#include "sim/core/topology.h"

namespace gputwin {

/// Ranks, communicators and links put into classes whose members do the same at the same time.
struct Folding {
  std::vector<RankId> representative;        // by rank; itself when not folded
  std::vector<RankId> simulated;             // the representatives, ascending
  std::vector<CommunicatorId> communicator;  // by communicator: representative of its orbit
  std::vector<std::vector<RankId>>
      participants;          // by communicator: distinct representatives of its members, ascending
  std::vector<LinkId> link;  // by link: representative of its class
  std::vector<double>
      link_flows;  // by link: flows of one orbit each real link of the class carries
  bool folded = false;
  std::string unfolded_because;  // empty, or why
};

/// Every rank, communicator and link stands for itself.
Folding identity_folding(const Plan& plan, const Topology& topology);

/// The coarsest folding proven sound, or the identity with the reason.
Folding fold(const Plan& plan, const Topology& topology, const CostModel& costs);

}  // namespace gputwin
