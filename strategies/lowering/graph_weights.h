// Trained parameters of one pipeline stage of a layer graph, in the buckets they are reduced in.
#pragma once

#include <string>
#include <vector>

#include "sim/core/job.h"
#include "sim/core/plan_builder.h"
#include "sim/core/workload.h"

namespace gputwin {

/// What kernels of one layer read and accumulate into: a matrix and, behind it, vectors.
struct GraphWeight {
  View value, gradient;          // convolution filters, matrix, gain of a norm, table
  View second, second_gradient;  // bias
  bool present() const { return value.buffer.valid(); }
};

/// Parameters that are reduced and updated together.
struct GraphBucket {
  BufferId weight{}, gradient{};
  BufferId computed{};  // copy in the compute format, where that differs from the weights'
  BufferId master{}, m{}, v{};
  std::int64_t elements = 0;
  std::int32_t layer = 0;  // whose backward completes it
};

/// Buffers of the layers [first, last), buckets in the order in which backward completes them.
class GraphWeights {
 public:
  /// Buckets are padded to a multiple of `padded` elements.
  GraphWeights(PlanBuilder& builder, const LayerGraph& graph, const Job& job,
               std::int64_t bucket_elements, std::int64_t padded, std::int32_t first,
               std::int32_t last, const std::string& prefix);

  const GraphWeight& of(std::int32_t layer) const {
    return weights_[static_cast<std::size_t>(layer - first_)];
  }
  const std::vector<GraphBucket>& buckets() const { return buckets_; }
  std::vector<Parameter> take_parameters() { return std::move(parameters_); }

 private:
  struct Part {
    std::string name;
    std::int64_t rows = 0, cols = 0;
    bool ones = false, zeros = false;
  };
  void close(PlanBuilder& builder, const LayerGraph& graph, const Job& job,
             std::vector<std::int32_t>& open, const std::string& prefix);
  static std::vector<Part> parts_of(const LayerGraph& graph, const GraphLayer& layer);

  std::int32_t first_;
  std::int64_t padded_;
  std::vector<GraphWeight> weights_;
  std::vector<GraphBucket> buckets_;
  std::vector<Parameter> parameters_;
};

/// Format of stored activations: that of the products, 16 bits below, fp32 for TF32.
DType graph_activation(const Job& job);

/// A contiguous row of `elements` of a buffer.
View flat_view(BufferId buffer, std::int64_t offset, std::int64_t elements, DType dtype);

}  // namespace gputwin
