#include "strategies/schedules/list_schedule.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "sim/core/check.h"

namespace gputwin {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

struct Trial {
  double shortest_wait;  // that a weight gradient fills, in parts of its time
  double places_left;    // to each later chunk of the stage, in chunks
  bool later_first;      // of forwards that could start at one time
};

class ListScheduler {
 public:
  ListScheduler(const Layout& layout, std::int32_t micro_batches,
                const std::vector<PassCosts>& costs, const ListRules& rules, const Trial& trial)
      : layout_(layout),
        micro_batches_(micro_batches),
        locals_(layout.local_chunks()),
        costs_(costs),
        rules_(rules),
        trial_(trial),
        tables_(at(layout.pp)),
        stages_(at(layout.pp)),
        choices_(at(layout.pp)),
        forward_(2 * at(layout.chunks())),
        backward_(2 * at(layout.chunks())) {
    for (Stage& s : stages_) {
      for (auto* list : {&s.forwards, &s.backwards, &s.weight_grads}) list->resize(at(locals_), 0);
    }
  }

  /// False if no stage can go on before all passes are placed.
  bool run() {
    const std::int32_t kinds = rules_.split ? 3 : 2;
    const std::int64_t total = std::int64_t{kinds} * micro_batches_ * layout_.chunks();
    for (std::int32_t s = 0; s < layout_.pp; ++s) choices_[at(s)] = next(s);
    for (std::int64_t placed = 0; placed < total; ++placed) {
      std::int32_t where = -1;
      for (std::int32_t s = 0; s < layout_.pp; ++s) {
        const auto& choice = choices_[at(s)];
        if (choice && (where < 0 || choice->start < choices_[at(where)]->start)) where = s;
      }
      if (where < 0) return false;
      place(where, *choices_[at(where)]);
      for (std::int32_t s = std::max(0, where - 1); s <= std::min(where + 1, layout_.pp - 1); ++s) {
        choices_[at(s)] = next(s);
      }
    }
    return true;
  }

  /// From the first to the last pass of the stage that takes longest: the period, if stages begin
  /// the next iteration one after the other.
  double span() const {
    double longest = 0;
    for (const Stage& s : stages_) longest = std::max(longest, s.free - s.begun);
    return longest;
  }
  std::vector<StageTable> take() { return std::move(tables_); }

 private:
  struct Stage {
    double free = 0, begun = -1, held = 0;
    std::vector<std::int32_t> forwards, backwards, weight_grads;  // placed, by local chunk
  };
  struct Choice {
    double start = 0;
    Pass pass;
  };

  bool two_ways() const { return placement(layout_.schedule) == Placement::TwoWay; }
  std::int32_t way(std::int32_t local) const { return two_ways() ? local : 0; }
  std::int32_t passes() const {
    return two_ways() ? micro_batches_ / 2 : micro_batches_;
  }
  std::int32_t micro_batch(std::int32_t local, std::int32_t n) const {
    return way(local) * (micro_batches_ / 2) + n;
  }
  const PassCosts& cost(std::int32_t stage, std::int32_t local) const {
    return costs_[at(layout_.chunk_at(stage, local))];
  }
  // When pass n of a kind through a model chunk has ended, as its neighbour chunk sees it.
  double seen(const std::vector<std::vector<double>>& ends, std::int32_t chunk, std::int32_t way,
              std::int32_t n, std::int32_t stage) const {
    const std::vector<double>& list = ends[2 * at(chunk) + at(way)];
    if (at(n) >= list.size()) return kNever;
    return list[at(n)] + (layout_.stage_of(chunk, way) == stage ? 0 : rules_.message);
  }

  // When what the next forward or backward of a chunk needs is there; kNever if it is not placed.
  double forward_ready(std::int32_t stage, std::int32_t local) const {
    const std::int32_t n = stages_[at(stage)].forwards[at(local)];
    const std::int32_t c = layout_.chunk_at(stage, local);
    if (n == passes()) return kNever;
    return c == 0 ? 0 : seen(forward_, c - 1, way(local), n, stage);
  }
  double backward_ready(std::int32_t stage, std::int32_t local) const {
    const std::int32_t n = stages_[at(stage)].backwards[at(local)];
    const std::int32_t c = layout_.chunk_at(stage, local);
    if (n == stages_[at(stage)].forwards[at(local)]) return kNever;
    if (c == layout_.chunks() - 1) return seen(forward_, c, way(local), n, stage);
    return seen(backward_, c + 1, way(local), n, stage);
  }

  bool fits(std::int32_t stage, std::int32_t local) const {
    const double kept = cost(stage, local).kept;
    const double later = two_ways() ? 0 : trial_.places_left * (locals_ - 1 - local) * kept;
    return stages_[at(stage)].held + kept + later <= rules_.memory * (1 + 1e-9);
  }

  // The oldest weight gradient that waits, of the chunk furthest back in the model.
  std::optional<Pass> waiting_grad(std::int32_t stage) const {
    const Stage& s = stages_[at(stage)];
    std::optional<Pass> oldest;
    for (std::int32_t v = locals_; rules_.split && v-- > 0;) {
      const std::int32_t n = s.weight_grads[at(v)];
      if (n == s.backwards[at(v)]) continue;
      if (!oldest || n < oldest->micro_batch) oldest = Pass{PassKind::WeightGrad, v, n};
    }
    if (oldest) oldest->micro_batch = micro_batch(oldest->chunk, oldest->micro_batch);
    return oldest;
  }

  std::optional<Choice> next(std::int32_t stage) const {
    const Stage& s = stages_[at(stage)];
    Choice best{kNever, {}};
    for (std::int32_t v = locals_; v-- > 0;) {
      const double ready = std::max(s.free, backward_ready(stage, v));
      if (ready >= best.start) continue;
      best = {ready, {PassKind::Backward, v, micro_batch(v, s.backwards[at(v)])}};
    }
    for (std::int32_t i = 0; i < locals_; ++i) {
      const std::int32_t v = trial_.later_first ? locals_ - 1 - i : i;
      const double ready = std::max(s.free, forward_ready(stage, v));
      if (ready >= best.start || !fits(stage, v)) continue;
      best = {ready, {PassKind::Forward, v, micro_batch(v, s.forwards[at(v)])}};
    }
    if (const auto grad = waiting_grad(stage)) {
      const double least = trial_.shortest_wait * cost(stage, grad->chunk).weight_grad;
      const double wait = best.start - s.free;
      if (wait > 0 && wait >= least * (1 - 1e-9)) return Choice{s.free, *grad};
    }
    if (best.start == kNever) return {};
    return best;
  }

  void place(std::int32_t stage, const Choice& choice) {
    Stage& s = stages_[at(stage)];
    const Pass pass = choice.pass;
    const std::size_t v = at(pass.chunk);
    const std::int32_t chunk = layout_.chunk_at(stage, pass.chunk);
    const std::size_t ends = 2 * at(chunk) + at(way(pass.chunk));
    const PassCosts& c = costs_[at(chunk)];
    tables_[at(stage)].push_back(pass);
    if (s.begun < 0) s.begun = choice.start;
    switch (pass.kind) {
      case PassKind::Forward:
        s.free = choice.start + c.forward;
        s.held += c.kept;
        ++s.forwards[v];
        forward_[ends].push_back(s.free);
        break;
      case PassKind::Backward:
        s.free = choice.start + c.backward;
        s.held -= rules_.split ? c.released : c.kept;
        ++s.backwards[v];
        backward_[ends].push_back(s.free);
        break;
      case PassKind::WeightGrad:
        s.free = choice.start + c.weight_grad;
        s.held -= c.kept - c.released;
        ++s.weight_grads[v];
        break;
    }
  }

  const Layout& layout_;
  std::int32_t micro_batches_, locals_;
  const std::vector<PassCosts>& costs_;
  ListRules rules_;
  Trial trial_;
  std::vector<StageTable> tables_;
  std::vector<Stage> stages_;
  std::vector<std::optional<Choice>> choices_;           // what each stage would do next
  std::vector<std::vector<double>> forward_, backward_;  // ends, by 2 x chunk + way
};

}  // namespace

std::vector<StageTable> list_schedule(const Layout& layout, std::int32_t micro_batches,
                                      const std::vector<PassCosts>& costs, const ListRules& rules) {
  std::vector<StageTable> best;
  double span = kNever;
  const bool several = layout.local_chunks() > 1;
  for (const double shortest_wait : {1.0, 0.5, 0.0}) {
    if (!rules.split && shortest_wait < 1) continue;
    for (const double places_left : {1.0, 0.0, 2.0}) {
      for (const bool later_first : {true, false}) {
        if (!several && (places_left != 1.0 || !later_first)) continue;
        ListScheduler scheduler(layout, micro_batches, costs, rules,
                                {shortest_wait, places_left, later_first});
        if (!scheduler.run() || scheduler.span() >= span) continue;
        span = scheduler.span();
        best = scheduler.take();
      }
    }
  }
  GPUTWIN_CHECK(!best.empty(), "with a place left to each later chunk some stage can always go on");
  return best;
}

}  // namespace gputwin
