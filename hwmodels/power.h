// Electrical power of a device from what its kernels use:
//
//   P = limit x min(1, idle)                                        nothing runs
//   P = limit x min(1, busy + memory x u + compute x v)             u, v: shares of a kernel's time
//       in which memory and matrix units would be busy, by the terms of its cost
//
// Fitted on one device (A100) under inference and taken for all: the shares are of the power limit.
#pragma once

#include <filesystem>

#include "sim/core/cost.h"

namespace gputwin {

struct PowerShares {
  double idle = 0, busy = 0, memory = 0, compute = 0;  // of the power limit
};

/// Reads power.json of the folder hwmodels. Throws InputError as ConstantsFile does.
PowerShares load_power_shares(const std::filesystem::path& path);

/// Share of the limit that a kernel of this cost adds to a busy device.
double added_power(const PowerShares& shares, const Cost& cost);

}  // namespace gputwin
