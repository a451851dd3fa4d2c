// Networks over tokens: recurrent translation and language models, encoders and decoders as chains.
#include "sim/app/networks/network_builder.h"
#include "sim/app/networks/networks.h"

namespace gputwin {
namespace {

constexpr std::int64_t kLstm = 4;  // gates

NetworkBuilder over_tokens(const std::string& name, const NetworkOptions& o) {
  return NetworkBuilder(name, {1, o.sequence, 1}, true);
}

// Self-attention and MLP; layer norms before (GPT) or after (BERT) the residual sums.
LayerRef transformer_layer(NetworkBuilder& b, const NetworkOptions& o, LayerRef x, bool causal) {
  constexpr double kDropout = 0.1;
  const LayerRef a = causal ? b.layer_norm(x) : x;
  LayerRef y = b.attention(b.linear(a, 3 * o.hidden), o.heads, causal, kDropout);
  x = b.add(b.dropout(b.linear(y, o.hidden), kDropout), x);
  if (!causal) x = b.layer_norm(x);
  const LayerRef m = causal ? b.layer_norm(x) : x;
  y = b.linear(b.gelu(b.linear(m, o.ffn)), o.hidden);
  x = b.add(b.dropout(y, kDropout), x);
  return causal ? x : b.layer_norm(x);
}

}  // namespace

// GNMT (Wu et al. 2016) as in NVIDIA's and PipeDream's translation benchmarks: `layers` of each of
// encoder (the first in both directions) and decoder, residual sums from the third on, attention of
// the first decoder layer whose context every decoder layer reads.
LayerGraph make_gnmt(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b = over_tokens(name, o);
  const std::int64_t h = o.hidden, each = o.layers / 2;
  b.unit("embedding");
  LayerRef x = b.dropout(b.embedding(kSamples, o.vocab, h), 0.2);
  for (std::int64_t l = 0; l < each; ++l) {
    b.unit("encoder" + std::to_string(l + 1));
    LayerRef y = l == 0 ? b.concat({b.recurrent(x, h, kLstm), b.recurrent(x, h, kLstm)})
                        : b.recurrent(x, h, kLstm);
    if (l >= 2) y = b.add(y, x);
    x = l + 1 < each ? b.dropout(y, 0.2) : y;
  }
  const LayerRef memory = x;
  b.unit("target_embedding");
  x = b.dropout(b.embedding(kSamples, o.vocab, h), 0.2);
  LayerRef context = memory;
  for (std::int64_t l = 0; l < each; ++l) {
    b.unit("decoder" + std::to_string(l + 1));
    LayerRef y = b.recurrent(l == 0 ? x : b.concat({x, context}), h, kLstm);
    if (l == 0) {
      const LayerRef query = b.linear(y, h, false), keys = b.linear(memory, h, false);
      context = b.attention(b.concat({query, keys, memory}), 1, false, 0);
    }
    if (l >= 2) y = b.add(y, x);
    x = b.dropout(y, 0.2);
  }
  b.unit("classifier");
  b.loss(b.linear(x, o.vocab));
  return b.take();
}

// A word-level language model: stacked LSTM layers between embedding and softmax.
LayerGraph make_lstm(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b = over_tokens(name, o);
  b.unit("embedding");
  LayerRef x = b.embedding(kSamples, o.vocab, o.hidden);
  for (std::int64_t l = 0; l < o.layers; ++l) {
    b.unit("lstm" + std::to_string(l + 1));
    x = b.recurrent(b.dropout(x, 0.4), o.hidden, kLstm);
  }
  b.unit("classifier");
  b.loss(b.linear(x, o.vocab));
  return b.take();
}

// Devlin et al. 2019: pre-training, of whose two losses the masked language model is kept; it looks
// at 15 % of the positions, rounded up (20 of 128, as in the published scripts).
LayerGraph make_bert(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b = over_tokens(name, o);
  b.unit("embedding");
  LayerRef x = b.dropout(b.layer_norm(b.embedding(kSamples, o.vocab, o.hidden)), 0.1);
  for (std::int64_t l = 0; l < o.layers; ++l) {
    b.unit("layer" + std::to_string(l + 1));
    x = transformer_layer(b, o, x, false);
  }
  b.unit("head");
  const std::int64_t masked = (15 * o.sequence + 99) / 100;
  const std::int64_t positions = o.loss_positions > 0 ? o.loss_positions : masked;
  if (positions < o.sequence) x = b.gather(x, positions);
  x = b.layer_norm(b.gelu(b.linear(x, o.hidden)));
  b.loss(b.linear(x, o.vocab));
  return b.take();
}

// Radford et al. 2019: every position predicts the next.
LayerGraph make_gpt(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b = over_tokens(name, o);
  b.unit("embedding");
  LayerRef x = b.dropout(b.embedding(kSamples, o.vocab, o.hidden), 0.1);
  for (std::int64_t l = 0; l < o.layers; ++l) {
    b.unit("layer" + std::to_string(l + 1));
    x = transformer_layer(b, o, x, true);
  }
  b.unit("head");
  b.loss(b.linear(b.layer_norm(x), o.vocab, false));
  return b.take();
}

}  // namespace gputwin
