// A family of training software: a few factors on kernel and communication times, and what its host
// side costs.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hwmodels/constants_file.h"
#include "hwmodels/device.h"
#include "hwmodels/memory/caching_allocator.h"
#include "sim/core/cost.h"

namespace gputwin {

/// What a factor multiplies: kernel times by class, collectives whose members share a node or
/// NVLink domain (tensor parallelism) or do not (data parallelism), the host's launch costs, and of
/// collectives within a node the fixed time before their first step, which is NCCL's base latency
/// of a ring.
enum class Factor : std::uint8_t {
  Gemm,
  Attention,
  MemoryBound,
  CollectiveInNode,
  CollectiveAcrossNodes,
  Host,
  CollectiveStart
};
inline constexpr std::size_t kFactors = 7;

/// Keys of the factors in stack files, by Factor: "gemm_time", "attention_time", …
std::span<const std::string_view> factor_keys();

/// One value per Factor; 1 leaves a model as it is.
using StackFactors = std::array<double, kFactors>;
inline constexpr StackFactors kNoFactors{1, 1, 1, 1, 1, 1, 1};

/// The factors of a stack were fitted together: read them as one set.
///
/// `factors` hold on every architecture but those of `factors_on`, which replace them there: the
/// same software may be early on one device and mature on another.
struct Stack {
  std::string name;
  StackFactors factors = kNoFactors;
  std::map<Architecture, StackFactors> factors_on;
  bool nvls = false;         // lets NCCL reduce inside the NVLink switch
  bool benchmark = false;    // nccl-tests itself: curves it measured go before equations
  CollectiveCurves network;  // measured with this software on one network; mostly none
  HostCost host{};
  AllocatorOptions allocator{};        // as its launch scripts set it
  double reserved_over_allocated = 0;  // of an allocator that is not PyTorch's; 0: it is
  Bytes device_extra{};                // held beside allocator, context and communicators
  /// In the file "default" alone, else 0: share of its time by which a run on a stack without
  /// constants of its own may be off, at 80 %.
  double unknown_deviation = 0;
  std::vector<Constant> constants;

  double factor(Factor f) const { return factors[static_cast<std::size_t>(f)]; }
  /// This stack on devices of `architecture`: its factors there are `factors`, none replace them.
  Stack on(Architecture architecture) const;
};

/// Reads `path`. Throws InputError as ConstantsFile does.
Stack load_stack(const std::filesystem::path& path);

/// The family of the stack `wanted` among `names`: the longest name that `wanted` starts with and
/// after which it ends or goes on with '-' or '.'; empty if there is none.
std::string stack_family(const std::vector<std::string>& names, const std::string& wanted);

/// What stands in for the family of `wanted` if there is none: the nearest name that shares the
/// text before its last '-', or before an earlier one but the first; else "default".
std::string nearest_stack_family(const std::vector<std::string>& names, const std::string& wanted);

struct StackChoice {
  Stack stack;
  std::string note;      // empty if the job's stack is known
  double deviation = 0;  // share of a run's time, at 80 %: 0 if the job's stack is known
};

/// The stack of the job's `wanted` in `directory` (hwmodels/stacks): its family, or what stands in
/// for it, and then the note says so.
StackChoice choose_stack(const std::filesystem::path& directory, const std::string& wanted);

}  // namespace gputwin
