// Makes layer graphs by adding one layer after the other.
#pragma once

#include <string>
#include <vector>

#include "sim/core/workload.h"

namespace gputwin {

/// A layer's number; kSamples: the samples themselves.
using LayerRef = std::int32_t;
inline constexpr LayerRef kSamples = -1;

/// Every function adds one layer (or a usual group) behind `from` and returns its number. Names are
/// made of kind and count, after the unit's name.
class NetworkBuilder {
 public:
  NetworkBuilder(std::string name, Extent input, bool tokens);

  /// Following layers belong to a new unit of this name.
  void unit(const std::string& name);

  LayerRef convolution(LayerRef from, std::int64_t channels, const LayerWindow& window,
                       bool bias = false);
  LayerRef convolution(LayerRef from, std::int64_t channels, std::int64_t size,
                       std::int64_t stride = 1, std::int64_t pad = 0, bool bias = false);
  LayerRef batch_norm(LayerRef from);
  LayerRef layer_norm(LayerRef from);
  LayerRef relu(LayerRef from);
  LayerRef gelu(LayerRef from);
  /// Convolution, batch norm and, if wanted, activation.
  LayerRef conv_norm(LayerRef from, std::int64_t channels, const LayerWindow& window,
                     bool activate = true);
  LayerRef max_pool(LayerRef from, std::int64_t size, std::int64_t stride, std::int64_t pad = 0);
  LayerRef average_pool(LayerRef from, std::int64_t size, std::int64_t stride,
                        std::int64_t pad = 0);
  LayerRef pool_all(LayerRef from);
  /// Some of the positions of a sequence.
  LayerRef gather(LayerRef from, std::int64_t positions);
  LayerRef upsample(LayerRef from, std::int64_t factor);
  LayerRef add(LayerRef a, LayerRef b);
  LayerRef concat(const std::vector<LayerRef>& from);
  LayerRef dropout(LayerRef from, double probability);
  /// Over all elements of the sample.
  LayerRef dense(LayerRef from, std::int64_t width);
  /// By position of a sequence.
  LayerRef linear(LayerRef from, std::int64_t width, bool bias = true);
  LayerRef recurrent(LayerRef from, std::int64_t width, std::int64_t gates);
  LayerRef embedding(LayerRef from, std::int64_t vocab, std::int64_t width);
  LayerRef attention(LayerRef qkv, std::int64_t heads, bool causal, double dropout);
  LayerRef loss(LayerRef from);

  const Extent& extent(LayerRef layer) const;
  LayerGraph take();

 private:
  LayerRef push(const char* what, LayerKind kind, std::vector<LayerRef> from, Extent output,
                GraphLayer layer = {});

  LayerGraph graph_;
  std::string unit_name_;
  std::int32_t unit_ = -1;
  std::int32_t in_unit_ = 0;
};

}  // namespace gputwin
