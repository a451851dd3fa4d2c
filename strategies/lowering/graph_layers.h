// Kernels of the layers of one stage of a layer graph, for one micro-batch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/core/segment.h"
#include "strategies/lowering/graph_weights.h"

namespace gputwin {

/// Makes the operations of the layers [first, last) on the compute stream (0).
///
/// Views. A tensor of n samples is [n, channels x height x width], or [n x steps, features] where
/// its width is 1. Values of earlier stages are framed buffers that messages fill.
/// In place are, as in torchvision: activations and sums whose first input nobody else reads and
/// whose producer's backward does not need it.
class GraphLayers {
 public:
  GraphLayers(PlanBuilder& plan, const LayerGraph& graph, const Job& job,
              const GraphWeights& weights, std::int32_t first, std::int32_t last,
              std::int64_t samples, const std::string& prefix);

  /// The samples themselves, targets and loss, where this stage reads them; set before forward().
  View input, targets, loss;

  /// Layers before `first` whose values this stage reads or hands on, ascending.
  const std::vector<std::int32_t>& received() const { return received_; }
  /// Layers before `last` whose values later stages read, ascending.
  const std::vector<std::int32_t>& sent() const { return sent_; }
  const View& value(std::int32_t layer) const { return values_.at(layer); }
  /// Gradient that arrives for a value of sent().
  const View& arriving(std::int32_t layer) const { return arriving_.at(layer); }
  /// Gradient that leaves for a value of received(); after backward().
  View leaving(std::int32_t layer) const;

  std::vector<SegmentOp> forward();
  /// `after`: called after the operations of each layer, last layer first.
  template <class After>
  std::vector<SegmentOp> backward(After after) {
    ops_.clear();
    start_backward();
    for (std::int32_t l = last_; l-- > first_;) {
      backward_layer(l);
      after(l, ops_);
    }
    return std::move(ops_);
  }
  /// `ops` of forward() again, for checkpointing, and `backward` reading their results: layers are
  /// repeated but for the loss.
  std::vector<SegmentOp> repeat(const std::vector<SegmentOp>& forward,
                                std::vector<SegmentOp>& backward);

 private:
  using Views = std::vector<View>;

  const GraphLayer& layer(std::int32_t l) const {
    return graph_.layers[static_cast<std::size_t>(l)];
  }
  std::int64_t rows(const Extent& e) const { return e.width == 1 ? samples_ * e.height : samples_; }
  std::int64_t cols(const Extent& e) const { return samples_ * e.elements() / rows(e); }
  View framed(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype,
              MemoryClass memory);
  View kept(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype);
  View kept(const std::string& name, const Extent& e);
  View passing(const std::string& name, std::int64_t rows, std::int64_t cols);
  View gradient(const std::string& name, const Extent& e);
  void kernel(Phase phase, const char* suffix, Op op, Views reads, Views writes);
  View in(std::int32_t which = 0) const;
  Extent in_extent(std::int32_t which) const;
  bool trains_input() const { return !layer(now_).inputs.empty(); }
  View fresh_or_in_place();
  void give(std::int32_t which, const View& gradient);
  void add_gradient(std::int32_t to, const View& gradient);
  Op convolution(OpKind kind) const;
  View as_matrix(View view, std::int64_t width) const;

  void forward_layer(std::int32_t l);
  void forward_norm();
  void forward_dropout();
  void forward_recurrent();
  void forward_stated();
  void forward_sum();
  void forward_concat();
  void forward_attention();
  void forward_loss();
  void start_backward();
  void backward_layer(std::int32_t l);
  void backward_convolution(const View& dy);
  void backward_linear(const View& dy);
  void backward_norm(const View& dy);
  void backward_concat(const View& dy);
  void backward_recurrent(const View& dy);
  void backward_attention(const View& dy);
  void backward_stated(const View& dy);
  void backward_loss();

  PlanBuilder& plan_;
  const LayerGraph& graph_;
  const Job& job_;
  const GraphWeights& weights_;
  std::int32_t first_, last_;
  std::int64_t samples_;
  std::string prefix_;
  DType dtype_;  // of activations
  std::vector<std::vector<std::int32_t>> consumers_;
  std::vector<std::int32_t> received_, sent_;
  std::map<std::int32_t, View> values_, arriving_, gradients_;
  std::map<std::pair<std::int32_t, std::string>, View> saved_;  // by layer, for backward
  std::vector<SegmentOp> ops_;
  std::int32_t now_ = 0;  // layer being lowered
  std::map<NameId, std::int32_t> repeated_;
};

}  // namespace gputwin
