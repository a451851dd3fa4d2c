// The meaning of a plan: runs any small Plan, all ranks, on real numbers with the semantics of CUDA
// and NCCL.
//
// One host per rank issues in order; streams run in order; Record and Wait order streams;
// collectives match by communicator and sequence, Send and Recv by ordered pair. Every number is a
// double whatever its DType, so two legal plans of one model agree to rounding. The machine is
// adversarial: at each step a seeded random choice picks the host or the stream head that moves,
// with weights that starve some streams for a while, so a missing synchronisation shows as a wrong
// number or as a Fault under some seed. If no Wait crosses the border of the body, a body starts
// when the one before has ended on all ranks.
//
// Memory. Alloc gives memory full of NaN; reading a NaN is a Fault. Free ends the name at host
// issue: a task issued later that uses the buffer is a Fault. The memory itself is given back, that
// is filled with NaN, when the last task that was issued before the Free and uses it has finished
// (in stream order, as record_stream in PyTorch). The next stay of the same (buffer, frame) lies in
// the same memory: a task of the next stay that nothing orders after the tasks of the stay before
// is caught by that NaN.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

/// A plan that no machine could run as meant: use after free, read of uninitialised memory,
/// collectives that do not match, deadlock, replicas that disagree, shapes that do not fit.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Adds `delta` to element (row, column) of the initial value of a global parameter.
struct Nudge {
  std::string parameter;
  std::int64_t row = 0, column = 0;
  double delta = 0.0;
};

struct InterpretOptions {
  int bodies = 1;
  std::uint64_t seed = 0;       // of the order of events, never of the values
  double learning_rate = 1e-3;  // Adam; betas 0.9 and 0.95, bias-corrected, step = body + 1
  double adam_epsilon = 1e-8;   // large values make the clip factor visible in the first step
  double clip_norm = 1.0;       // gradients are scaled by min(1, clip_norm / norm)
  bool generic_constants =
      false;  // norm gains and biases start near, not at, 1 and 0: hides no mistake
  /// False: Results::gradients stays empty. For plans that reduce gradients where no Parameter
  /// lies.
  bool gradients = true;
  std::vector<Nudge> nudges{};
};

/// A whole parameter, gradient or updated weight, in the shape of the unsharded model.
struct Tensor {
  std::int64_t rows = 0, cols = 0;
  std::vector<double> values;  // row by row

  double at(std::int64_t row, std::int64_t column) const { return values[row * cols + column]; }
};

struct Results {
  double loss = 0.0;  // summed over data-parallel ranks; of the last body if the plan zeroes it
  /// By parameter name. Copies that several ranks hold must agree to 1e-9, else Fault. A bucket
  /// element that a ReduceScatter of the body reads is taken on the member that owns it, from the
  /// place the call writes (its shard of the bucket or a shard buffer); an element of a weight that
  /// an AllGather of the body writes is taken on its owner, from the place the call reads.
  std::map<std::string, Tensor> gradients, weights;
  /// Final contents of persistent buffers by (rank, buffer, frame; 0 if not framed), in the
  /// buffer's dtype.
  std::map<std::tuple<std::uint32_t, std::string, std::uint32_t>, std::vector<double>> buffers;

  const std::vector<double>& buffer(std::uint32_t rank, const std::string& name,
                                    std::uint32_t frame = 0) const {
    return buffers.at({rank, name, frame});
  }
};

/// Runs the prologue and `bodies` bodies. Throws Fault.
Results interpret(const Plan& plan, const InterpretOptions& options);
Results interpret(const Plan& plan, int bodies = 1, std::uint64_t seed = 0);

/// Initial value of element (row, column) of a global parameter with `cols` columns: uniform in
/// +-1/sqrt(cols) from a hash of (name, row, column); 1 and 0 where the parameter says so.
double initial_value(const Parameter& parameter, std::int64_t row, std::int64_t column,
                     std::int64_t cols, const InterpretOptions& options);
/// Initial value of element `index` of a persistent buffer with a seed: uniform in [-1, 1).
double seeded_value(std::uint64_t seed, std::int64_t index);
/// Token `position` of a global sample.
std::int64_t token(std::int64_t sample, std::int64_t position, std::int64_t vocab);

}  // namespace gputwin
