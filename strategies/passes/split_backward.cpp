#include "strategies/passes/split_backward.h"

#include <map>

namespace gputwin {
namespace {

class Splitter {
 public:
  explicit Splitter(const Plan& plan) : plan_(plan) {}

  void split(Chunk& chunk) const {
    chunk.weight_grad.clear();
    for (Segment& backward : chunk.backward) {
      Segment later{.phase = Phase::WeightGrad, .layer = backward.layer, .ops = {}};
      if (backward.phase == Phase::Reduce) {
        std::swap(later.ops, backward.ops);  // gradients of a micro-batch, added when complete
      } else {
        move_weight_grads(backward, later);
      }
      chunk.weight_grad.push_back(std::move(later));
    }
  }

 private:
  const Call& call(const SegmentOp& op) const { return plan_.calls[op.call.value]; }
  Phase phase(const SegmentOp& op) const { return plan_.names[op.name.value].phase; }
  bool is_framed(const View& v) const { return plan_.buffers[v.buffer.value].framed; }

  // From the last operation to the first: a weight gradient goes, and so does an operation of the
  // backward pass whose results are read by operations that go and by no other.
  void move_weight_grads(Segment& backward, Segment& later) const {
    std::map<BufferId, std::pair<bool, bool>> used;  // by operations that stay, by ones that go
    std::vector<SegmentOp> stay, go;
    for (auto op = backward.ops.rbegin(); op != backward.ops.rend(); ++op) {
      const Call& c = call(*op);
      const bool goes = is_weight_grad(*op) || serves(*op, used);
      for (const auto* views : {&c.reads, &c.writes}) {
        for (const View& v : *views) (goes ? used[v.buffer].second : used[v.buffer].first) = true;
      }
      (goes ? go : stay).push_back(*op);
    }
    backward.ops.assign(stay.rbegin(), stay.rend());
    later.ops.assign(go.rbegin(), go.rend());
  }

  bool is_weight_grad(const SegmentOp& op) const {
    return phase(op) == Phase::WeightGrad && call(op).op.kind == OpKind::Gemm;
  }

  bool serves(const SegmentOp& op, const std::map<BufferId, std::pair<bool, bool>>& used) const {
    if (phase(op) != Phase::Backward && phase(op) != Phase::WeightGrad) return false;
    if (op.kind != Kind::Kernel && op.kind != Kind::Collective) return false;
    bool read = false;
    for (const View& v : call(op).writes) {
      if (!is_framed(v)) return false;
      const auto found = used.find(v.buffer);
      if (found == used.end()) continue;
      if (found->second.first) return false;
      read = true;
    }
    return read;
  }

  const Plan& plan_;
};

}  // namespace

Lowered split_backward(Lowered lowered) {
  const Splitter splitter(lowered.plan);
  for (StageSegments& stage : lowered.stages) {
    for (Chunk& chunk : stage.chunks) splitter.split(chunk);
  }
  return lowered;
}

}  // namespace gputwin
