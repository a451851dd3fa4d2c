// Parameters of one pipeline stage and the bucket buffers they lie in.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/core/plan_builder.h"
#include "sim/core/segment.h"
#include "strategies/lowering/sizes.h"

namespace gputwin {

enum class Role : std::uint8_t {
  WordEmbedding,
  PositionEmbedding,
  Norm1Gain,
  Norm1Bias,
  Qkv,
  QkvBias,
  Proj,
  ProjBias,
  Norm2Gain,
  Norm2Bias,
  Fc1,
  Fc1Bias,
  Fc2,
  Fc2Bias,
  FinalGain,
  FinalBias,
  Head
};

/// Layer numbers of Name for what lies before and after the layers.
inline constexpr std::int32_t kEmbeddingLayer = -1;
inline constexpr std::int32_t kHeadLayer = -2;

/// A tensor as kernels see it. The fused projection of queries, keys and values is one tensor of
/// three parameters lying one after the other: local rows are [q; k; v].
struct TensorSpec {
  struct Part {
    std::string name;
    std::int64_t rows = 0;
  };
  Role role{};
  std::int32_t layer = 0;
  std::vector<Part> parts{};
  std::int64_t cols = 1;  // vectors are columns
  Axis axis = Axis::None;
  std::int32_t blocks = 1;
  bool ones = false, zeros = false;
  bool partial = false;  // every tp rank holds part of its gradient (sequence parallelism)
  bool tied = false;     // the embedding of the first stage is the head of the last

  std::int64_t rows() const;
  std::int64_t elements() const { return rows() * cols; }
};

/// A kernel's view of a tensor; `gradient` is what weight-gradient kernels accumulate into.
struct Weight {
  View value, gradient;
};

/// Parameters that are reduced together: one weight and one gradient buffer, and the optimizer's
/// states. Layout: tensors in order of completion; those with `partial` gradients last, side by
/// side.
struct Bucket {
  BufferId weight{}, gradient{};
  BufferId master{}, m{}, v{};  // `shard` elements; no master where the weights are F32 and whole
  BufferId gradient_shard{}, weight_shard{};  // with zero 1 only
  std::int64_t elements = 0;                  // padded to a multiple of the shards
  std::int64_t shard = 0;
  std::int64_t partial_begin = 0, partial_elements = 0;
  std::int32_t chunk = 0;  // local chunk whose backward completes it …
  std::int32_t layer = 0;  // … with this layer
  bool tied = false;
};

/// What parameters one stage has: tensors by local chunk, in the order in which backward completes
/// them.
std::vector<std::vector<TensorSpec>> stage_tensors(const Transformer& model, const Layout& layout,
                                                   const Sizes& sizes, std::int32_t stage);

/// Buffers of one stage's parameters, and where each tensor lies.
class StageParameters {
 public:
  /// `one_bucket`: a single bucket per stage, for stacks that reduce all gradients at once.
  StageParameters(PlanBuilder& builder, std::int32_t stage, const Layout& layout,
                  const Precision& precision, const std::vector<std::vector<TensorSpec>>& tensors,
                  SlotId tp, bool one_bucket);

  bool has(Role role, std::int32_t layer) const { return weights_.contains({role, layer}); }
  const Weight& at(Role role, std::int32_t layer) const { return weights_.at({role, layer}); }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::vector<Parameter> take_parameters() { return std::move(parameters_); }

 private:
  void close(std::vector<TensorSpec>& open, std::int32_t chunk);
  void place(const TensorSpec& tensor, const Bucket& bucket, std::int64_t offset);
  void make_buffers(Bucket& bucket);

  PlanBuilder& builder_;
  std::string prefix_;
  const Layout& layout_;
  Precision precision_;
  SlotId tp_;
  std::vector<Bucket> buckets_;
  std::vector<Parameter> parameters_;
  std::map<std::pair<Role, std::int32_t>, Weight> weights_;
};

}  // namespace gputwin
