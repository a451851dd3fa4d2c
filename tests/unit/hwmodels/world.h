// Clusters and one Transformer layer's kernels, priced by a HardwareModel: the world of the tests
// of hwmodels.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hwmodels/hardware_model.h"

namespace gputwin::test {

inline std::filesystem::path data_folder() { return GPUTWIN_SOURCE_DIR "/hwmodels"; }

/// `nodes` nodes of eight GPUs behind an NVSwitch, one network adapter per GPU, flat InfiniBand
/// fabric.
inline Cluster nvswitch_cluster(const std::string& device, std::int32_t nodes, double nvlink_GBps,
                                double nic_GBps) {
  NodeType type;
  type.device = device;
  type.gpus = 8;
  type.intra = {IntraKind::NvSwitch, BytesPerSecond(nvlink_GBps * 1e9), 1.0, 0};
  type.pcie = {4, BytesPerSecond(32e9), BytesPerSecond(32e9), 1, 0.8};
  type.host = {2, 128, Bytes(std::int64_t{1} << 40), BytesPerSecond(400e9)};
  type.nics = {8, BytesPerSecond(nic_GBps * 1e9), 1.0};
  Cluster cluster;
  cluster.name = "test";
  cluster.groups = {{type, nodes}};
  cluster.fabric.kind = FabricKind::InfiniBand;
  cluster.fabric.levels = {{nodes, 1.0}};
  return cluster;
}

inline std::vector<GpuId> gpus(std::uint32_t first, std::uint32_t count, std::uint32_t stride = 1) {
  std::vector<GpuId> out;
  for (std::uint32_t i = 0; i < count; ++i) out.push_back(GpuId(first + i * stride));
  return out;
}

/// One Transformer layer of `tokens` = s b tokens on one of `tp` ranks; sizes of the whole model.
struct LayerShape {
  std::int64_t s = 0, b = 1, h = 0, heads = 0, kv_heads = 0, d = 0, ffn = 0;
  std::int32_t tp = 1;
  bool sequence_parallel = false, gated = false, bias = true;
  float dropout = 0.0f;
  AttentionKernel attention = AttentionKernel::Unfused;
  DType dtype = DType::F16;
  std::int64_t tokens() const { return s * b; }
};

/// Seconds of a layer by class.
struct LayerTime {
  double gemm = 0, attention = 0, memory = 0, communication = 0;
  double total() const { return gemm + attention + memory + communication; }
  LayerTime operator+(const LayerTime& o) const {
    return {gemm + o.gemm, attention + o.attention, memory + o.memory,
            communication + o.communication};
  }
};

class LayerPricer {
 public:
  LayerPricer(const HardwareModel& model, const Topology& topology, const LayerShape& shape)
      : model_(model), topology_(topology), l_(shape) {}

  LayerTime forward() const {
    LayerTime t;
    const std::int64_t n = l_.tokens(), shard = l_.sequence_parallel ? n / l_.tp : n;
    const std::int64_t qkv = (l_.heads + 2 * l_.kv_heads) * l_.d / l_.tp,
                       q = l_.heads * l_.d / l_.tp;
    const std::int64_t f = l_.ffn / l_.tp, f1 = l_.gated ? 2 * f : f;
    t.gemm = gemm(n, qkv, l_.h) + gemm(n, l_.h, q) + gemm(n, f1, l_.h) + gemm(n, l_.h, f);
    t.attention = l_.attention == AttentionKernel::Unfused
                      ? product(OpKind::AttentionScores) + product(OpKind::AttentionContext)
                      : flash(OpKind::FlashForward);
    t.memory = 2 * stream(OpKind::NormForward, shard, l_.h, 1, 1) +
               2 * stream(OpKind::BiasDropoutAdd, shard, l_.h, 2, 1) +
               stream(OpKind::ActivationForward, n, f, l_.gated ? 2 : 1, 1) + softmax(true);
    if (l_.kv_heads < l_.heads) t.memory += rope();
    t.communication = exchange();
    return t;
  }

  LayerTime backward() const {
    LayerTime t;
    const std::int64_t n = l_.tokens(), shard = l_.sequence_parallel ? n / l_.tp : n;
    const std::int64_t qkv = (l_.heads + 2 * l_.kv_heads) * l_.d / l_.tp,
                       q = l_.heads * l_.d / l_.tp;
    const std::int64_t f = l_.ffn / l_.tp, f1 = l_.gated ? 2 * f : f;
    t.gemm = gemm(n, l_.h, qkv) + gemm(n, q, l_.h) + gemm(n, l_.h, f1) + gemm(n, f, l_.h) +
             weight_gradient(qkv, l_.h) + weight_gradient(l_.h, q) + weight_gradient(f1, l_.h) +
             weight_gradient(l_.h, f);
    if (l_.attention == AttentionKernel::Unfused) {
      t.attention = product(OpKind::AttentionGradProbs) + product(OpKind::AttentionGradValue) +
                    product(OpKind::AttentionGradQuery) + product(OpKind::AttentionGradKey);
    } else {
      t.attention = flash(OpKind::FlashBackward);
    }
    t.memory = 2 * stream(OpKind::NormBackward, shard, l_.h, 3, 1) +
               stream(OpKind::ActivationBackward, n, f, l_.gated ? 3 : 2, l_.gated ? 2 : 1) +
               softmax(false);
    if (l_.dropout > 0) t.memory += 2 * stream(OpKind::DropoutBackward, shard, l_.h, 1, 1);
    if (l_.bias) t.memory += 2 * stream(OpKind::BiasGrad, shard, l_.h, 1, 0);
    if (l_.kv_heads < l_.heads) t.memory += rope();
    t.communication = exchange();
    return t;
  }

  double collective(OpKind kind, std::int64_t bytes) const {
    const std::vector<GpuId> members = gpus(0, static_cast<std::uint32_t>(l_.tp));
    return closed_form(model_.collective(kind, Bytes(bytes), members), members, topology_).value;
  }

 private:
  // Two exchanges of the activations: all-reduces, or with sequence parallelism a gather and a
  // scatter each.
  double exchange() const {
    if (l_.tp == 1) return 0.0;
    const std::int64_t bytes = 2 * l_.tokens() * l_.h;
    if (!l_.sequence_parallel) return 2 * collective(OpKind::AllReduce, bytes);
    return 2 * (collective(OpKind::AllGather, bytes) + collective(OpKind::ReduceScatter, bytes));
  }

  double cost(const Op& op, std::int64_t read, std::int64_t written) const {
    return model_.kernel(op, Bytes(read), Bytes(written), DeviceKindId(0)).time.value;
  }

  double gemm(std::int64_t m, std::int64_t n, std::int64_t k) const {
    Op op{.kind = OpKind::Gemm, .dtype = l_.dtype, .out = l_.dtype, .trans_b = true};
    op.dims = {m, n, k};
    return cost(op, 2 * (m * k + k * n), 2 * m * n);
  }

  // dW (m x n) += dY^T X over all tokens, in fp32.
  double weight_gradient(std::int64_t m, std::int64_t n) const {
    Op op{.kind = OpKind::Gemm, .dtype = l_.dtype, .out = DType::F32, .trans_a = true};
    op.accumulate = true;
    op.dims = {m, n, l_.tokens()};
    return cost(op, 2 * (m + n) * l_.tokens(), 4 * m * n);
  }

  Op attention_op(OpKind kind) const {
    Op op{.kind = kind, .dtype = l_.dtype, .out = l_.dtype};
    op.causal = true;
    op.attention = l_.attention;
    op.dims = {l_.b, l_.heads / l_.tp, l_.kv_heads / l_.tp, l_.s, l_.s, l_.d};
    return op;
  }

  double product(OpKind kind) const {
    const std::int64_t a = l_.heads / l_.tp;
    const std::int64_t square = 2 * l_.b * a * l_.s * l_.s, side = 2 * l_.b * a * l_.s * l_.d;
    return cost(attention_op(kind), square + side, side);
  }

  double flash(OpKind kind) const {
    const std::int64_t side = 2 * l_.tokens() * l_.heads / l_.tp * l_.d;
    return cost(attention_op(kind), 3 * side, side);
  }

  double softmax(bool forward) const {
    if (l_.attention != AttentionKernel::Unfused) return 0.0;
    Op op{.kind = forward ? OpKind::SoftmaxForward : OpKind::SoftmaxBackward, .dtype = l_.dtype};
    op.out = l_.dtype;
    op.causal = true;
    op.dropout = l_.dropout;
    op.dims = {l_.b, l_.heads / l_.tp, l_.s, l_.s};
    const std::int64_t square = 2 * l_.b * (l_.heads / l_.tp) * l_.s * l_.s;
    return cost(op, forward ? square : 2 * square, square);
  }

  double stream(OpKind kind, std::int64_t rows, std::int64_t width, int reads, int writes) const {
    Op op{.kind = kind, .dtype = l_.dtype, .out = l_.dtype};
    op.dropout = l_.dropout;
    op.dims = {rows, width};
    return cost(op, 2 * reads * rows * width, 2 * writes * rows * width);
  }

  double rope() const {
    Op op{.kind = OpKind::Rope, .dtype = l_.dtype, .out = l_.dtype};
    op.dims = {l_.tokens(), l_.heads / l_.tp, l_.kv_heads / l_.tp, l_.d};
    return cost(op, 0, 0);
  }

  const HardwareModel& model_;
  const Topology& topology_;
  LayerShape l_;
};

}  // namespace gputwin::test
