#include "strategies/lowering/parameters.h"

#include <algorithm>

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
    matrix(Role::Fc2, index, l + "fc2", m_.hidden, s_.ffn, Axis::Cols);
    row_parallel_bias(Role::Fc2Bias, index, l + "fc2");
    const std::int32_t blocks = is_gated(m_.activation) ? 2 : 1;
    matrix(Role::Fc1, index, l + "fc1", s_.fc1_width, m_.hidden, Axis::Rows);
    out_.back().blocks = blocks;
    if (m_.bias) {
      vector(Role::Fc1Bias, index, l + "fc1.bias", s_.fc1_width, Axis::Rows);
      out_.back().blocks = blocks;
    }
    norm(Role::Norm2Gain, Role::Norm2Bias, index, l + "norm2");
    matrix(Role::Proj, index, l + "proj", m_.hidden, s_.query_width, Axis::Cols);
    row_parallel_bias(Role::ProjBias, index, l + "proj");
    qkv(index, l);
    norm(Role::Norm1Gain, Role::Norm1Bias, index, l + "norm1");
  }

  void embedding(bool tied_across_stages) {
    if (m_.positions == Positions::Learned) {
      matrix(Role::PositionEmbedding, kEmbeddingLayer, "embedding.position", m_.max_positions,
             m_.hidden, Axis::None);
    }
    matrix(Role::WordEmbedding, kEmbeddingLayer, "embedding.word", s_.vocab, m_.hidden, Axis::Rows);
    out_.back().tied = tied_across_stages;
  }

  std::vector<TensorSpec> take() { return std::exchange(out_, {}); }

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
    vector(gain, layer, name + ".weight", m_.hidden, Axis::None);
    out_.back().ones = true;
    out_.back().zeros = false;
    out_.back().partial = layout_.sp;
    if (!norm_bias_) return;
    vector(bias, layer, name + ".bias", m_.hidden, Axis::None);
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
    if (m_.bias) out_.push_back(std::move(b));
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

std::vector<std::vector<TensorSpec>> stage_tensors(const Transformer& model, const Layout& layout,
                                                   const Sizes& sizes, std::int32_t stage) {
  const std::vector<std::int32_t> layers = layout.layers_per_chunk(model.layers);
  std::vector<std::vector<TensorSpec>> tensors;
  for (std::int32_t v = 0; v < layout.vpp; ++v) {
    const std::int32_t chunk = v * layout.pp + stage;
    std::int32_t first = 0;
    for (std::int32_t c = 0; c < chunk; ++c) first += layers[static_cast<std::size_t>(c)];
    TensorLister list(model, layout, sizes);
    if (chunk == layout.chunks() - 1) list.head(!model.tied_embeddings || layout.pp > 1);
    for (std::int32_t l = first + layers[static_cast<std::size_t>(chunk)]; l-- > first;)
      list.layer(l);
    if (chunk == 0) list.embedding(model.tied_embeddings && layout.pp > 1);
    tensors.push_back(list.take());
  }
  return tensors;
}

StageParameters::StageParameters(PlanBuilder& builder, std::int32_t stage, const Layout& layout,
                                 const Precision& precision,
                                 const std::vector<std::vector<TensorSpec>>& tensors, SlotId tp,
                                 bool one_bucket)
    : builder_(builder),
      prefix_("stage" + std::to_string(stage) + "."),
      layout_(layout),
      precision_(precision),
      tp_(tp) {
  std::vector<TensorSpec> open;
  // The last micro-batch's backward takes the chunks from last to first.
  for (std::size_t v = tensors.size(); v-- > 0;) {
    const auto chunk = static_cast<std::int32_t>(v);
    std::int64_t elements = 0;
    std::vector<TensorSpec> alone;
    for (const TensorSpec& t : tensors[v]) {
      if (t.tied) {
        alone = {t};
        close(alone, chunk);
        continue;
      }
      open.push_back(t);
      elements += t.elements();
      if (!one_bucket && elements >= layout.bucket_elements) {
        close(open, chunk);
        elements = 0;
      }
    }
    if (!one_bucket || v == 0) close(open, chunk);
  }
}

void StageParameters::close(std::vector<TensorSpec>& open, std::int32_t chunk) {
  if (open.empty()) return;
  Bucket bucket{.chunk = chunk, .layer = open.back().layer, .tied = open.back().tied};
  for (const TensorSpec& t : open) {
    bucket.elements += t.elements();
    if (t.partial) bucket.partial_elements += t.elements();
  }
  bucket.partial_begin = bucket.elements - bucket.partial_elements;
  const std::int64_t shards = layout_.zero >= 1 ? layout_.dp * layout_.cp : 1;
  bucket.elements = round_up(bucket.elements, shards);
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

void StageParameters::make_buffers(Bucket& bucket) {
  const std::string id = std::to_string(buckets_.size());
  const auto persistent = [&](const char* what, std::int64_t n, DType dtype, MemoryClass memory) {
    return builder_.buffer({.name = prefix_ + what + id,
                            .bytes = Bytes(n * bits(dtype) / 8),
                            .memory = memory,
                            .dtype = dtype,
                            .persistent = true});
  };
  bucket.weight = persistent("weights", bucket.elements, precision_.params, MemoryClass::Weights);
  bucket.gradient =
      persistent("gradients", bucket.elements, precision_.grads, MemoryClass::Gradients);
  const bool sharded = layout_.zero >= 1 && layout_.dp * layout_.cp > 1;
  if (precision_.params != DType::F32 || sharded) {
    bucket.master = persistent("master", bucket.shard, DType::F32, MemoryClass::Optimizer);
  }
  bucket.m = persistent("adam_m", bucket.shard, DType::F32, MemoryClass::Optimizer);
  bucket.v = persistent("adam_v", bucket.shard, DType::F32, MemoryClass::Optimizer);
  if (!sharded) return;
  const auto passing = [&](const char* what, DType dtype) {
    return builder_.buffer({.name = prefix_ + what + id,
                            .bytes = Bytes(bucket.shard * bits(dtype) / 8),
                            .memory = MemoryClass::Communication,
                            .dtype = dtype});
  };
  bucket.gradient_shard = passing("gradient_shard", precision_.grads);
  bucket.weight_shard = passing("weight_shard", precision_.params);
}

void StageParameters::place(const TensorSpec& t, const Bucket& bucket, std::int64_t offset) {
  const auto view = [&](BufferId buffer, DType dtype, std::int64_t rows, std::int64_t at) {
    return View{
        .buffer = buffer, .offset = at, .rows = rows, .cols = t.cols, .ld = t.cols, .dtype = dtype};
  };
  weights_[{t.role, t.layer}] = {view(bucket.weight, precision_.params, t.rows(), offset),
                                 view(bucket.gradient, precision_.grads, t.rows(), offset)};
  for (const TensorSpec::Part& part : t.parts) {
    const bool cut = t.axis != Axis::None && layout_.tp > 1;
    parameters_.push_back(
        {.name = part.name,
         .rows = part.rows,
         .cols = t.cols,
         .weight = view(bucket.weight, precision_.params, part.rows, offset),
         .gradient = view(bucket.gradient, precision_.grads, part.rows, offset),
         .sharding = cut ? Sharding{.axis = t.axis, .slot = tp_, .blocks = t.blocks} : Sharding{},
         .ones = t.ones,
         .zeros = t.zeros});
    offset += part.rows * t.cols;
  }
}

}  // namespace gputwin
