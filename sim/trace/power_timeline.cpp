#include "sim/trace/power_timeline.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

PowerTimeline::PowerTimeline(PowerSource source, std::vector<RankId> ranks)
    : source_(std::move(source)), ranks_(std::move(ranks)), windows_(2 * ranks_.size()) {
  for (const RankId rank : ranks_) {
    rates_.push_back(source_.rates ? source_.rates(rank) : PowerRates());
  }
}

void PowerTimeline::op(const OpEvent& event) {
  const auto found = std::lower_bound(ranks_.begin(), ranks_.end(), event.rank);
  if (found == ranks_.end() || *found != event.rank) return;
  const auto index = static_cast<std::size_t>(found - ranks_.begin());
  if (rates_[index].limit_W <= 0 || event.end <= event.start) return;
  const Kind kind = event.instruction->kind;
  if (kind == Kind::HostTask) return;
  const Ps time = event.end - event.start;
  end_ = std::max(end_, event.end);
  windows_.add(2 * index, time, event.start, event.end);
  if (kind != Kind::Kernel) return;
  const double added = source_.added(event.rank, *event.instruction);
  windows_.add(2 * index + 1, std::llround(added * static_cast<double>(time)), event.start,
               event.end);
}

std::vector<PowerTimeline::Sample> PowerTimeline::samples(std::size_t index) const {
  const PowerRates& rates = rates_[index];
  const std::vector<std::int64_t>& busy = windows_.row(2 * index);
  const std::vector<std::int64_t>& added = windows_.row(2 * index + 1);
  std::vector<Sample> list;
  const auto put = [&](Ps at, double watts) {
    if (list.empty() || list.back().watts != watts) list.push_back({at, watts});
  };
  const auto width = static_cast<double>(windows_.width());
  for (std::size_t w = 0; w < busy.size(); ++w) {
    const Ps at = static_cast<Ps>(w) * windows_.width();
    if (at >= end_) break;
    const double on = std::min(1.0, static_cast<double>(busy[w]) / width);
    const double more = added.empty() ? 0 : static_cast<double>(added[w]) / width;
    const double share = std::min(1.0, rates.idle + (rates.busy - rates.idle) * on + more);
    put(at, std::round(share * rates.limit_W));
  }
  if (!list.empty()) put(end_, std::round(rates.idle * rates.limit_W));
  return list;
}

}  // namespace gputwin
