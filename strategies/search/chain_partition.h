// Cuts a chain of layers into pipeline stages and puts them on devices: the dynamic programme.
//
// The problem knows nothing of Transformers or clusters beyond what stands here, so that any chain
// of layers with costs can be asked about, and small problems can be enumerated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gputwin {

/// Devices of one kind: `nodes` nodes of `per_node` devices each. Stages take them in order, node
/// after node.
struct ChainDevices {
  std::string name;
  std::int32_t nodes = 0, per_node = 0;
  double memory = 0;  // bytes of one device; 0: unbounded
  double inside = 0;  // bytes/s between two devices of a node, each direction
};

/// A way to run a stage: on `devices` devices, among them `replicas` that each hold the stage's
/// weights and take an equal part of every micro-batch (devices / replicas: tensor parallelism).
struct ChainOption {
  std::int32_t devices = 1, replicas = 1;
};

/// One layer with one option on one kind of device, for one micro-batch of the whole stage.
struct ChainCost {
  double forward = 0, backward = 0;  // seconds
};

/// What one layer needs with one option, on one device.
struct ChainMemory {
  double state = 0;     // bytes: weights, gradients, optimizer
  double kept = 0;      // bytes: activations kept of one micro-batch
  double gradient = 0;  // bytes that the replicas reduce at the end of an iteration
};

/// A synchronous pipeline over `micro_batches` micro-batches.
///
/// Stage s of a plan has times F_s, B_s, the sums of its layers on the slowest of its devices. A
/// cut costs c = 2 latency + 2 output / (links x rate): forward and backward message, over as many
/// links as the stages have replicas in common (the smaller number); `inside` where both stages lie
/// in one node, else `between`. The replicas d of a stage reduce its gradients in
/// A_s = 2 (d - 1) latency + 2 (d - 1) / d x gradient / rate.
///
///   time = sum_s (F_s + B_s) + sum_cuts c + (M - 1) max(F_s + B_s, c) + exposed
///   exposed = max(0, max_s (A_s - sum_{s' < s} B_s'))        reductions hide in the drain
///   memory of stage s: sum state + in flight x sum kept, on each of its devices; in flight is
///   min(M, stages from s to the last, both counted), or M if `all_in_flight`
///
/// Source  DAPPLE's objective; Alpa's enumeration of the slowest stage (research: reconstruction,
/// as EffTra's own recurrence is not public).
struct ChainProblem {
  std::vector<ChainDevices> devices;
  std::vector<ChainOption> options;
  std::vector<std::vector<std::vector<ChainCost>>> costs;  // [layer][option][kind of devices]
  std::vector<std::vector<ChainMemory>> memory;            // [layer][option]
  std::vector<double> output;  // [layer] bytes of one micro-batch behind the layer
  double between = 0;          // bytes/s between devices of different nodes, each direction
  double latency = 0;          // seconds of one message
  std::int32_t micro_batches = 1;
  bool all_in_flight = false;    // GPipe
  std::int32_t most_stages = 0;  // 0: as many as there are layers
  bool use_all = false;          // only plans that use every device

  std::int32_t layers() const { return static_cast<std::int32_t>(costs.size()); }
};

/// Layers [first, last) on take[k] devices of each kind k. With `fresh` they start on a new node of
/// each kind and what was left of the old one stays idle; else they go on where the stage placed
/// before, a later one of the pipeline, ended.
struct ChainStage {
  std::int32_t first = 0, last = 0;
  std::int32_t option = 0;
  std::vector<std::int32_t> take;
  bool fresh = false;
  bool operator==(const ChainStage&) const = default;
};

struct ChainPlan {
  std::vector<ChainStage>
      stages;          // in the order of the pipeline; devices are counted from the last
  double time = 0;     // seconds of one iteration
  double period = 0;   // slowest stage or cut
  double exposed = 0;  // of the reductions
};

struct ChainSearch {
  /// Values of the slowest stage closer together than this share are tried once: the plan is at
  /// most this share slower than the best. 0: exact.
  double tolerance = 0;
};

/// The fastest plan that fits, or none. Stages are placed from the last one backward, because that
/// tells how many micro-batches are in flight. States are (stages, layers left, devices used by
/// kind, option and kind of the stage behind the cut); of each the Pareto front of (sum of times,
/// exposed reduction) is kept; the slowest stage is enumerated in ascending order.
std::optional<ChainPlan> partition(const ChainProblem& problem, const ChainSearch& how = {});

}  // namespace gputwin
