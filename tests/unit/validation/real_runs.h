// What tests of both real executors run: jobs in F32, layouts, values, and what they are held to.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "sim/core/event_sink.h"
#include "tests/support/interpreter.h"
#include "tests/unit/strategies/worlds.h"

namespace gputwin::executors {

inline constexpr int kBodies = 2;

// F32 has 24 bits: sums of some hundred terms agree to about 1e-6 of a loss near 3; two steps of
// Adam carry that on. Limit: 2e-5, and the step itself moves the loss by far more.
inline constexpr double kSingle = 2e-5;

Job single_job(std::int64_t batch, AttentionKernel attention = AttentionKernel::Unfused);
Layout one_rank();
InterpretOptions same_values();

/// Loss of the last of kBodies bodies by the interpreter, so that the optimizer's step counts.
double true_loss(const Plan& plan);

struct Case {
  const char* name;
  Layout layout;
};
/// Tensor, pipeline and data parallelism, with what changes their plans.
std::vector<Case> layouts();

/// Counts tasks, and fails where those of a stream overlap.
struct StreamOrder final : EventSink {
  void op(const OpEvent& e) override;
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return go_on; }
  std::map<std::pair<std::uint32_t, std::uint8_t>, Ps> ends;
  std::int64_t count = 0;
  bool go_on = true;
};

}  // namespace gputwin::executors
