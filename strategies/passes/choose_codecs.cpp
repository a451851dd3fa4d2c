#include "strategies/passes/choose_codecs.h"

#include <algorithm>

#include "sim/core/codecs.h"
#include "strategies/lowering/transformer.h"
#include "strategies/passes/compress.h"

namespace gputwin {
namespace {

struct Spent {
  double kernels = 0, exchanges = 0;
};

void add(const Lowered& lowered, const StageClock& clock, const std::vector<SegmentOp>& ops,
         Spent& sum) {
  for (const SegmentOp& op : ops) {
    const Call& call = lowered.plan.calls[op.call.value];
    if (op.kind == Kind::Kernel) sum.kernels += clock.kernel(call);
    if (op.kind == Kind::Collective) sum.exchanges += clock.collective(call);
  }
}

double gradient_seconds(const Lowered& lowered, const StagePrices& prices) {
  const StageSegments& stage = lowered.stages[0];
  const StageClock clock(lowered, 0, prices);
  Spent reducing, backward;
  for (const Reduction& r : stage.reductions) add(lowered, clock, r.operations.ops, reducing);
  for (const Segment& s : stage.finish) {
    if (s.phase == Phase::Reduce) add(lowered, clock, s.ops, reducing);
  }
  for (const Chunk& chunk : stage.chunks) {
    for (const Segment& s : chunk.backward) add(lowered, clock, s.ops, backward);
  }
  const double hides = stage.reductions.empty() ? 0.0 : backward.kernels;
  return reducing.kernels + std::max(reducing.exchanges, hides);
}

double message_seconds(const Lowered& lowered, const StagePrices& prices) {
  const Chunk& from = lowered.stages[0].chunks[0];
  const Chunk& to = lowered.stages[1].chunks[0];
  const StageClock sender(lowered, 0, prices), receiver(lowered, 1, prices);
  Spent coding;
  if (lowered.layout.compression.on_messages()) {
    add(lowered, sender, from.forward.back().ops, coding);
    add(lowered, receiver, to.forward.front().ops, coding);
  }
  return coding.kernels + sender.message(from.output.bytes(), receiver);
}

// The fastest of `choices`, the first of equals; `price`: seconds of the lowered job with one.
template <class With, class Price>
Compression fastest(const Lowered& plain, const std::vector<CodecChoice>& choices, With with,
                    Price price) {
  Compression best;
  double least = 0;
  for (const CodecChoice& choice : choices) {
    Lowered lowered = plain;
    lowered.layout.compression = with(choice);
    const Compression now = lowered.layout.compression;
    lowered = compress(std::move(lowered));
    const double seconds = price(lowered);
    if (choice.codec.kind != CodecKind::None && seconds >= least) continue;
    best = now;
    least = seconds;
  }
  return best;
}

}  // namespace

std::vector<CodecChoice> codec_choices(double max_error, std::int64_t width, bool scattered) {
  std::vector<CodecChoice> list{{}};
  for (const CodecEntry& entry : codec_table()) {
    if (entry.usual.kind == CodecKind::None || entry.usual.kind == CodecKind::LowRank) continue;
    for (const double keep : {0.1, 0.2, 0.3, 0.5}) {
      Codec codec = entry.usual;
      const bool sparse = codec.kind == CodecKind::TopkPwq || codec.kind == CodecKind::Topk;
      if (sparse) codec.keep = keep;
      for (const CompressedSum sum : {CompressedSum::TwoStep, CompressedSum::Gather}) {
        if (scattered && sum == CompressedSum::Gather) continue;
        const auto error = exchange_error(codec, sum, width, scattered);
        if (error.value_or(1.0) <= max_error) list.push_back({codec, sum});
      }
      if (!sparse) break;
    }
  }
  return list;
}

void choose_codecs(const Transformer& model, const Cluster& cluster, const Job& job,
                   double max_error, const StagePrices& prices, Layout& layout) {
  if (prices.costs == nullptr) return;
  const bool gradients = !compress_gradients_refusal(model, layout);
  const bool messages = !compress_messages_refusal(layout, job);
  if (!gradients && !messages) return;
  Layout padded = layout;
  padded.compression = {.search = true};
  const auto outcome = lower(model, cluster, padded, job);
  const auto* lowered = std::get_if<Lowered>(&outcome);
  if (lowered == nullptr) return;
  Compression& chosen = layout.compression;
  if (gradients) {
    std::vector<CodecChoice> choices = codec_choices(max_error, kGradientRow, layout.zero == 1);
    // One setting says how sums are made, of layers and of gradients.
    if (chosen.on_layers()) {
      std::erase_if(choices, [&](const CodecChoice& c) {
        return c.codec.kind != CodecKind::None && c.sum != chosen.sum;
      });
    }
    const Compression best = fastest(
        *lowered, choices,
        [](const CodecChoice& c) { return Compression{.sum = c.sum, .reduced = c.codec}; },
        [&](const Lowered& l) { return gradient_seconds(l, prices); });
    chosen.reduced = best.reduced;
    if (best.on_gradients()) chosen.sum = best.sum;
  }
  if (!messages) return;
  const Compression best = fastest(
      *lowered, codec_choices(max_error, model.hidden, true),
      [](const CodecChoice& c) { return Compression{.sent = c.codec, .sent_back = c.codec}; },
      [&](const Lowered& l) { return message_seconds(l, prices); });
  chosen.sent = best.sent;
  chosen.sent_back = best.sent_back;
}

}  // namespace gputwin
