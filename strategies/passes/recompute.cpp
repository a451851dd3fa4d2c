#include "strategies/passes/recompute.h"

#include <algorithm>
#include <map>

#include "sim/core/plan_builder.h"

namespace gputwin {
namespace {

bool is_attention_core(OpKind kind) {
  return kind == OpKind::AttentionScores || kind == OpKind::SoftmaxForward ||
         kind == OpKind::AttentionContext || kind == OpKind::FlashForward ||
         kind == OpKind::AttentionMerge;
}

bool is_attention_backward(OpKind kind) {
  return kind == OpKind::AttentionGradProbs || kind == OpKind::AttentionGradValue ||
         kind == OpKind::FlashBackward;
}

// Repeats operations of one forward segment in the backward segment of the same layer.
class Repetition {
 public:
  Repetition(PlanBuilder& builder, const Chunk& chunk, std::int32_t layer) : builder_(builder) {
    for (const Regathered& r : chunk.regathered) {
      if (r.layer == layer) fresh_[r.forward] = r.backward;
    }
  }

  void whole(const Segment& forward, Segment& backward) {
    std::vector<SegmentOp> repeated = clone(forward, 0, forward.ops.size());
    remap(backward);
    backward.ops.insert(backward.ops.begin(), repeated.begin(), repeated.end());
  }

  void attention_core(const Segment& forward, Segment& backward) {
    const auto of_core = [&](const SegmentOp& op) { return is_attention_core(kind(op)); };
    const auto& ops = forward.ops;
    const auto first = std::find_if(ops.begin(), ops.end(), of_core);
    if (first == ops.end()) return;
    const auto last = std::find_if(ops.rbegin(), ops.rend(), of_core).base();
    std::vector<SegmentOp> repeated = clone(forward, static_cast<std::size_t>(first - ops.begin()),
                                            static_cast<std::size_t>(last - ops.begin()));
    // The context itself is kept: the output projection's weight gradient reads it.
    const Call& context = builder_.plan().calls[std::prev(last)->call.value];
    fresh_.erase(context.writes[0].buffer);
    remap(backward);
    const auto at =
        std::find_if(backward.ops.begin(), backward.ops.end(),
                     [&](const SegmentOp& op) { return is_attention_backward(kind(op)); });
    backward.ops.insert(at, repeated.begin(), repeated.end());
  }

 private:
  OpKind kind(const SegmentOp& op) const { return builder_.plan().calls[op.call.value].op.kind; }

  std::vector<SegmentOp> clone(const Segment& forward, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const Call call = builder_.plan().calls[forward.ops[i].call.value];
      for (const View& v : call.writes) refresh(v.buffer);
    }
    std::vector<SegmentOp> repeated;
    for (std::size_t i = begin; i < end; ++i) {
      SegmentOp op = forward.ops[i];
      op.call = renamed(op.call);
      Name name = builder_.plan().names[op.name.value];
      name.phase = Phase::Recompute;
      op.name = builder_.name(std::move(name));
      repeated.push_back(op);
    }
    return repeated;
  }

  void refresh(BufferId original) {
    const Buffer& buffer = builder_.plan().buffers[original.value];
    if (!buffer.framed || fresh_.contains(original)) return;
    Buffer copy = buffer;
    copy.name += ".again";
    fresh_[original] = builder_.buffer(std::move(copy));
  }

  CallId renamed(CallId id) {
    Call call = builder_.plan().calls[id.value];
    for (auto* views : {&call.reads, &call.writes}) {
      for (View& v : *views) {
        if (const auto found = fresh_.find(v.buffer); found != fresh_.end())
          v.buffer = found->second;
      }
    }
    return builder_.call(std::move(call));
  }

  void remap(Segment& segment) {
    for (SegmentOp& op : segment.ops) op.call = renamed(op.call);
  }

  PlanBuilder& builder_;
  std::map<BufferId, BufferId> fresh_;
};

void recompute_chunk(PlanBuilder& builder, const Layout& layout, Chunk& chunk) {
  const std::int32_t stage = chunk.index % layout.pp;
  std::int32_t index = 0;
  for (const Segment& forward : chunk.forward) {
    if (forward.phase != Phase::Forward || forward.layer < 0) continue;
    const auto backward = std::find_if(
        chunk.backward.begin(), chunk.backward.end(),
        [&](const Segment& s) { return s.phase == Phase::Backward && s.layer == forward.layer; });
    Repetition repetition(builder, chunk, forward.layer);
    switch (layout.recompute) {
      case Recompute::None: break;
      case Recompute::Selective: repetition.attention_core(forward, *backward); break;
      case Recompute::Full: repetition.whole(forward, *backward); break;
      case Recompute::Block:
        if (index < layout.recomputed_layers(stage)) repetition.whole(forward, *backward);
        break;
    }
    ++index;
  }
}

}  // namespace

Lowered recompute(Lowered lowered) {
  if (lowered.layout.recompute == Recompute::None) return lowered;
  PlanBuilder builder(std::move(lowered.plan));
  for (StageSegments& stage : lowered.stages) {
    for (Chunk& chunk : stage.chunks) recompute_chunk(builder, lowered.layout, chunk);
  }
  lowered.plan = std::move(builder).take();
  return lowered;
}

}  // namespace gputwin
