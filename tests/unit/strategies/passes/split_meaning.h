// What passes must leave as it is: loss and gradients of a job on one GPU.
#pragma once

#include <algorithm>
#include <cmath>

#include "sim/core/plan_builder.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin {

/// Shards of ZeRO 1 are kept, to be read at the end.
inline Plan readable(Plan plan) {
  for (Buffer& b : plan.buffers) {
    if (b.name.find("_shard") != std::string::npos) b.persistent = true;
  }
  for (Program& p : plan.programs) place_memory(plan, p);
  return plan;
}

inline Results meaning(const Transformer& model, const Layout& layout, const Job& job,
                       std::uint64_t seed) {
  InterpretOptions options;
  options.generic_constants = true;
  options.seed = seed;
  return interpret(readable(plan_of(model, layout, job)), options);
}

inline double worst_difference(const Results& a, const Results& b) {
  double worst = std::abs(a.loss - b.loss);
  for (const auto& [name, tensor] : a.gradients) {
    const auto& other = b.gradients.at(name).values;
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      worst = std::max(worst, std::abs(tensor.values[i] - other[i]));
    }
  }
  return worst;
}

/// The four samples of a micro-batch on one GPU.
inline Layout on_one_gpu() {
  Layout one;
  one.schedule = Schedule::None;
  one.micro_batch = 4;
  return one;
}

}  // namespace gputwin
