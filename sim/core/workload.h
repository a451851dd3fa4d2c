// The network to train: a Transformer, or a LayerGraph of layers by shape or by measured cost.
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

/// A mixture of experts in place of the MLP of some layers; none if `experts` is 0.
struct Experts {
  std::int64_t experts = 0;
  std::int64_t top_k = 0;         // experts of a token
  std::int64_t ffn = 0;           // inner width of one expert
  std::int64_t shared_ffn = 0;    // of the experts that see every token together; 0: none
  std::int64_t dense_layers = 0;  // first layers, which have an MLP of width Transformer::ffn
  std::int64_t every = 1;         // after those, every n-th layer has experts
  double capacity_factor = 0.0;   // rows of an expert over their even share; 0: nothing is dropped
  bool bias = false;              // both products of an expert, but not of the shared ones

  bool operator==(const Experts&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2): queries, and keys with values, are expanded from
/// normed latent vectors; none if `kv_rank` is 0. heads x (nope + rope) is the width of queries.
struct Mla {
  std::int64_t q_rank = 0;          // of the queries' latent vector; 0: a plain projection
  std::int64_t kv_rank = 0;         // of the latent vector of keys and values
  std::int64_t nope = 0, rope = 0;  // of a head's query and key: not rotated, rotated
  std::int64_t value = 0;           // of a head's value

  bool operator==(const Mla&) const = default;
};

/// Transformer of one stack of layers, decoder or encoder. Sizes count elements, unsharded.
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
  Experts moe{};
  Mla mla{};
  std::int64_t window = 0;      // keys that a query of a windowed layer sees; 0: no such layers
  std::int64_t full_every = 0;  // with a window: every n-th layer sees all keys; 0: none does
  bool causal = true;           // a position sees those up to it; false, all: an encoder

  bool operator==(const Transformer&) const = default;

  std::int64_t query_width() const { return heads * head_dim; }
  std::int64_t kv_width() const { return kv_heads * head_dim; }
  std::int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
  /// Width of what the output projection reads.
  std::int64_t context_width() const { return heads * (has_mla() ? mla.value : head_dim); }
  bool has_experts() const { return moe.experts > 0; }
  bool has_experts(std::int64_t layer) const {
    return has_experts() && layer >= moe.dense_layers &&
           (layer - moe.dense_layers) % moe.every == 0;
  }
  bool has_mla() const { return mla.kv_rank > 0; }
  /// Keys that a query of a layer sees; 0: all before it.
  std::int64_t window_of(std::int64_t layer) const {
    return full_every > 0 && (layer + 1) % full_every == 0 ? 0 : window;
  }
  /// Inner width of the MLP that every token goes through in a layer; 0: there is none.
  std::int64_t ffn_of(std::int64_t layer) const {
    return has_experts(layer) ? moe.shared_ffn : ffn;
  }
  std::int64_t fc1_width() const { return is_gated(activation) ? 2 * ffn : ffn; }
  std::int64_t attention_weights() const;  // elements of the matrices of attention in one layer
  std::int64_t expert_parameters() const;  // weights of one expert
  std::int64_t expert_biases() const;      // of one expert
  std::int64_t parameters_of_layer(std::int64_t layer) const;  // weights, biases, norms
  std::int64_t parameters() const;  // the whole model, tied embeddings counted once
  /// The same without the experts that a token does not go through.
  std::int64_t active_parameters() const;
};

/// A tensor of one sample. Images: channels x height x width. Sequences: features x steps x 1.
struct Extent {
  std::int64_t channels = 1, height = 1, width = 1;
  bool operator==(const Extent&) const = default;
  std::int64_t positions() const { return height * width; }
  std::int64_t elements() const { return channels * height * width; }
};

/// What a layer of a LayerGraph computes.
enum class LayerKind : std::uint8_t {
  Convolution,
  Linear,  // over all elements of a sample if the result has one position, else by position
  BatchNorm,
  LayerNorm,
  Relu,
  Gelu,
  MaxPool,
  AveragePool,  // over `window`; a window of no size: over all positions
  Add,
  Concat,  // along channels
  Upsample,
  Dropout,
  Recurrent,
  Embedding,
  Attention,  // input: queries, keys and values side by side
  Loss,       // softmax and cross-entropy by position
  Stated      // times and sizes given
};

/// Filter of a convolution or window of a pool.
struct LayerWindow {
  std::int64_t height = 0, width = 0;
  std::int64_t stride_height = 1, stride_width = 1;
  std::int64_t pad_height = 0, pad_width = 0;
  std::int64_t groups = 1;
  bool operator==(const LayerWindow&) const = default;
};

/// One layer of a LayerGraph, for one sample.
struct GraphLayer {
  std::string name;
  LayerKind kind = LayerKind::Stated;
  std::vector<std::int32_t> inputs;  // earlier layers; none: the samples themselves
  Extent output{};
  LayerWindow window{};
  std::int64_t heads = 1;                   // Attention
  bool causal = false;                      // Attention
  std::int64_t gates = 1;                   // Recurrent: 4 LSTM, 3 GRU, 1 plain
  std::int64_t vocab = 0;                   // Embedding
  bool bias = false;                        // Convolution, Linear
  double dropout = 0.0;                     // Dropout, Attention: probability
  std::int32_t unit = 0;                    // link of the chain that stages are cut from; ascending
  Seconds forward_time{}, backward_time{};  // Stated, of one sample on LayerGraph::measured_on
  std::int64_t stated_weights = 0;          // Stated: parameters
  bool operator==(const GraphLayer&) const = default;
};

/// A DAG of layers (CNN, RNN, encoder) in topological order, cut into units: stages are runs of
/// consecutive units. The last layer is a Loss unless layers are Stated.
struct LayerGraph {
  std::string name;
  std::string measured_on;  // device of stated times, or empty
  Extent input{};           // of a sample: image, or token ids with one channel
  bool tokens = false;
  std::vector<GraphLayer> layers;
  bool operator==(const LayerGraph&) const = default;

  std::int32_t units() const { return layers.empty() ? 0 : layers.back().unit + 1; }
  std::int64_t parameters() const;
  Flops forward_flops() const;  // of one sample: convolutions, products and attention
};

/// Input of a layer: that of its first producer, or of the graph.
const Extent& input_of(const LayerGraph& graph, const GraphLayer& layer);
/// Features a Linear layer multiplies, and results it takes per sample.
std::int64_t linear_width(const LayerGraph& graph, const GraphLayer& layer);
/// Trained parameters of one layer.
std::int64_t parameters_of(const LayerGraph& graph, const GraphLayer& layer);
/// Forward FLOPs of one sample through one layer; 0 for what only moves bytes.
Flops forward_flops_of(const LayerGraph& graph, const GraphLayer& layer);

using Workload = std::variant<Transformer, LayerGraph>;

}  // namespace gputwin
