#include "strategies/passes/fused_bound.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/core/plan_builder.h"

namespace gputwin {
namespace {

class Fuser {
 public:
  Fuser(PlanBuilder& builder, const StageClock& clock) : builder_(builder), clock_(clock) {}

  void fuse(Segment& segment) {
    gathered_.clear();
    std::vector<SegmentOp>& ops = segment.ops;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Call& call = builder_.plan().calls[ops[i].call.value];
      if (ops[i].kind == Kind::Collective && call.op.kind == OpKind::AllGather) {
        gathered_[call.writes[0].buffer] = clock_.collective(call);
      }
      if (ops[i].kind != Kind::Kernel || call.op.kind != OpKind::Gemm) continue;
      // Each gather is fused with the first product that reads it, each sum with the last writer.
      double under = take_gather(call);
      if (under == 0) under = summed(ops, i, call);
      if (under > 0) ops[i].call = stated(call, under);
    }
  }

 private:
  double take_gather(const Call& call) {
    for (const View& v : call.reads) {
      const auto found = gathered_.find(v.buffer);
      if (found != gathered_.end()) return std::exchange(found->second, 0.0);
    }
    return 0;
  }

  // Of the collective that adds what the product at `at` writes, if it comes next on that buffer.
  double summed(const std::vector<SegmentOp>& ops, std::size_t at, const Call& product) const {
    const BufferId buffer = product.writes[0].buffer;
    const auto touches = [&](const View& v) { return v.buffer == buffer; };
    for (std::size_t i = at + 1; i < ops.size(); ++i) {
      const Call& call = builder_.plan().calls[ops[i].call.value];
      const bool reads = std::any_of(call.reads.begin(), call.reads.end(), touches);
      if (!reads && std::none_of(call.writes.begin(), call.writes.end(), touches)) continue;
      const OpKind kind = call.op.kind;
      const bool sums = kind == OpKind::AllReduce || kind == OpKind::ReduceScatter;
      return ops[i].kind == Kind::Collective && sums ? clock_.collective(call) : 0.0;
    }
    return 0;
  }

  CallId stated(Call call, double under) {
    constexpr std::int64_t kTile = 128;
    Call tile = call;
    const std::int64_t m = tile.op.dims[0] = std::min(kTile, call.op.dims[0]);
    const std::int64_t n = tile.op.dims[1] = std::min(kTile, call.op.dims[1]);
    // Sizes for the price alone.
    const auto sized = [](View& v, std::int64_t elements) { v.rows = 1, v.cols = elements; };
    sized(tile.reads[0], m * call.op.dims[2]);
    sized(tile.reads[1], n * call.op.dims[2]);
    sized(tile.writes[0], m * n);
    const double rest = std::max(0.0, clock_.kernel(call) - under);
    call.op.stated = Seconds(rest + clock_.kernel(tile));
    return builder_.call(std::move(call));
  }

  PlanBuilder& builder_;
  const StageClock& clock_;
  std::map<BufferId, double> gathered_;  // seconds of gathers that no product is fused with yet
};

}  // namespace

Lowered fused_bound(Lowered lowered, const StagePrices& prices) {
  if (prices.costs == nullptr) return lowered;
  std::vector<StageClock> clocks;
  for (std::int32_t s = 0; s < lowered.layout.pp; ++s) clocks.emplace_back(lowered, s, prices);
  PlanBuilder builder(std::move(lowered.plan));
  for (std::size_t s = 0; s < lowered.stages.size(); ++s) {
    Fuser fuser(builder, clocks[s]);
    for (Chunk& chunk : lowered.stages[s].chunks) {
      for (auto* list : {&chunk.forward, &chunk.backward}) {
        for (Segment& segment : *list) {
          if (segment.layer >= 0) fuser.fuse(segment);
        }
      }
    }
  }
  lowered.plan = std::move(builder).take();
  return lowered;
}

}  // namespace gputwin
