#include "sim/engine/fold.h"

namespace gputwin {

Folding identity_folding(const Plan& plan, const Topology& topology) {
  Folding result;
  for (std::uint32_t r = 0; r < plan.ranks.size(); ++r) result.representative.emplace_back(r);
  result.simulated = result.representative;
  for (std::uint32_t c = 0; c < plan.communicators.size(); ++c) {
    result.communicator.emplace_back(c);
    result.participants.push_back(plan.communicators[c].members);
  }
  for (std::uint32_t l = 0; l < topology.links().size(); ++l) result.link.emplace_back(l);
  result.link_flows.assign(topology.links().size(), 1.0);
  return result;
}

}  // namespace gputwin
