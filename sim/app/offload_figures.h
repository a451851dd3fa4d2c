// What a run says about offloading: bytes over PCIe, stall, and memory by address.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/core/cost_model.h"
#include "sim/core/offload.h"
#include "sim/core/run_result.h"
#include "sim/core/topology.h"

namespace gputwin {

/// Of each program with copies or host tasks; empty without.
std::vector<OffloadFigures> offload_figures(const Plan& plan, const Execution& execution,
                                            const CostModel& costs, const Topology& topology);

/// One line for each: bytes in and out of the GPU and how busy they keep a link of its own, the
/// host's share, the stall of the compute stream.
std::vector<std::string> offload_lines(const std::vector<OffloadFigures>& figures, Ps iteration);

/// What was to leave the GPU and does not, with the reason; empty where all of it does.
std::vector<std::string> unmoved_lines(const Plan& plan, const OffloadSpec& spec);

/// Fixed addresses for all GPU buffers of a program, by greedy-by-size: against the least possible
/// and against what the caching allocator reserves.
struct AddressMap {
  std::int64_t live_bytes = 0;    // most alive at once: no placement needs less
  std::int64_t placed_bytes = 0;  // highest address
  std::string svg;                // a picture: time to the right, addresses upwards
};
AddressMap address_map(const Plan& plan, const Program& program);

}  // namespace gputwin
