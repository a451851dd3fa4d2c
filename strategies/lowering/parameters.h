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
  QDown,
  QNormGain,
  QNormBias,
  QUp,
  KvDown,
  KvNormGain,
  KvNormBias,
  KvUp,
  Router,
  ExpertFc1,
  ExpertFc2,
  ExpertFc1Bias,
  ExpertFc2Bias,
  FinalGain,
  FinalBias,
  Head,
  QkvAdapterIn,
  QkvAdapterOut,
  ProjAdapterIn,
  ProjAdapterOut,
  Fc1AdapterIn,
  Fc1AdapterOut,
  Fc2AdapterIn,
  Fc2AdapterOut
};

constexpr bool is_adapter(Role role) { return role >= Role::QkvAdapterIn; }
/// Weights of the rank's experts, below each other: other ranks of the expert group hold others.
constexpr bool is_expert(Role role) {
  return role >= Role::ExpertFc1 && role <= Role::ExpertFc2Bias;
}
/// Weights of the layers' matrix multiplies.
constexpr bool is_linear(Role role) {
  return role == Role::Qkv || role == Role::Proj || role == Role::Fc1 || role == Role::Fc2 ||
         role == Role::QDown || role == Role::QUp || role == Role::KvDown || role == Role::KvUp ||
         role == Role::ExpertFc1 || role == Role::ExpertFc2;
}

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
  bool partial =
      false;            // every tp rank holds part of its gradient (sequence parallelism, adapters)
  bool frozen = false;  // not trained: no gradient, no states
  bool tied = false;    // the embedding of the first stage is the head of the last

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
///
/// With zero 2 and 3 a bucket is a *unit* of FSDP: one layer, or what stands before and after the
/// layers of a stage. Only shards persist, of the gradients (2) or of both (3). The whole then is
/// framed: layers take turns in two buffers, so that the gather of one and the reduction of another
/// hide under compute but never get further ahead, as FSDP's limit on gathers has it; in one buffer
/// where the layout overlaps nothing.
struct Bucket {
  DType dtype = DType::Bf16;      // of the weights
  BufferId weight{}, gradient{};  // `elements` elements
  BufferId weight_again{};        // zero 3: gathered again for backward; `weight` where it is kept
  // `shard` elements; no master where the weights kept are F32 or the job has none, no v where the
  // optimizer has one state (SGD's momentum).
  BufferId master{}, m{}, v{};
  BufferId gradient_shard{}, weight_shard{};  // with zero >= 1
  BufferId fresh{};     // 16-bit gradients of one micro-batch beside the F32 ones of the iteration;
                        // none where kernels accumulate into these
  BufferId arriving{};  // zero >= 2: a micro-batch's part of the gradient shard, before it is
                        // added; none where one micro-batch is all
  std::int64_t elements = 0;  // padded to a multiple of the shards
  std::int64_t shard = 0;
  std::int64_t partial_begin = 0, partial_elements = 0;
  std::int32_t chunk = 0;        // local chunk whose backward completes it …
  std::int32_t layer = 0;        // … with this layer
  std::int32_t first_layer = 0;  // whose backward begins it
  bool tied = false;
  // Whom gradients are summed over, and who shares the states: all data-parallel ranks, or those
  // that hold the same experts.
  SlotId replicas{}, shard_slot{};
};

/// Format of the optimizer's states: F32, that of the weights where there is no master copy.
inline DType state_dtype(const Precision& p) { return p.master ? DType::F32 : p.params; }

/// True if the word embedding lies on one stage as embedding and on another as head. (Two ways:
/// both outer stages hold both, as one tensor.)
bool ties_stages(const Transformer& model, const Layout& layout);

/// What parameters one stage has: tensors by local chunk, in the order in which backward completes
/// them.
std::vector<std::vector<TensorSpec>> stage_tensors(const Transformer& model, const Layout& layout,
                                                   const Sizes& sizes, std::int32_t stage);

/// Buffers of one stage's parameters, and where each tensor lies.
class StageParameters {
 public:
  /// How gradients are gathered up. `overlap`: reduced under the backward pass, by buckets; else
  /// zero 0 and 1 have a single bucket per stage. `accumulate`: over several micro-batches.
  struct Reducing {
    SlotId tp{}, dp{}, shard{};
    SlotId ep{}, expert_dp{};  // the expert group, and the ranks that hold the same experts
    std::int32_t expert_replicas = 1;
    bool overlap = true, accumulate = true;
    bool apart = false;  // 16-bit gradients of a micro-batch are kept beside F32 ones
  };
  StageParameters(PlanBuilder& builder, std::int32_t stage, const Layout& layout, const Job& job,
                  const std::vector<std::vector<TensorSpec>>& tensors, const Reducing& reducing);

  bool has(Role role, std::int32_t layer) const { return weights_.contains({role, layer}); }
  const Weight& at(Role role, std::int32_t layer, Phase phase) const {
    const Passes& w = weights_.at({role, layer});
    return phase == Phase::Backward ? w.backward : w.forward;
  }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  std::vector<Parameter> take_parameters() { return std::move(parameters_); }
  /// ZeRO level in force: 0 where there is nothing to shard over.
  std::int32_t level() const { return layout_.shards() > 1 ? layout_.zero : 0; }

 private:
  struct Passes {
    Weight forward, backward;
  };

  void by_size(const std::vector<std::vector<TensorSpec>>& tensors);
  std::int64_t offload_bucket(const std::vector<std::vector<TensorSpec>>& tensors) const;
  void by_unit(const std::vector<std::vector<TensorSpec>>& tensors);
  void close(std::vector<TensorSpec>& open, std::int32_t chunk);
  void hold(const std::vector<TensorSpec>& frozen);
  DType dtype_of(const TensorSpec& tensor) const;
  void place(const TensorSpec& tensor, const Bucket& bucket, std::int64_t offset);
  void make_buffers(Bucket& bucket);
  void make_whole(Bucket& bucket);
  BufferId persistent(const char* what, std::int64_t elements, DType dtype, MemoryClass memory);
  BufferId passing(const char* what, std::int64_t elements, DType dtype, MemoryClass memory,
                   bool framed);
  BufferId turn(const char* what, const Bucket& bucket, bool alternate, DType dtype,
                MemoryClass memory);

  PlanBuilder& builder_;
  std::string prefix_;
  const Layout& layout_;
  Precision precision_;
  Optimizer optimizer_;
  std::int64_t bucket_elements_;
  std::int32_t shards_of(bool expert) const;

  Reducing reducing_;
  std::vector<Bucket> buckets_;
  std::vector<Parameter> parameters_;
  std::map<std::pair<Role, std::int32_t>, Passes> weights_;
  std::map<std::string, BufferId> turns_;  // framed buffers of layers, by name
};

}  // namespace gputwin
