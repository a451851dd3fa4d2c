// A family of training software: a few factors on kernel and communication times, and what its host
// side costs.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hwmodels/constants_file.h"
#include "sim/core/cost.h"

namespace gputwin {

/// What a factor multiplies: kernel times by class, collectives whose members share a node or
/// NVLink domain (tensor parallelism) or do not (data parallelism), and the host's launch costs.
enum class Factor : std::uint8_t {
  Gemm,
  Attention,
  MemoryBound,
  CollectiveInNode,
  CollectiveAcrossNodes,
  Host
};
inline constexpr std::size_t kFactors = 6;

/// Keys of the factors in stack files, by Factor: "gemm_time", "attention_time", …
std::span<const std::string_view> factor_keys();

/// One value per Factor; 1 leaves a model as it is.
using StackFactors = std::array<double, kFactors>;
inline constexpr StackFactors kNoFactors{1, 1, 1, 1, 1, 1};

/// The factors of a stack were fitted together: read them as one set.
struct Stack {
  std::string name;
  StackFactors factors = kNoFactors;
  bool nvls = false;  // lets NCCL reduce inside the NVLink switch
  HostCost host{};
  std::vector<Constant> constants;

  double factor(Factor f) const { return factors[static_cast<std::size_t>(f)]; }
};

/// Reads `path`. Throws InputError as ConstantsFile does.
Stack load_stack(const std::filesystem::path& path);

struct StackChoice {
  Stack stack;
  std::string note;  // empty if the job's stack is known
};

/// The stack `wanted` of `directory` (hwmodels/stacks). An unknown one becomes the nearest of its
/// family - the names that share the text before the last "-" - or "default", and the note says so.
StackChoice choose_stack(const std::filesystem::path& directory, const std::string& wanted);

}  // namespace gputwin
