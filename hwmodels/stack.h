// A family of training software: a few factors on kernel and communication times, and what its host
// side costs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hwmodels/constants_file.h"
#include "sim/core/cost.h"

namespace gputwin {

/// Factors on times; 1 leaves a model as it is. They were fitted together: read a stack as one set.
struct Stack {
  std::string name;
  double gemm_time = 1.0;
  double attention_time = 1.0;
  double memory_bound_time = 1.0;
  // Members within one node or NVLink domain: tensor parallelism.
  double collective_in_node_time = 1.0;
  double collective_across_nodes_time = 1.0;  // others: data parallelism
  bool nvls = false;                          // lets NCCL reduce inside the NVLink switch
  HostCost host{};
  std::vector<Constant> constants;
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
