// The network to train: a Transformer, or a LayerGraph whose layers carry their own costs.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "sim/core/units.h"

namespace gputwin {

enum class Activation : std::uint8_t { Gelu, Relu, SqRelu, Swiglu, Geglu };
enum class Positions : std::uint8_t { Learned, Rope, Alibi };
enum class Norm : std::uint8_t { LayerNorm, RmsNorm };

constexpr bool is_gated(Activation a) { return a == Activation::Swiglu || a == Activation::Geglu; }

/// Decoder-only Transformer (causal). All sizes are counts of elements of the unsharded model.
struct Transformer {
  std::string name;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;          // query heads
  std::int64_t kv_heads = 0;       // < heads: grouped-query attention
  std::int64_t head_dim = 0;       // usually hidden / heads
  std::int64_t ffn = 0;            // inner width of the MLP (of one of the two branches when gated)
  std::int64_t vocab = 0;          // after padding
  std::int64_t max_positions = 0;  // rows of the learned position table; 0 with other positions
  Activation activation = Activation::Gelu;
  Positions positions = Positions::Learned;
  Norm norm = Norm::LayerNorm;
  bool bias = true;             // linear layers and norms carry biases
  bool tied_embeddings = true;  // LM head reuses the word embedding
  double dropout = 0.0;         // hidden and attention dropout probability

  bool operator==(const Transformer&) const = default;

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
  std::int64_t fc1_width() const { return is_gated(activation) ? 2 * ffn : ffn; }
  std::int64_t parameters_per_layer() const;  // weights, biases and the two norms of one layer
  std::int64_t parameters() const;            // the whole model, tied embeddings counted once
};

/// One layer of a LayerGraph, for one sample. Lowered by strategies/lowering/layer_graph (hybrid
/// issue).
struct GraphLayer {
  std::string name;
  Flops forward{};
  Flops backward{};
  Seconds forward_time{};  // measured on `LayerGraph::measured_on`; 0 if unknown
  Seconds backward_time{};
  Bytes weights{};
  Bytes output{};
};

/// A DAG of layers (CNN, RNN). Edges lead from producer to consumer, as indices into `layers`.
struct LayerGraph {
  std::string name;
  std::string measured_on;
  std::vector<GraphLayer> layers;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;
};

using Workload = std::variant<Transformer, LayerGraph>;

}  // namespace gputwin
