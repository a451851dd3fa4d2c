#include "strategies/lowering/parameters.h"

#include <algorithm>
#include <limits>

#include "strategies/lowering/stack_kernels.h"
#include "strategies/offload/bucketing.h"

namespace gputwin {
namespace {

// Builds the tensors of one stage in the order in which a backward pass completes their gradients.
class TensorLister {
 public:
  TensorLister(const Transformer& model, const Layout& layout, const Sizes& sizes)
      : m_(model), layout_(layout), s_(sizes), norm_bias_(model.norm == Norm::LayerNorm) {}

  void head(bool own_copy) {
    if (own_copy) {
      const std::string name = m_.tied_embeddings ? "embedding.word" : "head";
      matrix(Role::Head, kHeadLayer, name, s_.vocab, m_.hidden, Axis::Rows);
      out_.back().tied = m_.tied_embeddings;
    }
    norm(Role::FinalGain, Role::FinalBias, kHeadLayer, "final_norm");
  }

  void layer(std::int32_t index) {
    const std::string l = "layer" + std::to_string(index) + ".";
    if (m_.has_experts(index)) experts(index, l);
    if (m_.ffn_of(index) > 0) mlp(index, l);
    norm(Role::Norm2Gain, Role::Norm2Bias, index, l + "norm2");
    matrix(Role::Proj, index, l + "proj", m_.hidden, s_.context_width, Axis::Cols);
    if (adapters_everywhere()) row_adapter(Role::ProjAdapterIn, Role::ProjAdapterOut, l + "proj");
    row_parallel_bias(Role::ProjBias, index, l + "proj");
    if (m_.has_mla()) {
      latent_attention(index, l);
    } else {
      qkv(index, l);
    }
    norm(Role::Norm1Gain, Role::Norm1Bias, index, l + "norm1");
  }

  void mlp(std::int32_t index, const std::string& l) {
    const std::int64_t ffn = m_.ffn_of(index) / layout_.tp;
    matrix(Role::Fc2, index, l + "fc2", m_.hidden, ffn, Axis::Cols);
    if (adapters_everywhere()) row_adapter(Role::Fc2AdapterIn, Role::Fc2AdapterOut, l + "fc2");
    row_parallel_bias(Role::Fc2Bias, index, l + "fc2");
    const std::int32_t blocks = is_gated(m_.activation) ? 2 : 1;
    matrix(Role::Fc1, index, l + "fc1", blocks * ffn, m_.hidden, Axis::Rows);
    out_.back().blocks = blocks;
    if (adapters_everywhere()) column_adapter(Role::Fc1AdapterIn, Role::Fc1AdapterOut, l + "fc1");
    if (m_.bias) {
      vector(Role::Fc1Bias, index, l + "fc1.bias", blocks * ffn, Axis::Rows);
      out_.back().blocks = blocks;
    }
  }

  // The router sees the rank's own tokens.
  void experts(std::int32_t index, const std::string& l) {
    const std::int64_t n = s_.local_experts, gates = is_gated(m_.activation) ? 2 : 1;
    const std::int64_t inner = n * gates * m_.moe.ffn;
    if (m_.moe.bias) {
      vector(Role::ExpertFc2Bias, index, l + "experts.fc2.bias", n * m_.hidden, Axis::Rows);
    }
    matrix(Role::ExpertFc2, index, l + "experts.fc2", n * m_.hidden, m_.moe.ffn, Axis::Rows);
    if (m_.moe.bias) vector(Role::ExpertFc1Bias, index, l + "experts.fc1.bias", inner, Axis::Rows);
    matrix(Role::ExpertFc1, index, l + "experts.fc1", inner, m_.hidden, Axis::Rows);
    matrix(Role::Router, index, l + "router", m_.moe.experts, m_.hidden, Axis::None);
    out_.back().partial = layout_.sp;
  }

  void latent_attention(std::int32_t index, const std::string& l) {
    const Mla& a = m_.mla;
    const std::int64_t heads = s_.heads;
    matrix(Role::KvUp, index, l + "kv_up", heads * (a.nope + a.value), a.kv_rank, Axis::Rows);
    latent_norm(Role::KvNormGain, Role::KvNormBias, index, l + "kv_norm", a.kv_rank);
    matrix(Role::KvDown, index, l + "kv_down", a.kv_rank + a.rope, m_.hidden, Axis::None);
    out_.back().partial = layout_.sp;
    matrix(Role::QUp, index, l + "q_up", s_.query_width, a.q_rank > 0 ? a.q_rank : m_.hidden,
           Axis::Rows);
    if (a.q_rank == 0) return;
    latent_norm(Role::QNormGain, Role::QNormBias, index, l + "q_norm", a.q_rank);
    matrix(Role::QDown, index, l + "q_down", a.q_rank, m_.hidden, Axis::None);
    out_.back().partial = layout_.sp;
  }

  void embedding(bool tied_across_stages) {
    if (m_.positions == Positions::Learned) {
      matrix(Role::PositionEmbedding, kEmbeddingLayer, "embedding.position", m_.max_positions,
             m_.hidden, Axis::None);
    }
    matrix(Role::WordEmbedding, kEmbeddingLayer, "embedding.word", s_.vocab, m_.hidden, Axis::Rows);
    out_.back().tied = tied_across_stages;
  }

  std::vector<TensorSpec> take() {
    for (TensorSpec& t : out_) t.frozen = s_.adapter > 0 && !is_adapter(t.role);
    return std::exchange(out_, {});
  }

 private:
  void matrix(Role role, std::int32_t layer, const std::string& name, std::int64_t rows,
              std::int64_t cols, Axis axis) {
    out_.push_back({.role = role,
                    .layer = layer,
                    .parts = {{name + ".weight", rows}},
                    .cols = cols,
                    .axis = axis});
  }
  void vector(Role role, std::int32_t layer, const std::string& name, std::int64_t rows,
              Axis axis) {
    out_.push_back(
        {.role = role, .layer = layer, .parts = {{name, rows}}, .axis = axis, .zeros = true});
  }
  void row_parallel_bias(Role role, std::int32_t layer, const std::string& name) {
    if (!m_.bias) return;
    vector(role, layer, name + ".bias", m_.hidden, Axis::None);
    out_.back().partial = layout_.sp;
  }
  void norm(Role gain, Role bias, std::int32_t layer, const std::string& name) {
    latent_norm(gain, bias, layer, name, m_.hidden);
  }
  void latent_norm(Role gain, Role bias, std::int32_t layer, const std::string& name,
                   std::int64_t width) {
    vector(gain, layer, name + ".weight", width, Axis::None);
    out_.back().ones = true;
    out_.back().zeros = false;
    out_.back().partial = layout_.sp;
    if (!norm_bias_) return;
    vector(bias, layer, name + ".bias", width, Axis::None);
    out_.back().partial = layout_.sp;
  }
  void qkv(std::int32_t layer, const std::string& l) {
    TensorSpec w{.role = Role::Qkv, .layer = layer, .cols = m_.hidden, .axis = Axis::Rows};
    TensorSpec b{.role = Role::QkvBias, .layer = layer, .axis = Axis::Rows, .zeros = true};
    const std::array<std::pair<const char*, std::int64_t>, 3> parts{
        {{"query", s_.query_width}, {"key", s_.kv_width}, {"value", s_.kv_width}}};
    for (const auto& [part, rows] : parts) {
      w.parts.push_back({l + part + ".weight", rows});
      b.parts.push_back({l + part + ".bias", rows});
    }
    out_.push_back(std::move(w));
    column_adapter(Role::QkvAdapterIn, Role::QkvAdapterOut, l + "qkv");
    if (m_.bias) out_.push_back(std::move(b));
  }
  bool adapters_everywhere() const { return !s_.adapters_on_qkv_only; }
  // Adapters of the weight listed last. Every tp rank has part of the gradient of a whole matrix.
  void row_adapter(Role in, Role out, const std::string& name) {
    if (s_.adapter == 0) return;
    const TensorSpec w = out_.back();
    matrix(in, w.layer, name + ".adapter_in", s_.adapter, w.cols, Axis::Cols);
    matrix(out, w.layer, name + ".adapter_out", m_.hidden, s_.adapter, Axis::None);
    out_.back().partial = layout_.tp > 1;
  }
  void column_adapter(Role in, Role out, const std::string& name) {
    if (s_.adapter == 0) return;
    TensorSpec up = out_.back();
    matrix(in, up.layer, name + ".adapter_in", s_.adapter, m_.hidden, Axis::None);
    out_.back().partial = layout_.tp > 1;
    up.role = out;
    up.cols = s_.adapter;
    for (TensorSpec::Part& part : up.parts) {
      part.name.replace(part.name.rfind(".weight"), std::string::npos, ".adapter_out.weight");
    }
    out_.push_back(std::move(up));
  }

  const Transformer& m_;
  const Layout& layout_;
  const Sizes& s_;
  bool norm_bias_;
  std::vector<TensorSpec> out_;
};

std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

}  // namespace

std::int64_t TensorSpec::rows() const {
  std::int64_t n = 0;
  for (const Part& p : parts) n += p.rows;
  return n;
}

bool ties_stages(const Transformer& model, const Layout& layout) {
  if (!model.tied_embeddings || placement(layout.schedule) == Placement::TwoWay) return false;
  return layout.stage_of(0) != layout.stage_of(layout.chunks() - 1);
}

std::vector<std::vector<TensorSpec>> stage_tensors(const Transformer& model, const Layout& layout,
                                                   const Sizes& sizes, std::int32_t stage) {
  const std::vector<std::int32_t> layers = layout.layers_per_chunk(model.layers);
  std::vector<std::vector<TensorSpec>> tensors;
  const bool tied = ties_stages(model, layout);
  for (std::int32_t v = 0; v < layout.local_chunks(); ++v) {
    const std::int32_t chunk = layout.chunk_at(stage, v);
    std::int32_t first = 0;
    for (std::int32_t c = 0; c < chunk; ++c) first += layers[static_cast<std::size_t>(c)];
    TensorLister list(model, layout, sizes);
    if (chunk == layout.chunks() - 1) list.head(!model.tied_embeddings || tied);
    for (std::int32_t l = first + layers[static_cast<std::size_t>(chunk)]; l-- > first;)
      list.layer(l);
    if (chunk == 0) list.embedding(tied);
    tensors.push_back(list.take());
  }
  return tensors;
}

StageParameters::StageParameters(PlanBuilder& builder, std::int32_t stage, const Layout& layout,
                                 const Job& job,
                                 const std::vector<std::vector<TensorSpec>>& tensors,
                                 const Reducing& reducing)
    : builder_(builder),
      prefix_("stage" + std::to_string(stage) + "."),
      layout_(layout),
      precision_(job.precision),
      optimizer_(job.optimizer),
      bucket_elements_(bucket_elements(layout, job)),
      reducing_(reducing) {
  std::vector<TensorSpec> frozen;
  std::vector<std::vector<TensorSpec>> trained(tensors.size());
  for (std::size_t v = 0; v < tensors.size(); ++v) {
    for (const TensorSpec& t : tensors[v]) (t.frozen ? frozen : trained[v]).push_back(t);
  }
  if (level() >= 2) {
    by_unit(trained);
  } else {
    by_size(trained);
  }
  hold(frozen);
}

void StageParameters::by_size(const std::vector<std::vector<TensorSpec>>& tensors) {
  struct Open {
    std::vector<TensorSpec> tensors;
    std::int64_t elements = 0;
  };
  // Linear weights may be stored in 8 bits, the rest is not; experts have replicas of their own.
  std::array<Open, 4> by_format;
  const bool offloaded = layout_.offload.enabled;
  // A window moves over layers.
  const bool by_layer = layout_.offload.window > 0 && layout_.offload.bucket_elements == 0;
  const std::int64_t limit = by_layer    ? std::numeric_limits<std::int64_t>::max()
                             : offloaded ? offload_bucket(tensors)
                                         : bucket_elements_;
  // The last micro-batch's backward takes the chunks from last to first.
  for (std::size_t v = tensors.size(); v-- > 0;) {
    const auto chunk = static_cast<std::int32_t>(v);
    std::vector<TensorSpec> alone;
    for (const TensorSpec& t : tensors[v]) {
      if (t.tied) {
        alone = {t};
        close(alone, chunk);
        continue;
      }
      Open& open = by_format[(bits(dtype_of(t)) < 16 ? 1U : 0U) + (is_expert(t.role) ? 2U : 0U)];
      const bool next_layer =
          by_layer && !open.tensors.empty() && open.tensors.back().layer != t.layer;
      // Slots of memory are not made for what is larger.
      if (next_layer || (offloaded && t.elements() > limit)) {
        close(open.tensors, chunk);
        open.elements = 0;
      }
      open.tensors.push_back(t);
      open.elements += t.elements();
      if ((reducing_.overlap || offloaded) && open.elements >= limit) {
        close(open.tensors, chunk);
        open.elements = 0;
      }
    }
    for (Open& open : by_format) {
      open.elements = 0;
      // Stages that hold one chunk each way share its buckets with a stage that has them reversed.
      const bool apart = placement(layout_.schedule) == Placement::TwoWay;
      if (reducing_.overlap || apart || v == 0) close(open.tensors, chunk);
    }
  }
}

// The size of buckets that come and go: the one stated, else the one that wastes least.
std::int64_t StageParameters::offload_bucket(
    const std::vector<std::vector<TensorSpec>>& tensors) const {
  if (layout_.offload.bucket_elements > 0) return layout_.offload.bucket_elements;
  std::vector<std::int64_t> sizes;
  std::int64_t all = 0;
  for (const auto& list : tensors) {
    for (const TensorSpec& t : list) {
      sizes.push_back(t.elements());
      all += t.elements();
    }
  }
  // A copy of 16 MiB spends under 5 % on its start-up at 25 GB/s; 16 buckets leave a choice.
  constexpr std::int64_t kLeast = 8 << 20, kMost = 128 << 20, kFewestBuckets = 16, kSteps = 60;
  const std::int64_t coarsest = std::max(all / kFewestBuckets, kLeast);
  // Slots are at least as large as a layer's largest tensor: buckets of it waste nothing.
  std::int64_t most = std::min(coarsest, kMost);
  for (const std::int64_t n : sizes) {
    if (n <= coarsest) most = std::max(most, n);
  }
  return choose_bucket_elements(sizes, kLeast, most,
                                std::max<std::int64_t>(1, (most - kLeast) / kSteps));
}

void StageParameters::by_unit(const std::vector<std::vector<TensorSpec>>& tensors) {
  for (std::size_t v = tensors.size(); v-- > 0;) {
    const auto chunk = static_cast<std::int32_t>(v);
    std::vector<TensorSpec> layer, ends, alone;
    for (const TensorSpec& t : tensors[v]) {
      if (!layer.empty() && layer.back().layer != t.layer) close(layer, chunk);
      if (t.tied) {
        alone = {t};
        close(alone, chunk);
      } else {
        (t.layer < 0 ? ends : layer).push_back(t);
      }
    }
    close(layer, chunk);
    close(ends, chunk);
  }
}

DType StageParameters::dtype_of(const TensorSpec& t) const {
  const bool narrow = bits(precision_.params) < 16;
  return narrow && !is_linear(t.role) ? DType::Bf16 : precision_.params;
}

void StageParameters::hold(const std::vector<TensorSpec>& frozen) {
  std::map<DType, std::int64_t> elements;
  for (const TensorSpec& t : frozen) elements[dtype_of(t)] += t.elements();
  std::map<DType, Bucket> held;
  for (const auto& [dtype, n] : elements) {
    const std::string name = prefix_ + "frozen_weights" + std::to_string(held.size());
    held[dtype] = {.dtype = dtype,
                   .weight = builder_.buffer({.name = name,
                                              .bytes = Bytes(n * bits(dtype) / 8),
                                              .memory = MemoryClass::Weights,
                                              .dtype = dtype,
                                              .persistent = true})};
  }
  std::map<DType, std::int64_t> next;
  for (const TensorSpec& t : frozen) {
    std::int64_t& offset = next[dtype_of(t)];
    place(t, held[dtype_of(t)], offset);
    offset += t.elements();
  }
}

void StageParameters::close(std::vector<TensorSpec>& open, std::int32_t chunk) {
  if (open.empty()) return;
  Bucket bucket{.dtype = dtype_of(open.back()),
                .chunk = chunk,
                .layer = open.back().layer,
                .first_layer = open.front().layer,
                .tied = open.back().tied};
  const bool expert = is_expert(open.back().role);
  bucket.replicas = expert ? reducing_.expert_dp : reducing_.dp;
  bucket.shard_slot = expert ? reducing_.expert_dp : reducing_.shard;
  for (const TensorSpec& t : open) {
    bucket.elements += t.elements();
    if (t.partial) bucket.partial_elements += t.elements();
  }
  bucket.partial_begin = bucket.elements - bucket.partial_elements;
  const std::int64_t shards = shards_of(expert);
  const bool pads = layout_.compression.pads_gradients() && !expert;
  const std::int64_t rows = pads ? std::int64_t{layout_.dp} * layout_.cp : 0;
  bucket.elements = round_up(bucket.elements, rows > 0 ? rows * kGradientRow : shards);
  bucket.shard = bucket.elements / shards;
  make_buffers(bucket);
  std::int64_t next = 0, next_partial = bucket.partial_begin;
  for (const TensorSpec& t : open) {
    std::int64_t& offset = t.partial ? next_partial : next;
    place(t, bucket, offset);
    offset += t.elements();
  }
  buckets_.push_back(bucket);
  open.clear();
}

std::int32_t StageParameters::shards_of(bool expert) const {
  if (!expert) return layout_.shards();
  return level() > 0 ? reducing_.expert_replicas : 1;
}

BufferId StageParameters::persistent(const char* what, std::int64_t elements, DType dtype,
                                     MemoryClass memory) {
  return builder_.buffer({.name = prefix_ + what + std::to_string(buckets_.size()),
                          .bytes = Bytes(elements * bits(dtype) / 8),
                          .memory = memory,
                          .dtype = dtype,
                          .persistent = true});
}

BufferId StageParameters::passing(const char* what, std::int64_t elements, DType dtype,
                                  MemoryClass memory, bool framed) {
  return builder_.buffer({.name = prefix_ + what + std::to_string(buckets_.size()),
                          .bytes = Bytes(elements * bits(dtype) / 8),
                          .memory = memory,
                          .dtype = dtype,
                          .framed = framed,
                          // ZeRO 1 reduces into and gathers from its part of the whole buffers.
                          .in_place = !framed});
}

// The framed buffer of a unit: its own for an end of the model, a shared one for a layer.
BufferId StageParameters::turn(const char* what, const Bucket& bucket, bool alternate, DType dtype,
                               MemoryClass memory) {
  if (bucket.layer < 0) return passing(what, bucket.elements, dtype, memory, true);
  const std::int32_t parity = alternate ? bucket.layer % 2 : 0;
  const std::string name =
      prefix_ + "chunk" + std::to_string(bucket.chunk) + "." + what + "." + std::to_string(parity);
  const auto [found, added] = turns_.try_emplace(name, BufferId());
  if (added) {
    found->second = builder_.buffer({.name = name,
                                     .bytes = Bytes(bucket.elements * bits(dtype) / 8),
                                     .memory = memory,
                                     .dtype = dtype,
                                     .framed = true});
  }
  return found->second;
}

void StageParameters::make_whole(Bucket& bucket) {
  const Precision& p = precision_;
  if (level() < 3) {
    bucket.weight = persistent("weights", bucket.elements, bucket.dtype, MemoryClass::Weights);
  } else {
    const bool ahead = layout_.overlap_param_gather;
    bucket.weight = turn("gathered", bucket, ahead, bucket.dtype, MemoryClass::Weights);
    // One stage keeps its ends from forward to backward; in a pipeline that would hold a copy for
    // every micro-batch in flight.
    const bool kept = bucket.layer < 0 && layout_.pp == 1;
    bucket.weight_again =
        kept ? bucket.weight
             : turn("gathered_again", bucket, ahead, bucket.dtype, MemoryClass::Weights);
  }
  bucket.gradient =
      level() < 2
          ? persistent("gradients", bucket.elements, p.grads, MemoryClass::Gradients)
          : turn("unit_gradients", bucket, reducing_.overlap, p.grads, MemoryClass::Gradients);
}

void StageParameters::make_buffers(Bucket& bucket) {
  const Precision& p = precision_;
  make_whole(bucket);
  // Experts that one rank alone holds have nothing to share.
  const bool whole = level() == 0 || bucket.shard == bucket.elements;
  const bool f32_stays = bucket.dtype == DType::F32 && (whole || level() == 3);
  if (p.master && !f32_stays) {
    bucket.master = persistent("master", bucket.shard, DType::F32, MemoryClass::Optimizer);
  }
  const DType state = state_dtype(p);
  if (optimizer_ == Optimizer::Sgd) {
    bucket.m = persistent("momentum", bucket.shard, state, MemoryClass::Optimizer);
  } else {
    bucket.m = persistent("adam_m", bucket.shard, state, MemoryClass::Optimizer);
    bucket.v = persistent("adam_v", bucket.shard, state, MemoryClass::Optimizer);
  }
  if (reducing_.apart && level() < 2 && p.grads == DType::F32 && bits(bucket.dtype) == 16) {
    bucket.fresh = persistent("fresh", bucket.elements, bucket.dtype, MemoryClass::Gradients);
  }
  if (whole) return;
  constexpr auto kPassing = MemoryClass::Communication;
  bucket.gradient_shard =
      level() >= 2 ? persistent("gradient_shard", bucket.shard, p.grads, MemoryClass::Gradients)
                   : passing("gradient_shard", bucket.shard, p.grads, kPassing, false);
  bucket.weight_shard =
      level() == 3 ? persistent("weight_shard", bucket.shard, bucket.dtype, MemoryClass::Weights)
                   : passing("weight_shard", bucket.shard, bucket.dtype, kPassing, false);
  if (level() >= 2 && reducing_.accumulate) {
    bucket.arriving = passing("arriving", bucket.shard, p.grads, kPassing, true);
  }
}

void StageParameters::place(const TensorSpec& t, const Bucket& bucket, std::int64_t offset) {
  const auto view = [&](BufferId buffer, DType dtype, std::int64_t rows, std::int64_t at) {
    return View{
        .buffer = buffer, .offset = at, .rows = rows, .cols = t.cols, .ld = t.cols, .dtype = dtype};
  };
  const Precision& p = precision_;
  const bool flat_weights = level() == 3, flat_gradients = level() >= 2;
  const bool apart = bucket.fresh.valid();
  const View gradient = t.frozen ? View{}
                                 : view(apart ? bucket.fresh : bucket.gradient,
                                        apart ? bucket.dtype : p.grads, t.rows(), offset);
  const BufferId again = flat_weights ? bucket.weight_again : bucket.weight;
  weights_[{t.role, t.layer}] = {
      .forward = {view(bucket.weight, bucket.dtype, t.rows(), offset), gradient},
      .backward = {view(again, bucket.dtype, t.rows(), offset), gradient}};
  const BufferId weight_home = flat_weights ? bucket.weight_shard : bucket.weight;
  const BufferId gradient_home = flat_gradients ? bucket.gradient_shard : bucket.gradient;
  for (const TensorSpec::Part& part : t.parts) {
    const bool expert = is_expert(t.role);
    const SlotId slot = expert ? reducing_.ep : reducing_.tp;
    const bool cut = t.axis != Axis::None && slot.valid();
    parameters_.push_back(
        {.name = part.name,
         .rows = part.rows,
         .cols = t.cols,
         .weight = view(weight_home, bucket.dtype, part.rows, offset),
         .gradient = t.frozen ? View{} : view(gradient_home, p.grads, part.rows, offset),
         .sharding = cut ? Sharding{.axis = t.axis, .slot = slot, .blocks = t.blocks} : Sharding{},
         .weight_shards = flat_weights ? reducing_.shard : SlotId{},
         .gradient_shards = flat_gradients ? reducing_.shard : SlotId{},
         .ones = t.ones,
         .zeros = t.zeros});
    offset += part.rows * t.cols;
  }
}

}  // namespace gputwin
