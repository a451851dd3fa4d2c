// Published systems as settings of one pass. What each moves and when follows its paper or code;
// where that is a reconstruction, the table says so.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "sim/core/offload.h"

namespace gputwin {

struct OffloadStrategy {
  std::string_view name;
  std::string_view what;  // one clause, with the source
  OffloadSpec spec;
};

std::span<const OffloadStrategy> offload_strategies();
std::optional<OffloadSpec> find_offload_strategy(std::string_view name);

}  // namespace gputwin
