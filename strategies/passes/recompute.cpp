#include "strategies/passes/recompute.h"

#include <algorithm>
#include <map>
#include <set>

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

// Moves queries, keys and values between context-parallel ranks, where it stands right before the
// attention core: the projection and the rotation before it end in other kinds.
bool is_exchange(OpKind kind) {
  return kind == OpKind::CastCopy || kind == OpKind::AllGather || kind == OpKind::AllToAll ||
         kind == OpKind::SendTo || kind == OpKind::RecvFrom;
}

// The operations that a module of `modules` is made of. Sequence parallelism gathers for them.
bool is_of_modules(const std::string& op, std::uint8_t modules) {
  const auto starts = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(),
                       [&](const char* w) { return op.starts_with(w); });
  };
  return ((modules & kRecomputeMlaUp) != 0 &&
          starts({"q_up", "kv_up", "mla_rope", "mla_key_value", "shared_key"})) ||
         ((modules & kRecomputeMoeActivation) != 0 && starts({"experts_activation"})) ||
         ((modules & kRecomputeNorms) != 0 && (op == "norm1" || op == "norm2")) ||
         ((modules & kRecomputeMlp) != 0 && (op == "activation" || starts({"fc1", "fc2_input"}))) ||
         ((modules & kRecomputeMoe) != 0 &&
          starts({"router", "expert_", "experts_fc1", "experts_activation", "experts_fc2_input"}));
}

// Keeps products, attention and what ranks added up.
bool is_kept_by_operator(OpKind kind) {
  return kind == OpKind::Gemm || kind == OpKind::GroupedGemm || is_attention_core(kind) ||
         kind == OpKind::ReduceScatter || kind == OpKind::AllReduce || kind == OpKind::AllToAll;
}

// Repeats operations of one forward segment in the backward segment of the same layer.
class Repetition {
 public:
  Repetition(PlanBuilder& builder, const Chunk& chunk, std::int32_t layer) : builder_(builder) {
    for (const Regathered& r : chunk.regathered) {
      if (r.layer == layer) fresh_[r.forward] = r.backward;
    }
  }

  // `stop_early`: without the operations whose results nobody reads.
  void whole(const Segment& forward, Segment& backward, bool stop_early) {
    std::vector<SegmentOp> repeated = clone(forward.ops);
    remap(backward);
    if (stop_early) drop_unread(repeated, backward);
    backward.ops.insert(backward.ops.begin(), repeated.begin(), repeated.end());
  }

  // Repeats the operations of some modules at the start of the backward pass of the layer.
  void modules(const Segment& forward, Segment& backward, std::uint8_t wanted) {
    std::vector<SegmentOp> of_modules;
    for (const SegmentOp& op : forward.ops) {
      if (is_of_modules(builder_.plan().names[op.name.value].op, wanted)) of_modules.push_back(op);
    }
    std::vector<SegmentOp> repeated = clone(of_modules);
    remap(backward);
    drop_unread(repeated, backward);
    backward.ops.insert(backward.ops.begin(), repeated.begin(), repeated.end());
  }

  void by_operator(const Segment& forward, Segment& backward) {
    const auto call = [&](const SegmentOp& op) -> const Call& {
      return builder_.plan().calls[op.call.value];
    };
    const bool gated = std::any_of(forward.ops.begin(), forward.ops.end(), [&](const auto& op) {
      return kind(op) == OpKind::ActivationForward && is_gated(call(op).op.activation);
    });
    std::set<BufferId> kept;
    for (const SegmentOp& op : forward.ops) {
      if (!is_kept_by_operator(kind(op))) continue;
      for (const View& v : call(op).writes) kept.insert(v.buffer);
    }
    const auto in_kept = [&](const View& v) { return kept.contains(v.buffer); };
    std::vector<SegmentOp> of_operators;
    for (const SegmentOp& op : forward.ops) {
      const std::vector<View>& writes = call(op).writes;
      const bool half =
          gated && kind(op) == OpKind::Gemm && builder_.plan().names[op.name.value].op == "fc1";
      if (half) in_place_.insert(writes[0].buffer);
      // What changes a kept result in place, as the rotation does, is kept with it.
      const bool none_kept = std::none_of(writes.begin(), writes.end(), in_kept);
      if (half || none_kept) of_operators.push_back(op);
    }
    std::vector<SegmentOp> repeated = clone(of_operators);
    for (SegmentOp& op : repeated) {
      if (kind(op) == OpKind::Gemm) op.call = second_half(op.call);
    }
    remap(backward);
    drop_unread(repeated, backward);
    backward.ops.insert(backward.ops.begin(), repeated.begin(), repeated.end());
  }

  void attention_core(const Segment& forward, Segment& backward) {
    const auto of_core = [&](const SegmentOp& op) { return is_attention_core(kind(op)); };
    const auto& ops = forward.ops;
    auto first = std::find_if(ops.begin(), ops.end(), of_core);
    if (first == ops.end()) return;
    // Its inputs as they were before the exchange are kept, so the exchange is repeated too.
    while (first != ops.begin() && is_exchange(kind(*std::prev(first)))) --first;
    const auto last = std::find_if(ops.rbegin(), ops.rend(), of_core).base();
    std::vector<SegmentOp> repeated = clone({first, last});
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

  std::vector<SegmentOp> clone(const std::vector<SegmentOp>& ops) {
    for (const SegmentOp& op : ops) {
      const Call call = builder_.plan().calls[op.call.value];
      for (const View& v : call.writes) refresh(v.buffer);
    }
    std::vector<SegmentOp> repeated;
    for (SegmentOp op : ops) {
      op.call = renamed(op.call);
      Name name = builder_.plan().names[op.name.value];
      name.phase = Phase::Recompute;
      op.name = builder_.name(std::move(name));
      repeated.push_back(op);
    }
    return repeated;
  }

  void drop_unread(std::vector<SegmentOp>& repeated, const Segment& backward) const {
    std::set<BufferId> read;
    const auto add_reads = [&](const SegmentOp& op) {
      for (const View& v : builder_.plan().calls[op.call.value].reads) read.insert(v.buffer);
    };
    for (const SegmentOp& op : backward.ops) add_reads(op);
    std::vector<SegmentOp> kept;
    for (auto op = repeated.rbegin(); op != repeated.rend(); ++op) {
      const std::vector<View>& writes = builder_.plan().calls[op->call.value].writes;
      // A message belongs to two ranks: what this one sends, another one's kernels read.
      const bool message = op->kind == Kind::Send || op->kind == Kind::Recv;
      if (!message && std::none_of(writes.begin(), writes.end(),
                                   [&](const View& v) { return read.contains(v.buffer); })) {
        continue;
      }
      add_reads(*op);
      kept.push_back(*op);
    }
    repeated.assign(kept.rbegin(), kept.rend());
  }

  void refresh(BufferId original) {
    const Buffer& buffer = builder_.plan().buffers[original.value];
    if (!buffer.framed || fresh_.contains(original) || in_place_.contains(original)) return;
    Buffer copy = buffer;
    copy.name += ".again";
    fresh_[original] = builder_.buffer(std::move(copy));
  }

  // Of the columns of a product C = A B^T.
  CallId second_half(CallId id) {
    Call call = builder_.plan().calls[id.value];
    View &weight = call.reads[1], &out = call.writes[0];
    const std::int64_t half = out.cols / 2;
    call.op.dims[1] = half;
    weight.rows = half, weight.offset += half * weight.ld;
    out.cols = half, out.offset += half;
    if (call.reads.size() > 2) call.reads[2].cols = half, call.reads[2].offset += half;  // bias
    return builder_.call(std::move(call));
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
  std::set<BufferId> in_place_;  // written again where they were
};

void recompute_chunk(PlanBuilder& builder, const Layout& layout, bool stop_early,
                     std::int32_t stage, Chunk& chunk) {
  std::int32_t index = 0;
  for (const Segment& forward : chunk.forward) {
    if (forward.phase != Phase::Forward || forward.layer < 0) continue;
    const auto backward = std::find_if(
        chunk.backward.begin(), chunk.backward.end(),
        [&](const Segment& s) { return s.phase == Phase::Backward && s.layer == forward.layer; });
    Repetition repetition(builder, chunk, forward.layer);
    switch (layout.recompute) {
      case Recompute::None:
      case Recompute::AllButLast: break;  // of layer graphs, which repeat their stages themselves
      case Recompute::Selective: repetition.attention_core(forward, *backward); break;
      case Recompute::Full: repetition.whole(forward, *backward, stop_early); break;
      case Recompute::Block:
        if (index < layout.recomputed_layers(stage)) {
          repetition.whole(forward, *backward, stop_early);
        }
        break;
    }
    const bool alone = layout.recompute == Recompute::None;
    if (alone && (layout.recompute_modules & kRecomputeOps) != 0) {
      repetition.by_operator(forward, *backward);
    } else if (alone && layout.recompute_modules != 0) {
      repetition.modules(forward, *backward, layout.recompute_modules);
    }
    ++index;
  }
}

}  // namespace

Lowered recompute(Lowered lowered) {
  const Layout& layout = lowered.layout;
  if (layout.recompute == Recompute::None && layout.recompute_modules == 0) return lowered;
  PlanBuilder builder(std::move(lowered.plan));
  for (std::size_t s = 0; s < lowered.stages.size(); ++s) {
    for (Chunk& chunk : lowered.stages[s].chunks) {
      recompute_chunk(builder, lowered.layout, lowered.recompute_stops_early,
                      static_cast<std::int32_t>(s), chunk);
    }
  }
  lowered.plan = std::move(builder).take();
  return lowered;
}

}  // namespace gputwin
