// Times of a stage of a chain by first unit, last unit, first device and replicas, in seconds.
#pragma once

#include <algorithm>
#include <vector>

#include "strategies/layouts/synchronous.h"

namespace gputwin {

class StageTimes {
 public:
  explicit StageTimes(const PipelineWorld& world) : w_(world) {
    time_.push_back(0), step_.push_back(0), backward_.push_back(0), weights_.push_back(0);
    for (const LayerCost& u : world.units) {
      time_.push_back(time_.back() + u.forward.value + u.backward.value);
      step_.push_back(step_.back() + u.step.value);
      backward_.push_back(backward_.back() + u.backward.value);
      weights_.push_back(weights_.back() + static_cast<double>(u.weights.value));
    }
  }
  std::int32_t units() const { return static_cast<std::int32_t>(w_.units.size()); }

  /// Of a micro-batch on one device.
  double compute(std::int32_t first, std::int32_t last) const {
    return time_[at(last)] - time_[at(first)];
  }
  double backward(std::int32_t first, std::int32_t last) const {
    return backward_[at(last)] - backward_[at(first)];
  }
  /// Of the optimizer, once.
  double step(std::int32_t first, std::int32_t last) const {
    return step_[at(last)] - step_[at(first)];
  }
  /// What enters a stage of `r` replicas, one way.
  double message(std::int32_t first, std::int32_t offset, std::int32_t r) const {
    if (first == 0) return 0;
    const auto in = static_cast<double>(w_.units[at(first) - 1].output.value);
    // What enters comes over the adapter of one node, unless both stages lie within it.
    const bool crosses = w_.devices_per_node == 1 || offset % w_.devices_per_node == 0 ||
                         offset / w_.devices_per_node != (offset + r - 1) / w_.devices_per_node;
    return in / ((crosses ? w_.between.value : w_.in_node.value) * (crosses ? 1 : r));
  }
  double stage(std::int32_t first, std::int32_t last, std::int32_t offset, std::int32_t r) const {
    return compute(first, last) / r + 2 * message(first, offset, r);
  }
  /// What leaves a stage that ends before unit `last`, one way: within a node only if the stage and
  /// the first device behind it lie in one; else through one adapter.
  double leaves(std::int32_t last, std::int32_t offset, std::int32_t r) const {
    if (last == units()) return 0;
    const auto out = static_cast<double>(w_.units[at(last) - 1].output.value);
    const bool inside = offset / w_.devices_per_node == (offset + r) / w_.devices_per_node;
    return out / (inside ? w_.in_node.value : w_.between.value);
  }
  double all_reduce(std::int32_t first, std::int32_t last, std::int32_t offset,
                    std::int32_t r) const {
    return (weights_[at(last)] - weights_[at(first)]) * reduce_rate(offset, r);
  }
  /// What of the same is left after the backward pass, in which a bucket is reduced once its last
  /// gradient is there.
  double exposed(std::int32_t first, std::int32_t last, std::int32_t offset, std::int32_t r) const {
    if (r == 1) return 0;
    const double rate = reduce_rate(offset, r);
    double reduced = 0;
    for (std::int32_t open = last, u = last - 1; u >= first; --u) {
      const double bytes = weights_[at(open)] - weights_[at(u)];
      if (bytes < static_cast<double>(w_.bucket.value) && u > first) continue;
      reduced = std::max(reduced, backward(u, last)) + bytes * rate;
      open = u;
    }
    return reduced - backward(first, last);
  }

 private:
  // Seconds a byte of gradients takes, in a ring.
  double reduce_rate(std::int32_t offset, std::int32_t r) const {
    const bool inside = offset / w_.devices_per_node == (offset + r - 1) / w_.devices_per_node;
    const double link = inside && w_.devices_per_node > 1 ? w_.in_node.value : w_.between.value;
    return 2.0 * (r - 1) / r / link;
  }
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  const PipelineWorld& w_;
  std::vector<double> time_, backward_, step_, weights_;  // of the units before
};

}  // namespace gputwin
