#include "strategies/schedules/table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/core/check.h"
#include "strategies/schedules/list_schedule.h"

namespace gputwin {
namespace {

PassKind kind_of(bool backward) { return backward ? PassKind::Backward : PassKind::Forward; }

// `warm_up` forwards, pairs of forward and backward, the remaining backwards; `pass(backward, k)`
// is the k-th pass of its kind.
template <class PassAt>
StageTable warmed_up(std::int32_t total, std::int32_t warm_up, PassAt pass) {
  StageTable table;
  table.reserve(static_cast<std::size_t>(2 * total));
  warm_up = std::min(warm_up, total);
  for (std::int32_t k = 0; k < warm_up; ++k) table.push_back(pass(false, k));
  for (std::int32_t k = warm_up; k < total; ++k) {
    table.push_back(pass(false, k));
    table.push_back(pass(true, k - warm_up));
  }
  for (std::int32_t k = total - warm_up; k < total; ++k) table.push_back(pass(true, k));
  return table;
}

}  // namespace

StageTable gpipe_table(std::int32_t micro_batches) {
  return warmed_up(micro_batches, micro_batches, [](bool backward, std::int32_t k) {
    return Pass{kind_of(backward), 0, k};
  });
}

StageTable one_f_one_b_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches) {
  return warmed_up(micro_batches, stages - stage - 1, [](bool backward, std::int32_t k) {
    return Pass{kind_of(backward), 0, k};
  });
}

StageTable interleaved_table(std::int32_t stages, std::int32_t chunks, std::int32_t stage,
                             std::int32_t micro_batches) {
  GPUTWIN_CHECK(micro_batches % stages == 0, "groups of p micro-batches fill the schedule");
  const std::int32_t total = micro_batches * chunks;
  const std::int32_t warm_up =
      micro_batches == stages ? total : 2 * (stages - stage - 1) + (chunks - 1) * stages;
  return warmed_up(total, warm_up, [=](bool backward, std::int32_t k) {
    const std::int32_t in_group = k % (stages * chunks);
    const std::int32_t chunk = in_group / stages;
    const std::int32_t micro_batch = k / (stages * chunks) * stages + in_group % stages;
    return Pass{kind_of(backward), backward ? chunks - 1 - chunk : chunk, micro_batch};
  });
}

StageTable zb_h1_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches) {
  StageTable table;
  std::int32_t backward = 0, weight_grad = 0;
  const auto grads = [&](std::int32_t behind) {
    while (backward - weight_grad > behind) {
      table.push_back({PassKind::WeightGrad, 0, weight_grad++});
    }
  };
  const std::int32_t warm_up = std::min(stages - stage - 1, micro_batches);
  for (std::int32_t k = 0; k < warm_up; ++k) table.push_back({PassKind::Forward, 0, k});
  while (backward < micro_batches) {
    const std::int32_t next = warm_up + backward;
    if (next < micro_batches) table.push_back({PassKind::Forward, 0, next});
    table.push_back({PassKind::Backward, 0, backward++});
    grads(std::min(stage, micro_batches - warm_up));
  }
  grads(0);
  return table;
}

namespace {

// The passes of one stage of DualPipe. Ways are its own: 0 enters at its nearer end.
class DualPipeStage {
 public:
  DualPipeStage(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches)
      : swapped_(stage >= stages / 2), half_(micro_batches / 2) {}

  void forward(std::int32_t way, bool joined = false) {
    add(PassKind::Forward, way, forwards_[index(way)]++, joined);
  }
  void both(std::int32_t forward_way, std::int32_t backward_way) {
    forward(forward_way, true);
    backward(backward_way);
  }
  /// `later`: its weight gradient is left for weight_grad().
  void backward(std::int32_t way, bool later = false) {
    const std::int32_t n = backwards_[index(way)]++;
    add(PassKind::Backward, way, n, !later);
    if (!later) return add(PassKind::WeightGrad, way, n);
    waiting_.push_back({way, n});
  }
  void weight_grad() {
    const auto [way, n] = waiting_.at(grads_++);
    add(PassKind::WeightGrad, way, n);
  }
  StageTable take() { return std::move(table_); }

 private:
  static std::size_t index(std::int32_t way) { return static_cast<std::size_t>(way); }
  void add(PassKind kind, std::int32_t way, std::int32_t n, bool joined = false) {
    const std::int32_t chunk = swapped_ ? 1 - way : way;
    table_.push_back({kind, chunk, chunk * half_ + n, joined});
  }

  bool swapped_;
  std::int32_t half_;
  std::array<std::int32_t, 2> forwards_{}, backwards_{};
  std::vector<std::pair<std::int32_t, std::int32_t>> waiting_;
  std::size_t grads_ = 0;  // of waiting_, done
  StageTable table_;
};

}  // namespace

StageTable dualpipe_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches) {
  DualPipeStage s(stages, stage, micro_batches);
  const std::int32_t near = std::min(stage, stages - 1 - stage), beyond = stages / 2 - near - 1;
  const auto times = [](std::int32_t n, auto act) {
    for (std::int32_t i = 0; i < n; ++i) act(i);
  };
  times(2 * beyond, [&](std::int32_t) { s.forward(0); });
  times(near + 1, [&](std::int32_t) { s.forward(0), s.forward(1); });
  times(beyond, [&](std::int32_t) { s.backward(1, true), s.weight_grad(), s.forward(1); });
  times(micro_batches / 2 - stages + near + 1, [&](std::int32_t) { s.both(0, 1), s.both(1, 0); });
  times(beyond, [&](std::int32_t) { s.backward(1), s.both(1, 0); });
  bool later = false;  // from the middle of the rest on
  times(near + 1, [&](std::int32_t i) {
    const bool middle = i == (near + 1) / 2;
    if (middle && near % 2 == 1) later = true;
    s.backward(1, later);
    if (middle && near % 2 == 0) later = true;
    s.backward(0, later);
  });
  times(beyond, [&](std::int32_t) { s.weight_grad(), s.backward(0, true); });
  times(near + 1, [&](std::int32_t) { s.weight_grad(); });
  return s.take();
}

namespace {

// Tables that every stage makes for itself.
StageTable own_table(const Layout& l, std::int32_t stage, std::int32_t micro_batches) {
  if (l.schedule == Schedule::Gpipe) return gpipe_table(micro_batches);
  if (l.schedule == Schedule::DualPipe) return dualpipe_table(l.pp, stage, micro_batches);
  if (l.schedule == Schedule::ZbH1) return zb_h1_table(l.pp, stage, micro_batches);
  // With one chunk per stage Megatron runs the plain order.
  if (l.schedule == Schedule::Interleaved && l.vpp > 1) {
    return interleaved_table(l.pp, l.vpp, stage, micro_batches);
  }
  // Also of one stage: each micro-batch forward and backward, gradients accumulate.
  return one_f_one_b_table(l.pp, stage, micro_batches);
}

}  // namespace

std::vector<StageTable> schedule_tables(const Layout& layout, std::int32_t micro_batches,
                                        const std::vector<PassCosts>& given, double message) {
  const auto chunks = static_cast<std::size_t>(layout.chunks());
  const double p = layout.pp;
  const std::vector<PassCosts> alike(chunks);
  const std::vector<PassCosts>& costs = given.empty() ? alike : given;
  double kept = 0;
  for (const PassCosts& c : costs) kept = std::max(kept, c.kept);
  const Schedule schedule = layout.schedule;
  if (schedule == Schedule::ZbH2) {
    return list_schedule(layout, micro_batches, alike, {.memory = 2 * p - 1});
  }
  if (schedule == Schedule::Zb1p || schedule == Schedule::Zb2p) {
    const double limit = (schedule == Schedule::Zb1p ? p : 2 * p) * kept;
    return list_schedule(layout, micro_batches, costs, {.memory = limit, .message = message});
  }
  if (schedule == Schedule::ZbV) {
    return list_schedule(layout, micro_batches, alike, {.memory = 2 * p});
  }
  if (schedule == Schedule::Hanayo || schedule == Schedule::Chimera) {
    std::vector<PassCosts> whole(chunks, {.forward = 1, .backward = 2, .weight_grad = 0});
    return list_schedule(layout, micro_batches, whole, {.split = false, .memory = p * layout.vpp});
  }
  std::vector<StageTable> tables;
  for (std::int32_t stage = 0; stage < layout.pp; ++stage) {
    tables.push_back(own_table(layout, stage, micro_batches));
  }
  return tables;
}

}  // namespace gputwin
