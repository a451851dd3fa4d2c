#include "hwmodels/kernels/attention.h"

#include <algorithm>
#include <cmath>

#include "hwmodels/kernels/gemm.h"
#include "sim/core/check.h"

namespace gputwin {

namespace {

constexpr std::int64_t kBlock = 128;
// Mean error of the tile form with one rate is 7-19 %; 80 % of the shapes lie within these factors.
constexpr double kLow = 0.85, kHigh = 1.20;
constexpr double kFallbackShareOfPeak = 0.25;

GemmShape product_shape(const Op& op) {
  const auto [b, a, g, s, u, d] = op.dims;
  GemmShape shape{.batch = b * a, .dtype = op.dtype};
  switch (op.kind) {
    case OpKind::AttentionScores:
    case OpKind::AttentionGradProbs:
      shape.m = s, shape.n = u, shape.k = d, shape.trans_b = true;
      break;
    case OpKind::AttentionContext:
    case OpKind::AttentionGradQuery: shape.m = s, shape.n = d, shape.k = u; break;
    case OpKind::AttentionGradValue:
    case OpKind::AttentionGradKey:
      shape.m = u, shape.n = d, shape.k = s, shape.trans_a = true;
      break;
    default: GPUTWIN_CHECK(false, "only attention products are priced here");
  }
  return shape;
}

// Tiles of one head: all of them, and those of the longest row of tiles.
struct Tiles {
  double all = 0.0, longest = 0.0;
};

std::int64_t blocks(std::int64_t elements) { return (elements + kBlock - 1) / kBlock; }

// Context parallelism, causal: the queries are chunks i and 2n - 1 - i of 2n. Over the keys of the
// whole sequence they see 2n - 1 whole chunks and two triangles, whatever i is; over those of
// another member half of all, either all queries half of the keys or half of the queries all keys.
Tiles tiles_of_zigzag(std::int64_t s, std::int64_t u, bool other_member) {
  const std::int64_t chunk = blocks(s / 2), chunks = u / (s / 2);
  const auto cols = static_cast<double>(chunk * chunks);
  if (other_member) return {static_cast<double>(2 * chunk * chunk), cols};
  return {static_cast<double>(chunk * chunk * (chunks - 1) + chunk * (chunk + 1)), cols};
}

Tiles tiles_of(const Op& op) {
  const std::int64_t s = op.dims[3], u = op.dims[4];
  const std::int64_t rows = blocks(s), cols = blocks(u);
  if (!op.causal) return {static_cast<double>(rows * cols), static_cast<double>(cols)};
  if (op.cp_slot.valid()) return tiles_of_zigzag(s, u, op.ring_step > 0);
  if (op.window > 0 && op.window < u) {
    // A row of tiles sees those of its own keys and of the window before them.
    const std::int64_t width = blocks(op.window - 1) + 1;
    Tiles tiles{0.0, static_cast<double>(std::min(width, cols))};
    for (std::int64_t i = 0; i < rows; ++i) {
      tiles.all += static_cast<double>(std::min(width, cols - rows + i + 1));
    }
    return tiles;
  }
  // Queries are the last s of u positions: row i reaches column (cols - rows) + i.
  const std::int64_t before = std::max<std::int64_t>(0, cols - rows);
  const double all =
      static_cast<double>(rows * before) + 0.5 * static_cast<double>(rows * (rows + 1));
  return {all, static_cast<double>(cols)};
}

// Rate of the asked kernel, or of the nearest one the device has.
FlopsPerSecond rate_of(const Device& device, AttentionKernel kernel, bool forward, bool& missing) {
  const auto of = [&](AttentionKernel k) {
    const AttentionRate& r = device.attention.kernels[static_cast<std::size_t>(k)];
    return forward ? r.forward : r.backward;
  };
  FlopsPerSecond rate = of(kernel);
  missing = rate.value <= 0;
  if (!missing) return rate;
  for (AttentionKernel k : {AttentionKernel::Flash1, AttentionKernel::Flash2,
                            AttentionKernel::Flash3, AttentionKernel::Cudnn}) {
    if (of(k).value > rate.value) rate = of(k);
  }
  if (rate.value > 0) return rate;
  return FlopsPerSecond(device.dense_peak(DType::F16).value * kFallbackShareOfPeak);
}

}  // namespace

Cost attention_gemm_cost(const Device& device, const Op& op, Bytes traffic) {
  GemmShape shape = product_shape(op);
  const auto [b, a, g, s, u, d] = op.dims;
  const Bytes scores((op.alibi ? b * a * s * u : 0) * bits(op.out) / 8);
  shape.traffic = traffic + scores;
  Cost cost = gemm_cost(device, shape);
  if (op.dims[5] % 8 != 0) {
    cost.time = cost.time * device.attention.misaligned_head_time;
    for (Seconds& term : cost.terms) term = term * device.attention.misaligned_head_time;
  }
  if (op.alibi) {
    const Seconds copy(static_cast<double>(scores.value) /
                       (device.memory_bound.elementwise * device.memory_bandwidth.value));
    cost.time = cost.time + device.memory_bound.start_up + copy;
    cost.terms[static_cast<std::size_t>(Term::StartUp)] =
        cost.term(Term::StartUp) + device.memory_bound.start_up;
    cost.terms[static_cast<std::size_t>(Term::Memory)] = cost.term(Term::Memory) + copy;
  }
  cost.low = kLow;
  cost.high = kHigh;
  cost.model = "attention product: batched gemm, s, u, d per head";
  cost.op_class = "attention";
  return cost;
}

Cost flash_cost(const Device& device, const Op& op, Bytes traffic) {
  const auto [b, a, g, s, u, d] = op.dims;
  const bool forward = op.kind == OpKind::FlashForward;
  bool missing = false;
  double rate = rate_of(device, op.attention, forward, missing).value * device.attention.sustained;
  if (d <= 64) rate *= device.attention.small_head_rate;
  const Tiles tiles = tiles_of(op);
  // Products of a tile over the size of queries, and over that of values.
  const auto q = static_cast<double>(d);
  const double v = op.value_size > 0 ? static_cast<double>(op.value_size) : q;
  const double tile_flops = 2.0 * kBlock * kBlock * (forward ? q + v : 3.0 * q + 2.0 * v);
  const double all = tiles.all * tile_flops * static_cast<double>(b * a) / rate;
  // Forward kernels of Blackwell give one SM two rows of tiles at a time.
  const double rows = forward && device.architecture == Architecture::Blackwell ? 2.0 : 1.0;
  const double longest = rows * tiles.longest * tile_flops * device.sms / rate;
  const Seconds memory(static_cast<double>(traffic.value) /
                       (device.memory_bound.elementwise * device.memory_bandwidth.value));
  const Seconds work(forward ? std::hypot(all, longest) : std::max(all, longest));
  Cost cost;
  cost.time = device.attention.start_up + std::max(work, memory);
  cost.terms[static_cast<std::size_t>(Term::StartUp)] = device.attention.start_up;
  cost.terms[static_cast<std::size_t>(Term::Compute)] = Seconds(all);
  cost.terms[static_cast<std::size_t>(Term::Wave)] = work - Seconds(all);
  cost.terms[static_cast<std::size_t>(Term::Memory)] = memory;
  cost.low = kLow;
  cost.high = kHigh;
  cost.extrapolated = missing || s < 512 || d < 64 || d > 128;
  cost.model = "flash attention: t0 + max(tiles / rate with the longest row on one SM, bytes)";
  cost.op_class = "attention";
  return cost;
}

}  // namespace gputwin
