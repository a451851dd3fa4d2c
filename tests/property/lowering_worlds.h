// Random tiny training jobs: a model, a job and a layout each, of which tests ask that all train
// the same model.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/workload.h"
#include "tests/support/interpreter.h"

namespace gputwin {

/// Draws that depend on the number of a world alone.
class Draw {
 public:
  explicit Draw(std::uint64_t world) : world_(world) {}
  template <class T>
  T of(std::initializer_list<T> choices) {
    const double u = (seeded_value(world_ + 1, next_++) + 1.0) / 2.0;
    return *(choices.begin() +
             static_cast<std::ptrdiff_t>(u * static_cast<double>(choices.size())));
  }

 private:
  std::uint64_t world_;
  std::int64_t next_ = 0;
};

struct World {
  Transformer model;
  Job job;
  Layout layout;
};

Transformer drawn_model(Draw& draw, std::int64_t sequence);
std::string label(const World& w);

/// Every combination of degrees, schedule and attention kernel; the rest is drawn.
std::vector<World> worlds(Recompute recompute, bool flash);

/// Context parallelism of every kind with every other dimension; the rest is drawn.
std::vector<World> context_worlds(ContextComm comm, bool flash);

/// What ZeRO 2 and 3 are combined with: pipelines, tensor parallelism, hybrid sharding, one or
/// several micro-batches; the rest is drawn.
std::vector<World> sharded_worlds(Recompute recompute, bool flash);

/// A schedule with odd and even numbers of stages and few or many micro-batches; the rest is drawn.
std::vector<World> schedule_worlds(Schedule schedule, std::int32_t vpp);

/// What the layers' products read and what is trained, with every other dimension; the rest is
/// drawn.
struct LinearMode {
  const char* name;
  Precision precision{};
  bool adapters = false;
};

std::vector<World> linear_worlds(const LinearMode& mode);

}  // namespace gputwin
