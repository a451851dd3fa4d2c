// The one spelling of every enumerator, for plan text, JSON and traces; and the words of an op's
// dimensions.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "sim/core/cost.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/run_result.h"

namespace gputwin {

std::string_view to_string(Kind);
std::string_view to_string(OpKind);
std::string_view to_string(DType);
std::string_view to_string(Phase);
std::string_view to_string(MemoryClass);
std::string_view to_string(Domain);
std::string_view to_string(StreamKind);
std::string_view to_string(Activation);
std::string_view to_string(Norm);
std::string_view to_string(Positions);
std::string_view to_string(AttentionKernel);
std::string_view to_string(Optimizer);
std::string_view to_string(Recipe);
std::string_view to_string(ContextComm);
std::string_view to_string(ExpertComm);
std::string_view to_string(TpOverlap);
std::string_view to_string(CopyKind);
std::string_view to_string(Axis);
std::string_view to_string(Schedule);
std::string_view to_string(Recompute);
std::string_view to_string(Algorithm);
std::string_view to_string(Protocol);
std::string_view to_string(Part);
std::string_view to_string(IntraKind);
std::string_view to_string(FabricKind);

/// All spellings of an enumeration in the order of its values. Defined for every type above.
template <class Enum>
std::span<const std::string_view> spellings();

/// The enumerator spelt `word`, if any.
template <class Enum>
std::optional<Enum> from_string(std::string_view word) {
  const auto words = spellings<Enum>();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == word) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

/// Letters that begin the name of an instruction, by Phase.
inline constexpr std::string_view kPhaseLetters = "FRBWDGOPXI";

/// Letters of Op::dims for a kind, as in op.h: "mnk", "bagsud", …
std::string_view dimension_letters(OpKind kind);

}  // namespace gputwin
