#include "strategies/passes/choose.h"

#include <algorithm>
#include <limits>

#include "strategies/lowering/transformer.h"
#include "strategies/passes/choose_codecs.h"
#include "strategies/passes/compress.h"
#include "strategies/passes/recompute.h"

namespace gputwin {
namespace {

// Weight gradients run under collectives, blocking or not: each block hides an even share.
void hide_under_fillers(LayerBlocks& blocks) {
  std::int64_t communicating = 0;
  for (const BlockCosts& b : blocks.backward) communicating += b.communicate.back() > 0 ? 1 : 0;
  if (communicating == 0) return;
  for (BlockCosts& b : blocks.backward) {
    if (b.communicate.back() <= 0) continue;
    const double each = blocks.filler_seconds / static_cast<double>(communicating);
    const auto samples = static_cast<double>(b.communicate.size() - 1);
    for (std::size_t x = 1; x < b.communicate.size(); ++x) {
      const double share = each * static_cast<double>(x) / samples;
      b.communicate[x] = std::max(0.0, b.communicate[x] - share);
      for (std::vector<double>& after : b.placed_exchange)
        after[x] = std::max(0.0, after[x] - share);
    }
  }
}

std::vector<BlockCosts> joined(const std::vector<BlockCosts>& a, const std::vector<BlockCosts>& b) {
  std::vector<BlockCosts> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

std::vector<std::int64_t> reversed(std::vector<std::int64_t> units) {
  std::reverse(units.begin(), units.end());
  return units;
}

// Samples, or tokens, of chunks of so many units.
std::vector<std::int64_t> from_units(const std::vector<std::int64_t>& borders,
                                     const std::vector<std::int64_t>& units) {
  std::vector<std::int64_t> list;
  std::size_t at = 0;
  for (const std::int64_t u : units) {
    const std::size_t next = at + static_cast<std::size_t>(u);
    list.push_back(borders[next] - borders[at]);
    at = next;
  }
  return list;
}

// The units of such chunks, each end at the nearest border.
std::vector<std::int64_t> to_units(const std::vector<std::int64_t>& borders,
                                   const std::vector<std::int64_t>& chunks) {
  std::vector<std::int64_t> list;
  std::int64_t end = 0;
  auto at = borders.begin();
  for (const std::int64_t c : chunks) {
    end += c;
    const auto next = std::lower_bound(at, std::prev(borders.end()), end);
    list.push_back(next - at);
    at = next;
  }
  return list;
}

class Chooser {
 public:
  Chooser(const Transformer& model, const Cluster& cluster, const Layout& layout, const Job& job,
          const StagePrices& prices)
      : model_(model),
        cluster_(cluster),
        layout_(layout),
        job_(job),
        prices_(prices),
        sequence_(layout.chunk_overlap.sequence(layout.micro_batch)),
        borders_(chunk_borders(layout, job)),
        units_(static_cast<std::int64_t>(borders_.size()) - 1) {}

  Outcome<PassChoice> choose() {
    if (auto refused = refusal()) return *std::move(refused);
    Layout plain = layout_;
    plain.compression = {};
    auto blocks = blocks_with(plain);
    if (auto* refused = std::get_if<Infeasible>(&blocks)) return std::move(*refused);
    best_.blocking_seconds = whole(std::get<LayerBlocks>(blocks));
    best_.chosen_seconds = std::numeric_limits<double>::infinity();
    for (const Compression& codecs : candidates()) {
      Layout with = layout_;
      with.compression = codecs;
      blocks = blocks_with(with);
      if (auto* refused = std::get_if<Infeasible>(&blocks)) return std::move(*refused);
      consider(with, std::get<LayerBlocks>(blocks));
    }
    const Compression& asked = layout_.compression;
    if (asked.search) {
      choose_codecs(model_, cluster_, job_, asked.max_error, prices_, best_.layout);
    }
    return std::move(best_);
  }

 private:
  std::optional<Infeasible> refusal() const {
    if (layout_.chunk_overlap.on()) {
      if (auto refused = overlap_refusal(model_, layout_, job_)) return refused;
    }
    return layout_.compression.on() ? compress_refusal(model_, layout_, job_) : std::nullopt;
  }

  // One layer is enough, and the same layers lie on every stage.
  Outcome<LayerBlocks> blocks_with(const Layout& layout) const {
    auto lowered = lower(model_, cluster_, layout, job_);
    if (auto* refused = std::get_if<Infeasible>(&lowered)) return std::move(*refused);
    const Lowered ready = recompute(compress(std::move(std::get<Lowered>(lowered))));
    LayerBlocks blocks = layer_blocks(ready, prices_, job_);
    hide_under_fillers(blocks);
    return blocks;
  }

  std::vector<Compression> candidates() const {
    const Compression& given = layout_.compression;
    if (!given.search) return {given};
    std::vector<Compression> list{Compression{}};
    if (compress_layers_refusal(model_, layout_, job_)) return list;
    for (const CodecChoice& c : codec_choices(given.max_error, model_.hidden, layout_.sp)) {
      if (c.codec.kind == CodecKind::None) continue;
      list.push_back({.forward = c.codec, .backward = c.codec, .sum = c.sum});
    }
    return list;
  }

  double whole(const LayerBlocks& blocks) const {
    const std::vector<std::int64_t> one{units_};
    return chain_seconds(blocks.forward, one, 3) / 3 + chain_seconds(blocks.backward, one, 3) / 3;
  }

  double slowdown() const {
    return prices_.costs == nullptr ? 1.0
                                    : prices_.costs->interference(DeviceKindId(0)).compute_slowdown;
  }

  // Chunks of the forward pass, in units, that suit both directions at once.
  Partition shared_partition(const LayerBlocks& blocks, std::int32_t most) const {
    if (!sequence_) {
      return best_layer_partition(joined(blocks.forward, blocks.backward), most, slowdown());
    }
    std::vector<std::vector<std::int64_t>> candidates;
    for (std::int64_t k = 1; k <= std::min<std::int64_t>(most, units_); ++k) {
      candidates.push_back(equal_chunks(units_, k));
    }
    candidates.push_back(best_layer_partition(blocks.forward, most, slowdown()).units);
    candidates.push_back(reversed(best_layer_partition(blocks.backward, most, slowdown()).units));
    Partition best{.units = {}, .seconds = std::numeric_limits<double>::infinity()};
    for (const std::vector<std::int64_t>& units : candidates) {
      const double seconds = layer_seconds(blocks.forward, units, slowdown()) +
                             layer_seconds(blocks.backward, reversed(units), slowdown());
      if (seconds < best.seconds) best = {.units = units, .seconds = seconds};
    }
    return best;
  }

  void consider(Layout with, const LayerBlocks& blocks) {
    ChunkOverlap& chunks = with.chunk_overlap;
    const std::int32_t most = std::max(1, chunks.max_chunks);
    std::vector<std::int64_t> forward, backward;  // in units and order of the micro-batch
    double seconds = 0;
    if (chunks.chosen() || chunks.equal || prices_.costs == nullptr) {
      forward = backward = equal_chunks(units_, std::min<std::int64_t>(units_, most));
      if (chunks.chosen()) {
        forward = to_units(borders_, chunks.forward);
        backward = to_units(borders_, chunks.backward);
      }
      seconds = chain_seconds(blocks.forward, forward, 3) / 3 +
                chain_seconds(blocks.backward, sequence_ ? reversed(backward) : backward, 3) / 3;
    } else if (layout_.sp || sequence_) {
      const Partition both = shared_partition(blocks, most);
      forward = backward = both.units;
      seconds = both.seconds;
    } else {
      const Partition ahead = best_layer_partition(blocks.forward, most, slowdown());
      const Partition back = best_layer_partition(blocks.backward, most, slowdown());
      forward = ahead.units;
      backward = back.units;
      seconds = ahead.seconds + back.seconds;
    }
    if (seconds >= best_.chosen_seconds) return;
    if (!chunks.chosen()) {
      chunks.forward = from_units(borders_, forward);
      chunks.backward = from_units(borders_, backward);
    }
    best_.chosen_seconds = seconds;
    best_.gain_bound = gain_bound(blocks.forward, forward);
    best_.layout = std::move(with);
  }

  const Transformer& model_;
  const Cluster& cluster_;
  const Layout& layout_;
  const Job& job_;
  const StagePrices& prices_;
  const bool sequence_;
  const std::vector<std::int64_t> borders_;
  const std::int64_t units_;
  PassChoice best_;
};

}  // namespace

Outcome<PassChoice> choose_passes(const Transformer& model, const Cluster& cluster,
                                  const Layout& layout, const Job& job, const StagePrices& prices) {
  return Chooser(model, cluster, layout, job, prices).choose();
}

}  // namespace gputwin
