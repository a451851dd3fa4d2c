// Which family of software stacks and which architecture a published run belongs to.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hwmodels/device.h"
#include "validation/runs/published_run.h"

namespace gputwin {

struct StackOrigin {
  std::string stack;                         // as the run states it
  std::string family;                        // empty: the stack has none
  std::string other_family;                  // what it would get if its family were not known
  std::optional<Architecture> architecture;  // none: unknown device, or several
};

/// One per run, in their order. `hardware` is the folder hwmodels.
std::vector<StackOrigin> stack_origins(const std::vector<PublishedRun>& runs,
                                       const std::filesystem::path& hardware);

}  // namespace gputwin
