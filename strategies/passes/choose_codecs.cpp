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

// What operations of a stage take on its first rank.
class StageClock {
 public:
  StageClock(const Lowered& lowered, std::int32_t stage, const StagePrices& prices)
      : plan_(lowered.plan), prices_(prices) {
    rank_ = lowered.layout.rank({.tp = 0, .cp = 0, .dp = 0, .pp = stage});
  }

  void add(const std::vector<SegmentOp>& ops, Spent& sum) const {
    for (const SegmentOp& op : ops) {
      const Call& call = plan_.calls[op.call.value];
      if (op.kind == Kind::Kernel) sum.kernels += kernel(call);
      if (op.kind == Kind::Collective) sum.exchanges += collective(call);
    }
  }
  double message(const View& view, RankId to) const {
    return scheduled(OpKind::SendTo, view.bytes(), {gpu(rank_), gpu(to)});
  }

 private:
  GpuId gpu(RankId rank) const { return plan_.ranks[rank.value].gpu; }
  double kernel(const Call& call) const {
    const DeviceKindId device = prices_.topology->device_kind(gpu(rank_));
    return prices_.costs->kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), device)
        .time.value;
  }
  double collective(const Call& call) const {
    std::vector<GpuId> members;
    const CommunicatorId group = plan_.communicator(rank_, call.op.slot);
    for (const RankId r : plan_.communicators[group.value].members) members.push_back(gpu(r));
    const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
    return scheduled(call.op.kind, bytes, members);
  }
  double scheduled(OpKind kind, Bytes bytes, const std::vector<GpuId>& members) const {
    const CollectiveSchedule schedule = prices_.costs->collective(kind, bytes, members);
    return closed_form(schedule, members, *prices_.topology).value;
  }

  const Plan& plan_;
  const StagePrices& prices_;
  RankId rank_;
};

double gradient_seconds(const Lowered& lowered, const StagePrices& prices) {
  const StageSegments& stage = lowered.stages[0];
  const StageClock clock(lowered, 0, prices);
  Spent reducing, backward;
  for (const Reduction& r : stage.reductions) clock.add(r.operations.ops, reducing);
  for (const Segment& s : stage.finish) {
    if (s.phase == Phase::Reduce) clock.add(s.ops, reducing);
  }
  for (const Chunk& chunk : stage.chunks) {
    for (const Segment& s : chunk.backward) clock.add(s.ops, backward);
  }
  const double hides = stage.reductions.empty() ? 0.0 : backward.kernels;
  return reducing.kernels + std::max(reducing.exchanges, hides);
}

double message_seconds(const Lowered& lowered, const StagePrices& prices) {
  const Chunk& from = lowered.stages[0].chunks[0];
  const Chunk& to = lowered.stages[1].chunks[0];
  const RankId next = lowered.layout.rank({.tp = 0, .cp = 0, .dp = 0, .pp = 1});
  const StageClock sender(lowered, 0, prices), receiver(lowered, 1, prices);
  Spent coding;
  if (lowered.layout.compression.on_messages()) {
    sender.add(from.forward.back().ops, coding);
    receiver.add(to.forward.front().ops, coding);
  }
  return coding.kernels + sender.message(from.output, next);
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
