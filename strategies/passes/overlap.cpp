#include "strategies/passes/overlap.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <numeric>

#include "sim/core/check.h"
#include "sim/core/plan_builder.h"
#include "strategies/passes/chunk_cut.h"

namespace gputwin {
namespace {

// An operation of a run of layers and the segment it comes from.
struct RunOp {
  SegmentOp op;
  std::size_t segment = 0;
};

// Kernels, then collectives; what a chunk does between two waits.
struct Stage {
  std::vector<RunOp> ops;
  std::vector<RunOp> fillers;  // weight gradients, once all chunks have passed
  // Chunks of a sequence pass one after the other: from its start, or from its end.
  bool in_order = false, in_reverse = false;
};

bool is_filler(const Plan& plan, const SegmentOp& op) {
  return op.kind == Kind::Kernel && plan.names[op.name.value].phase == Phase::WeightGrad;
}

std::vector<Stage> stages_of(const Plan& plan, const std::vector<RunOp>& ops) {
  std::vector<Stage> list(1);
  bool communicated = false;
  for (const RunOp& o : ops) {
    if (is_filler(plan, o.op)) {
      list.back().fillers.push_back(o);
      continue;
    }
    if (o.op.kind == Kind::Kernel && communicated) {
      list.emplace_back();
      communicated = false;
    }
    communicated = communicated || o.op.kind == Kind::Collective;
    list.back().ops.push_back(o);
    const OpKind kind = plan.calls[o.op.call.value].op.kind;
    list.back().in_reverse = list.back().in_reverse || adds_to_earlier_keys(kind);
    list.back().in_order = list.back().in_order || reads_earlier_keys(kind);
  }
  return list;
}

// Issues the chunks of a run of layers stage by stage.
class RunOrder {
 public:
  RunOrder(PlanBuilder& builder, ChunkCutter& cutter, const StageClock& clock,
           std::vector<Stage> stages, const std::vector<std::int64_t>& units, bool sequence)
      : builder_(builder),
        cutter_(cutter),
        clock_(clock),
        stages_(std::move(stages)),
        units_(units),
        sequence_(sequence) {
    for (const Stage& s : stages_) from_end_ = from_end_ || (sequence_ && s.in_reverse);
  }

  // Operations in order of issue; each knows its segment.
  std::vector<RunOp> issue() {
    const std::size_t chunks = units_.size();
    next_.assign(chunks, 0);
    ready_.assign(chunks, 0.0);
    for (;;) {
      const std::size_t chunk = earliest();
      if (chunk == chunks) break;
      fill(ready_[chunk]);
      advance(chunk);
    }
    while (!pending_.empty()) run_filler();
    return std::move(issued_);
  }

 private:
  // Weight gradients that wait for longer than this many stages keep too many activations alive.
  static constexpr std::size_t kMostPending = 4;

  std::size_t earliest() const {
    std::size_t best = next_.size();
    double when = std::numeric_limits<double>::infinity();
    for (std::size_t k = 0; k < next_.size(); ++k) {
      const std::size_t i = from_end_ ? next_.size() - 1 - k : k;
      if (next_[i] == stages_.size() || must_wait(i)) continue;
      const double start = std::max(computed_, ready_[i]);
      const bool same = best < next_.size() && start == when;
      if (start < when || (same && next_[i] < next_[best])) {
        best = i;
        when = start;
      }
    }
    return best;
  }

  // Attention of chunk i forward reads keys of the chunks before it; backward it adds to their
  // gradients. What is recomputed reads keys that were kept, or all its stages run in order.
  bool must_wait(std::size_t i) const {
    const Stage& stage = stages_[next_[i]];
    if (!sequence_) return false;
    if (stage.in_reverse) return i + 1 < next_.size() && next_[i + 1] <= next_[i];
    return stage.in_order && i > 0 && next_[i - 1] <= next_[i];
  }

  void advance(std::size_t chunk) {
    const std::int64_t first = std::accumulate(
        units_.begin(), units_.begin() + static_cast<std::ptrdiff_t>(chunk), std::int64_t{0});
    const std::int64_t all = std::accumulate(units_.begin(), units_.end(), std::int64_t{0});
    const ChunkRange range{.first = first, .last = first + units_[chunk], .all = all};
    computed_ = std::max(computed_, ready_[chunk]);
    double arrives = computed_;
    for (const RunOp& o : stages_[next_[chunk]].ops) {
      const Call whole = builder_.plan().calls[o.op.call.value];
      for (const ChunkCall& piece : cutter_.cut(whole, range)) {
        if (o.op.kind == Kind::Kernel) {
          computed_ += clock_.kernel(piece.call);
          arrives = std::max(arrives, computed_);
        } else {
          communicated_ = std::max(communicated_, computed_) + clock_.collective(piece.call);
          arrives = communicated_;
        }
        issued_.push_back({renamed(o.op, piece, chunk), o.segment});
      }
    }
    ready_[chunk] = arrives;
    const std::size_t passed = ++next_[chunk];
    if (std::all_of(next_.begin(), next_.end(), [&](std::size_t n) { return n >= passed; })) {
      pending_.push_back(passed - 1);
      while (pending_.size() > kMostPending) run_filler();
    }
  }

  // Weight gradients while no chunk can go on.
  void fill(double until) {
    while (computed_ < until && !pending_.empty()) run_filler();
  }
  void run_filler() {
    for (const RunOp& o : stages_[pending_.front()].fillers) {
      computed_ += clock_.kernel(builder_.plan().calls[o.op.call.value]);
      issued_.push_back(o);
    }
    pending_.pop_front();
  }

  SegmentOp renamed(SegmentOp op, const ChunkCall& piece, std::size_t chunk) {
    op.call = builder_.call(piece.call);
    Name name = builder_.plan().names[op.name.value];
    name.op += piece.suffix;
    const auto chunks = static_cast<std::int32_t>(units_.size());
    name.occurrence = name.occurrence * chunks + static_cast<std::int32_t>(chunk);
    op.name = builder_.name(std::move(name));
    return op;
  }

  PlanBuilder& builder_;
  ChunkCutter& cutter_;
  const StageClock& clock_;
  std::vector<Stage> stages_;
  const std::vector<std::int64_t>& units_;
  bool sequence_, from_end_ = false;
  std::vector<std::size_t> next_;  // by chunk: its next stage
  std::vector<double> ready_;      // when that may start
  double computed_ = 0, communicated_ = 0;
  std::deque<std::size_t> pending_;  // stages whose weight gradients may run
  std::vector<RunOp> issued_;
};

bool is_layer(const Segment& s) {
  return s.layer >= 0 && (s.phase == Phase::Forward || s.phase == Phase::Backward);
}

class Cutter {
 public:
  Cutter(PlanBuilder& builder, const Layout& layout, const StageClock& clock)
      : builder_(builder),
        layout_(layout),
        clock_(clock),
        sequence_(layout.chunk_overlap.sequence(layout.micro_batch)),
        cutter_(builder, sequence_) {}

  void cut_list(std::vector<Segment>& list, const std::vector<std::int64_t>& units) {
    if (units.size() < 2) return;
    for (std::size_t s = 0; s < list.size();) {
      if (!is_layer(list[s])) {
        if (layout_.sp) cut_exchanges(list[s], units);
        ++s;
        continue;
      }
      std::size_t end = s;
      while (end < list.size() && is_layer(list[end])) ++end;
      cut_run(list, s, end, units);
      s = end;
    }
  }

 private:
  void cut_run(std::vector<Segment>& list, std::size_t first, std::size_t end,
               const std::vector<std::int64_t>& units) {
    std::vector<RunOp> ops;
    std::vector<std::size_t> left(list.size(), 0);
    for (std::size_t s = first; s < end; ++s) {
      for (const SegmentOp& op : std::exchange(list[s].ops, {})) ops.push_back({op, s});
    }
    RunOrder order(builder_, cutter_, clock_, stages_of(builder_.plan(), ops), units, sequence_);
    const std::vector<RunOp> issued = order.issue();
    for (const RunOp& o : issued) ++left[o.segment];
    // A segment ends with the last operation that was its own: what follows a segment, such as the
    // reduction of its gradients, still finds them complete.
    std::size_t s = first;
    for (const RunOp& o : issued) {
      while (s + 1 < end && left[s] == 0) ++s;
      list[s].ops.push_back(o.op);
      --left[o.segment];
    }
  }

  // At the ends of the model only what turns token shards into whole tensors and back is cut.
  void cut_exchanges(Segment& segment, const std::vector<std::int64_t>& units) {
    const std::int64_t all = std::accumulate(units.begin(), units.end(), std::int64_t{0});
    for (const SegmentOp& op : std::exchange(segment.ops, {})) {
      const Call call = builder_.plan().calls[op.call.value];
      if (!exchanges_tokens(call)) {
        segment.ops.push_back(op);
        continue;
      }
      std::int64_t first = 0;
      for (std::size_t i = 0; i < units.size(); ++i) {
        SegmentOp piece = op;
        const ChunkRange range{.first = first, .last = first + units[i], .all = all};
        piece.call = builder_.call(cutter_.cut(call, range)[0].call);
        Name name = builder_.plan().names[op.name.value];
        name.occurrence = static_cast<std::int32_t>(i);
        piece.name = builder_.name(std::move(name));
        segment.ops.push_back(piece);
        first += units[i];
      }
    }
  }

  bool exchanges_tokens(const Call& call) const {
    const OpKind k = call.op.kind;
    const bool moves = k == OpKind::AllGather || k == OpKind::ReduceScatter ||
                       (k == OpKind::CastCopy && call.op.slot.valid());
    const Plan& plan = builder_.plan();
    return moves && plan.buffers[call.reads[0].buffer.value].framed &&
           plan.buffers[call.writes[0].buffer.value].framed;
  }

  PlanBuilder& builder_;
  const Layout& layout_;
  const StageClock& clock_;
  bool sequence_;
  ChunkCutter cutter_;
};

const Segment* middle_layer(const std::vector<Segment>& list) {
  std::vector<const Segment*> layers;
  for (const Segment& s : list) {
    if (is_layer(s)) layers.push_back(&s);
  }
  return layers.empty() ? nullptr : layers[layers.size() / 2];
}

// What blocks of a layer are priced for: the parts of a micro-batch between these borders.
struct Pricing {
  std::vector<std::int64_t> borders;
  bool cuts = false, sequence = false, from_end = false;

  std::int64_t units() const { return static_cast<std::int64_t>(borders.size()) - 1; }
  // True if all parts are alike.
  bool even() const {
    for (std::size_t i = 1; i < borders.size(); ++i) {
      if (borders[i] - borders[i - 1] != borders[1]) return false;
    }
    return true;
  }
  // `x` units after `m` of them, in order of issue.
  ChunkRange range(std::int64_t m, std::int64_t x) const {
    const std::int64_t first = from_end ? units() - m - x : m;
    return {.first = borders[static_cast<std::size_t>(first)],
            .last = borders[static_cast<std::size_t>(first + x)],
            .all = borders.back()};
  }
};

// Of kernels and collectives of a chunk.
std::pair<double, double> seconds_of(const Plan& plan, ChunkCutter& cutter, const StageClock& clock,
                                     const Stage& stage, const ChunkRange& range) {
  double c = 0, r = 0;
  for (const RunOp& o : stage.ops) {
    const Call whole = plan.calls[o.op.call.value];
    for (const ChunkCall& piece : cutter.cut(whole, range)) {
      (o.op.kind == Kind::Kernel ? c : r) +=
          o.op.kind == Kind::Kernel ? clock.kernel(piece.call) : clock.collective(piece.call);
    }
  }
  return {c, r};
}

// A chunk after `m` units: those of the sequence's start, or of its end backward.
void place(const Plan& plan, ChunkCutter& cutter, const StageClock& clock, const Stage& stage,
           const Pricing& p, BlockCosts& block) {
  const auto units = static_cast<std::size_t>(p.units());
  block.placed.assign(units, std::vector<double>(units + 1, 0.0));
  if (!p.even()) block.placed_exchange = block.placed;
  for (std::size_t m = 0; m < units; ++m) {
    for (std::size_t x = 1; m + x <= units; ++x) {
      const ChunkRange range = p.range(static_cast<std::int64_t>(m), static_cast<std::int64_t>(x));
      const auto [c, r] = seconds_of(plan, cutter, clock, stage, range);
      block.placed[m][x] = c;
      if (!p.even()) block.placed_exchange[m][x] = r;
    }
  }
}

// Not cut: costs of the whole, those of a part in proportion, since what is not cut need not divide
// by samples (context parallelism).
std::vector<BlockCosts> blocks_of(PlanBuilder& builder, const Segment& segment,
                                  const StageClock& clock, const Pricing& p) {
  const Plan& plan = builder.plan();
  ChunkCutter cutter(builder, p.sequence);
  std::vector<RunOp> ops;
  for (const SegmentOp& op : segment.ops) ops.push_back({op, 0});
  std::vector<BlockCosts> blocks;
  for (const Stage& stage : stages_of(plan, ops)) {
    BlockCosts block{.compute = {0.0}, .communicate = {0.0}};
    for (std::int64_t x = 1; x <= p.units(); ++x) {
      const std::int64_t end = p.borders[static_cast<std::size_t>(p.cuts ? x : p.units())];
      const auto [c, r] = seconds_of(plan, cutter, clock, stage, {0, end, p.borders.back()});
      const double share = p.cuts ? 1.0 : static_cast<double>(x) / static_cast<double>(p.units());
      block.compute.push_back(c * share);
      block.communicate.push_back(r * share);
    }
    const bool attends = stage.in_order || stage.in_reverse;
    if (p.cuts && p.sequence && (attends || !p.even())) place(plan, cutter, clock, stage, p, block);
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace

Lowered overlap(Lowered lowered, const StagePrices& prices) {
  const ChunkOverlap& chosen = lowered.layout.chunk_overlap;
  GPUTWIN_CHECK(chosen.chosen(), "chunks are chosen before they are cut");
  GPUTWIN_CHECK(!chosen.sequence(lowered.layout.micro_batch) || chosen.forward == chosen.backward,
                "scores of a chunk are those of both directions");
  if (chosen.forward.size() < 2 && chosen.backward.size() < 2) return lowered;
  std::vector<StageClock> clocks;
  for (std::int32_t s = 0; s < lowered.layout.pp; ++s) clocks.emplace_back(lowered, s, prices);
  PlanBuilder builder(std::move(lowered.plan));
  for (std::size_t s = 0; s < lowered.stages.size(); ++s) {
    Cutter cutter(builder, lowered.layout, clocks[s]);
    for (Chunk& chunk : lowered.stages[s].chunks) {
      cutter.cut_list(chunk.forward, chosen.forward);
      cutter.cut_list(chunk.backward, chosen.backward);
    }
  }
  lowered.plan = std::move(builder).take();
  return lowered;
}

std::optional<Infeasible> overlap_refusal(const Transformer& model, const Layout& layout,
                                          const Job& job) {
  const auto no = [](std::string reason, std::string fix) {
    return Infeasible{.reason = "the overlap pass does not cut " + std::move(reason),
                      .fix = std::move(fix)};
  };
  if (model.has_experts()) return no("experts' rows", "use a model without experts");
  if (layout.tp < 2) return no("layers without tensor parallelism", "set layout.tp to 2 or more");
  const bool sequence = layout.chunk_overlap.sequence(layout.micro_batch);
  if (layout.micro_batch < 2 && !sequence) {
    return no("a micro-batch of one sample by samples",
              "set layout.micro_batch to 2 or more, or split of the pass overlap to sequence");
  }
  if (layout.micro_batch > 1 && sequence) {
    return no("the sequences of several samples",
              "set layout.micro_batch to 1, or split of the pass overlap to samples");
  }
  if (sequence && !model.causal) {
    return no("sequences that attend both ways",
              "set layout.micro_batch to 2 or more and split of the pass overlap to samples");
  }
  if (sequence && model.has_mla()) {
    return no("sequences of latent attention", "set split of the pass overlap to samples");
  }
  if (layout.zero >= 2) return no("weights that are gathered by layer", "set layout.zero to 1");
  if (layout.cp > 1) return no("sequences that are spread over ranks", "set layout.cp to 1");
  if (layout.tp_overlap != TpOverlap::None && layout.tp_overlap != TpOverlap::Columns) {
    return no("collectives that are cut already", "set layout.tp_overlap to none");
  }
  if (bits(job.precision.compute) < 16) {
    return no("copies in 8 or 4 bits", "set job.precision.compute to bf16");
  }
  if (job.lora_rank > 0) return no("adapters", "leave out job.lora_rank");
  if (layout.sp && job.sequence % layout.tp != 0) {
    return no("samples that tp does not divide", "set layout.sp to false");
  }
  return std::nullopt;
}

std::vector<std::string> chunk_notes(const Layout& layout, const Job& job) {
  const ChunkOverlap& chunks = layout.chunk_overlap;
  if (!chunks.on()) {
    if (!chunks.named) return {};
    return {"the pass overlap cuts nothing: max_chunks is 1"};
  }
  const auto parts = static_cast<std::int64_t>(chunk_borders(layout, job).size()) - 1;
  if (parts >= chunks.max_chunks || (parts > 1 && !chunks.equal)) return {};
  const bool sequence = chunks.sequence(layout.micro_batch);
  const std::string whole = sequence ? "a sequence of " + std::to_string(job.sequence) + " tokens"
                                     : "a micro-batch of " + std::to_string(layout.micro_batch) +
                                           " samples";
  return {"the pass overlap cuts " + whole + " into " + std::to_string(parts) +
          " chunks, not the " + std::to_string(chunks.max_chunks) + " of max_chunks: it has no " +
          "more parts" + (sequence && layout.sp ? " that tp divides" : "")};
}

std::vector<std::int64_t> chunk_borders(const Layout& layout, const Job& job) {
  constexpr std::int64_t kMostUnits = 16, kFewUnits = 8, kTile = 128;
  const bool sequence = layout.chunk_overlap.sequence(layout.micro_batch);
  const std::int64_t all = sequence ? job.sequence : layout.micro_batch;
  // Token shards and payloads of a rank divide by its chunks.
  const bool sharded = layout.sp || layout.compression.on_layers() || layout.compression.search;
  const std::int64_t least = sequence && sharded ? layout.tp : 1;
  std::int64_t rows = sequence ? std::lcm(kTile, least) : 1;
  if (all < 2 * rows) rows = least;
  const std::int64_t tiles = std::max<std::int64_t>(1, all / rows);
  std::int64_t units = sequence ? std::min(tiles, kMostUnits) : tiles;
  for (std::int64_t n = units; n >= kFewUnits && tiles * rows == all; --n) {
    if (tiles % n != 0) continue;
    units = n;
    break;
  }
  std::vector<std::int64_t> borders;
  for (std::int64_t i = 0; i < units; ++i) borders.push_back(i * tiles / units * rows);
  borders.push_back(all);
  return borders;
}

LayerBlocks layer_blocks(const Lowered& lowered, const StagePrices& prices, const Job& job) {
  const Layout& layout = lowered.layout;
  const StageClock clock(lowered, 0, prices);
  LayerBlocks blocks;
  const Chunk& chunk = lowered.stages[0].chunks[0];
  const Segment* forward = middle_layer(chunk.forward);
  const Segment* backward = middle_layer(chunk.backward);
  if (forward == nullptr || backward == nullptr) return blocks;
  Pricing pricing{.borders = chunk_borders(layout, job),
                  .cuts = layout.chunk_overlap.on(),
                  .sequence = layout.chunk_overlap.sequence(layout.micro_batch)};
  PlanBuilder builder(lowered.plan);  // to be dropped: buffers of the pieces
  blocks.forward = blocks_of(builder, *forward, clock, pricing);
  pricing.from_end = true;
  blocks.backward = blocks_of(builder, *backward, clock, pricing);
  for (const SegmentOp& op : backward->ops) {
    if (!is_filler(lowered.plan, op)) continue;
    blocks.filler_seconds += clock.kernel(lowered.plan.calls[op.call.value]);
  }
  return blocks;
}

}  // namespace gputwin
