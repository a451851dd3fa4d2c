#include "sim/trace/store.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gputwin {

std::uint32_t Texts::add(std::string_view text) {
  blob_.append(text);
  ends_.push_back(blob_.size());
  return static_cast<std::uint32_t>(ends_.size() - 1);
}

std::string_view Texts::at(std::uint32_t id) const {
  const std::uint64_t begin = id == 0 ? 0 : ends_[id - 1];
  return std::string_view(blob_).substr(begin, ends_[id] - begin);
}

Ps Store::long_duration(SliceId s) const {
  const auto found = std::lower_bound(long_.begin(), long_.end(), s,
                                      [](const auto& row, SliceId id) { return row.first < id; });
  return found != long_.end() && found->first == s ? found->second : static_cast<Ps>(kLong);
}

std::string Store::name(SliceId s) const {
  const Definition& d = definition(s);
  if (!d.framed || !framed(s)) return d.before + d.after;
  return d.before + std::to_string(frame(s)) + d.after;
}

std::string_view Store::arguments(SliceId s) const {
  if (s < argument_.size() && argument_[s] != kNoText) return texts_.at(argument_[s]);
  return definition(s).arguments;
}

std::uint32_t Store::track_of(SliceId s) const {
  const auto after = std::upper_bound(tracks.begin(), tracks.end(), s,
                                      [](SliceId id, const Track& t) { return id < t.first; });
  // Empty tracks share their first with the next one, which holds the slice.
  return static_cast<std::uint32_t>(after - tracks.begin()) - 1;
}

std::vector<std::uint32_t> Store::flows_from(SliceId s) const {
  std::vector<std::uint32_t> rows;
  auto row = std::lower_bound(flows_.begin(), flows_.end(), s,
                              [](const Flow& f, SliceId id) { return f.from < id; });
  for (; row != flows_.end() && row->from == s; ++row) {
    rows.push_back(static_cast<std::uint32_t>(row - flows_.begin()));
  }
  return rows;
}

std::vector<std::uint32_t> Store::flows_to(SliceId s) const {
  std::vector<std::uint32_t> rows;
  auto row = std::lower_bound(flows_by_target_.begin(), flows_by_target_.end(), s,
                              [this](std::uint32_t f, SliceId id) { return flows_[f].to < id; });
  for (; row != flows_by_target_.end() && flows_[*row].to == s; ++row) rows.push_back(*row);
  return rows;
}

std::pair<SliceId, SliceId> Store::overlapping(const Track& track, Ps begin, Ps end) const {
  const auto first = start_.begin() + track.first, last = first + track.count;
  // Slices of a track do not overlap, so only the one before can reach into the range.
  auto from = std::upper_bound(first, last, begin);
  if (from != first) {
    const auto before = static_cast<SliceId>(from - start_.begin() - 1);
    if (this->end(before) > begin) --from;
  }
  const auto until = std::lower_bound(from, last, end);
  return {static_cast<SliceId>(from - start_.begin()),
          static_cast<SliceId>(until - start_.begin())};
}

SliceId Store::at(const Track& track, Ps t) const {
  const auto [from, until] = overlapping(track, t, t + 1);
  return from < until ? from : kNoSlice;
}

bool Store::draw_cells(std::uint32_t row, double from, double per_pixel, std::span<Cell> out,
                       double widest) const {
  const Track& track = tracks[row];
  const LevelOfDetail& detail = detail_[row];
  if (!detail.empty() && per_pixel * widest >= static_cast<double>(detail.finest())) {
    detail.draw(from, per_pixel, out);
    return true;
  }
  const double until = from + per_pixel * static_cast<double>(out.size());
  const auto clamp = [](double t) { return static_cast<Ps>(std::clamp(t, -4e18, 4e18)); };
  const auto span = overlapping(track, clamp(std::floor(from)), clamp(std::ceil(until)));
  if (span.second - span.first <= out.size() / 2) return false;
  cells_of_slices(track, span, from, per_pixel, out);
  return true;
}

// Bins are too coarse for these pixels, so few slices lie in one on average, but they may crowd in
// one place: per pixel at most kLookedAt of them are looked at.
void Store::cells_of_slices(const Track& track, std::pair<SliceId, SliceId> span, double from,
                            double per_pixel, std::span<Cell> out) const {
  constexpr SliceId kLookedAt = 32;
  const auto last = start_.begin() + track.first + track.count;
  CellSum sum;
  SliceId next = span.first;
  auto until = static_cast<Ps>(std::floor(from));
  for (std::size_t x = 0; x < out.size() && next < span.second; ++x) {
    const Ps begin = until;
    until = std::max(begin + 1, static_cast<Ps>(from + static_cast<double>(x + 1) * per_pixel));
    if (start_[next] >= until) continue;
    if (start_[next] <= begin && end(next) > until) {  // one slice all over the pixel
      out[x] = {255, 255, kind(next), 1};
      continue;
    }
    SliceId s = next;
    for (; s < span.second && s - next < kLookedAt && start_[s] < until; ++s) {
      const Ps covered = std::min(end(s), until) - std::max(start_[s], begin);
      if (covered > 0) sum.add(kind(s), covered);
    }
    Ps seen = until - begin;
    if (s - next == kLookedAt) {  // crowded: the rest of the pixel is taken to look alike
      seen = std::max<Ps>(1, end(s - 1) - std::max(begin, start_[next]));
      s = static_cast<SliceId>(std::lower_bound(start_.begin() + s, last, until) - start_.begin());
    }
    out[x] = sum.take(static_cast<double>(seen));
    next = s > next && end(s - 1) > until ? s - 1 : s;
  }
}

std::size_t Store::slice_bytes() const {
  std::size_t total =
      start_.size() * (sizeof(Ps) + 3 * sizeof(std::uint32_t)) + long_.size() * sizeof(long_[0]);
  for (const LevelOfDetail& detail : detail_) total += detail.bytes();
  return total;
}

void Store::index() {
  kinds_.clear();
  for (const Definition& d : definitions) kinds_.push_back(d.kind);
  Ps begin = std::numeric_limits<Ps>::max(), end = std::numeric_limits<Ps>::min();
  detail_.clear();
  for (const Track& track : tracks) {
    if (track.count == 0) {
      detail_.emplace_back();
      continue;
    }
    const SliceId last = track.first + track.count - 1;
    begin = std::min(begin, start_[track.first]);
    end = std::max(end, this->end(last));
    LevelOfDetail::Builder builder(start_[track.first], this->end(last), track.count);
    if (track.count >= LevelOfDetail::kMinSlices) {
      for (SliceId s = track.first; s <= last; ++s) builder.add(start_[s], duration(s), kind(s));
    }
    detail_.push_back(builder.finish());
  }
  range_ = begin < end ? TimeRange{begin, end} : TimeRange{0, 1};
  std::sort(flows_.begin(), flows_.end(), [](const Flow& a, const Flow& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  flows_by_target_.resize(flows_.size());
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    flows_by_target_[f] = static_cast<std::uint32_t>(f);
  }
  std::sort(
      flows_by_target_.begin(), flows_by_target_.end(), [this](std::uint32_t a, std::uint32_t b) {
        return std::pair(flows_[a].to, flows_[a].from) < std::pair(flows_[b].to, flows_[b].from);
      });
}

}  // namespace gputwin
