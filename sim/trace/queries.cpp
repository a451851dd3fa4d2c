#include "sim/trace/queries.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace gputwin {

std::string_view label(GroupBy by) {
  switch (by) {
    case GroupBy::Name: return "name";
    case GroupBy::Op: return "operation";
    case GroupBy::Kind: return "kind";
    case GroupBy::Layer: return "layer";
    case GroupBy::Phase: return "phase";
    case GroupBy::Process: return "rank";
    case GroupBy::Stream: return "stream";
    case GroupBy::MicroBatch: return "micro-batch";
  }
  return "";
}

namespace {

std::vector<std::uint32_t> all_tracks(const Store& store) {
  std::vector<std::uint32_t> tracks(store.tracks.size());
  std::iota(tracks.begin(), tracks.end(), 0u);
  return tracks;
}

struct Sum {
  std::int64_t count = 0;
  Ps total = 0, shortest = std::numeric_limits<Ps>::max(), longest = -1;
  SliceId example = kNoSlice;

  void add(SliceId s, Ps time) {
    ++count;
    total += time;
    shortest = std::min(shortest, time);
    if (time > longest) {
      longest = time;
      example = s;
    }
  }
};

std::string layer_key(std::int32_t layer) {
  if (layer == Definition::kNoLayer) return "outside layers";
  if (layer < 0) return layer == -1 ? "embedding" : "head and loss";
  return "layer " + std::to_string(layer);
}

std::string key_of(const Definition& d, GroupBy by) {
  switch (by) {
    case GroupBy::Name: return d.framed ? d.before + "*" + d.after : d.before + d.after;
    case GroupBy::Op: return d.op;
    case GroupBy::Kind: return std::string(label(d.kind));
    case GroupBy::Layer: return layer_key(d.layer);
    case GroupBy::Phase: return d.phase;
    case GroupBy::Process:
    case GroupBy::Stream:
    case GroupBy::MicroBatch: break;
  }
  return "";
}

}  // namespace

namespace {

/// By definition: whether its slices are ranges around others, which are no work themselves.
std::vector<char> ranges_of(const Store& store) {
  std::vector<char> out;
  for (const Definition& d : store.definitions) {
    out.push_back(profile_event(d.phase) == ProfileEvent::Range ? 1 : 0);
  }
  return out;
}

/// Slices that may stand within others of the same thread, each with the row it counts for. The
/// host's operators call each other, so that their durations do not add up.
class Nested {
 public:
  void add(std::uint64_t row, Ps begin, Ps end) { slices_.push_back({row, begin, end}); }
  /// For every row, the time by which the sum of its slices exceeds what they cover; then forgets.
  template <class Take>
  void take_excess(const Take& take) {
    std::sort(slices_.begin(), slices_.end(), [](const Slice& x, const Slice& y) {
      return std::tuple(x.row, x.begin, x.end) < std::tuple(y.row, y.begin, y.end);
    });
    for (std::size_t i = 0; i < slices_.size();) {
      const std::uint64_t row = slices_[i].row;
      Ps sum = 0, covered = 0, until = std::numeric_limits<Ps>::min();
      for (; i < slices_.size() && slices_[i].row == row; ++i) {
        const Slice& s = slices_[i];
        sum += s.end - s.begin;
        covered += std::max<Ps>(0, s.end - std::max(s.begin, until));
        until = std::max(until, s.end);
      }
      if (sum > covered) take(row, sum - covered);
    }
    slices_.clear();
  }

 private:
  struct Slice {
    std::uint64_t row;
    Ps begin, end;
  };
  std::vector<Slice> slices_;
};

/// Sums of slices by row of an answer, thread by thread.
class Aggregation {
 public:
  Aggregation(const Store& store, TimeRange range, GroupBy by)
      : store_(store), range_(range), by_(by), ranges_(ranges_of(store)) {
    by_definition_ = by <= GroupBy::Phase;
    named_ = by == GroupBy::Name || by == GroupBy::Op || by == GroupBy::Phase;
    for (const Definition& d : store.definitions) {
      if (by_definition_) row_of_.push_back(row(key_of(d, by)));
    }
  }

  void add(const Track& track) {
    if (track.depth == 0) end_thread();
    const auto [from, until] = store_.overlapping(track, range_.begin, range_.end);
    if (from == until) return;
    const std::uint32_t whole = by_ == GroupBy::Process  ? row(store_.processes[track.process].name)
                                : by_ == GroupBy::Stream ? row(track.name)
                                                         : 0;
    for (SliceId s = from; s < until; ++s) {
      const std::uint32_t definition = store_.definition_id(s);
      const bool around = ranges_[definition] != 0;
      if (around && !named_) continue;
      const std::uint32_t at = by_definition_               ? row_of_[definition]
                               : by_ == GroupBy::MicroBatch ? row_of_frame(s)
                                                            : whole;
      if (rows_[at].sum.count == 0) rows_[at].first = s;
      rows_[at].around = around;
      const Ps begin = std::max(store_.start(s), range_.begin);
      const Ps end = std::min(store_.end(s), range_.end);
      rows_[at].sum.add(s, end - begin);
      if (store_.kind(s) >= SliceKind::Host) nested_.add(at, begin, end);
    }
  }

  std::vector<GroupRow> rows() {
    end_thread();
    std::vector<GroupRow> out;
    for (const Row& r : rows_) {
      if (r.sum.count == 0) continue;
      out.push_back({r.key, store_.kind(r.first), r.sum.count, r.sum.total, r.sum.shortest,
                     r.sum.longest, r.sum.example, r.around});
    }
    std::stable_sort(out.begin(), out.end(), [](const GroupRow& x, const GroupRow& y) {
      return x.total != y.total ? x.total > y.total : x.key < y.key;
    });
    return out;
  }

 private:
  struct Row {
    std::string key;
    Sum sum;
    SliceId first = kNoSlice;
    bool around = false;
  };

  std::uint32_t row(std::string key) {
    const auto next = static_cast<std::uint32_t>(rows_.size());
    const auto [at, made] = index_.try_emplace(key, next);
    if (made) rows_.push_back({std::move(key), {}, kNoSlice, false});
    return at->second;
  }
  std::uint32_t row_of_frame(SliceId s) {
    const std::uint32_t frame = store_.framed(s) ? store_.frame(s) : kUnframed;
    const auto found = frames_.find(frame);
    if (found != frames_.end()) return found->second;
    return frames_[frame] = row(frame == kUnframed ? "outside micro-batches"
                                                   : "micro-batch " + std::to_string(frame));
  }
  void end_thread() {
    nested_.take_excess([this](std::uint64_t at, Ps time) { rows_[at].sum.total -= time; });
  }

  const Store& store_;
  TimeRange range_;
  GroupBy by_;
  bool by_definition_ = false, named_ = false;
  std::vector<char> ranges_;
  std::vector<std::uint32_t> row_of_;  // by definition
  std::vector<Row> rows_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::unordered_map<std::uint32_t, std::uint32_t> frames_;
  Nested nested_;
};

}  // namespace

std::vector<GroupRow> aggregate(const Store& store, TimeRange range, GroupBy by,
                                const std::vector<std::uint32_t>& tracks,
                                const std::stop_token& stop) {
  Aggregation sums(store, range, by);
  for (const std::uint32_t id : tracks.empty() ? all_tracks(store) : tracks) {
    if (stop.stop_requested()) return {};
    sums.add(store.tracks[id]);
  }
  return sums.rows();
}

Exposure exposure(const Store& store, std::uint32_t process, TimeRange range) {
  struct Edge {
    Ps at;
    std::uint8_t kind;
    std::int8_t step;
  };
  Exposure out;
  std::vector<Edge> edges;
  const std::vector<char> ranges = ranges_of(store);
  Nested nested;
  const auto end_thread = [&] {
    nested.take_excess([&out](std::uint64_t kind, Ps time) { out.busy[kind] -= time; });
  };
  for (const Track& track : store.tracks) {
    if (track.process != process) continue;
    if (track.depth == 0) end_thread();
    const auto [from, until] = store.overlapping(track, range.begin, range.end);
    for (SliceId s = from; s < until; ++s) {
      if (ranges[store.definition_id(s)] != 0) continue;
      const auto kind = static_cast<std::uint8_t>(store.kind(s));
      const Ps begin = std::max(store.start(s), range.begin);
      const Ps end = std::min(store.end(s), range.end);
      if (end <= begin) continue;
      out.busy[kind] += end - begin;
      if (store.kind(s) >= SliceKind::Host) nested.add(kind, begin, end);
      edges.push_back({begin, kind, 1});
      edges.push_back({end, kind, -1});
    }
  }
  end_thread();
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  std::array<std::int32_t, kSliceKinds> running{};
  Ps before = range.begin;
  const auto account = [&](Ps until) {
    const auto top = std::find_if(running.begin(), running.end(), [](auto n) { return n > 0; });
    if (top == running.end()) {
      out.idle += until - before;
    } else {
      out.exposed[static_cast<std::size_t>(top - running.begin())] += until - before;
    }
    before = until;
  };
  for (const Edge& edge : edges) {
    if (edge.at > before) account(edge.at);
    running[edge.kind] += edge.step;
  }
  if (range.end > before) account(range.end);
  return out;
}

namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// What the words of a search ask for.
struct Wanted {
  std::vector<std::string> words;
  std::int64_t frame = -1, layer = Definition::kNoLayer, rank = -1;
  bool by_layer = false;
  Ps longer = -1, shorter = std::numeric_limits<Ps>::max();
};

bool number_after(const std::string& word, std::string_view prefix, std::int64_t& out) {
  if (!word.starts_with(prefix) || word.size() == prefix.size()) return false;
  const char* const last = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data() + prefix.size(), last, out);
  return error == std::errc() && at == last;
}

bool duration_after(const std::string& word, char sign, Ps& out) {
  if (word.size() < 2 || word[0] != sign) return false;
  double value = 0;
  const char* const last = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data() + 1, last, value);
  const std::string_view unit(at, static_cast<std::size_t>(last - at));
  const double scale = unit == "s"    ? 1e12
                       : unit == "ms" ? 1e9
                       : unit == "ns" ? 1e3
                       : unit == "ps" ? 1.0
                                      : 1e6;
  if (error != std::errc() || !(value >= 0 && value * scale < 4e18)) return false;
  out = static_cast<Ps>(value * scale);
  return true;
}

Wanted wanted(const std::string& text) {
  Wanted out;
  std::size_t at = 0;
  const std::string all = lower(text);
  while (at < all.size()) {
    const std::size_t end = std::min(all.find(' ', at), all.size());
    const std::string word = all.substr(at, end - at);
    at = end + 1;
    if (word.empty()) continue;
    if (number_after(word, "layer", out.layer) || number_after(word, "l", out.layer)) {
      out.by_layer = true;
    } else if (!number_after(word, "mb", out.frame) && !number_after(word, "rank", out.rank) &&
               !duration_after(word, '>', out.longer) && !duration_after(word, '<', out.shorter)) {
      out.words.push_back(word);
    }
  }
  return out;
}

bool definition_matches(const Definition& d, const Wanted& w) {
  if (w.by_layer && d.layer != w.layer) return false;
  const std::string text = lower(d.before + d.after) + " " + lower(label(d.kind)) + " " +
                           lower(d.phase) + " " + lower(d.op);
  return std::all_of(w.words.begin(), w.words.end(), [&text](const std::string& word) {
    return text.find(word) != std::string::npos;
  });
}

}  // namespace

SearchHits search(const Store& store, const std::string& words, std::size_t limit,
                  const std::stop_token& stop) {
  SearchHits hits;
  const Wanted w = wanted(words);
  std::vector<char> matches;
  for (const Definition& d : store.definitions) matches.push_back(definition_matches(d, w) ? 1 : 0);
  for (const Track& track : store.tracks) {
    if (stop.stop_requested()) return {};
    if (w.rank >= 0 && store.processes[track.process].rank != w.rank) continue;
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      if (matches[store.definition_id(s)] == 0) continue;
      if (w.frame >= 0 && store.frame(s) != static_cast<std::uint64_t>(w.frame)) continue;
      const Ps time = store.duration(s);
      if (time <= w.longer || time >= w.shorter) continue;
      if (hits.slices.size() < limit) hits.slices.push_back(s);
      ++hits.total;
      hits.time += time;
    }
  }
  return hits;
}

namespace {

/// Name of a process that means the same in another run: its rank, if it has one.
std::string process_key(const TraceProcess& p) {
  return p.rank >= 0 ? "rank " + std::to_string(p.rank) : p.name;
}

std::string match_key(const Store& store, const Track& track, SliceId s) {
  return process_key(store.processes[track.process]) + "\x1f" + std::to_string(track.depth) +
         "\x1f" + store.name(s);
}

/// Durations of slices by key in order of time; matched by occurrence.
using Occurrences = std::unordered_map<std::string, std::vector<SliceId>>;

Occurrences occurrences(const Store& store) {
  Occurrences out;
  for (const Track& track : store.tracks) {
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      out[match_key(store, track, s)].push_back(s);
    }
  }
  return out;
}

void match_slices(const Store& a, const Store& b, Comparison& out) {
  const Occurrences in_b = occurrences(b);
  std::int64_t matched = 0;
  for (const auto& [key, slices] : occurrences(a)) {
    const auto found = in_b.find(key);
    const std::size_t both =
        found == in_b.end() ? 0 : std::min(slices.size(), found->second.size());
    matched += static_cast<std::int64_t>(both);
    for (std::size_t i = 0; i < both; ++i) {
      const auto time_a = static_cast<double>(a.duration(slices[i]));
      const auto time_b = static_cast<double>(b.duration(found->second[i]));
      const double error = time_a > 0 ? time_b / time_a - 1 : 0;
      const auto bin = static_cast<std::size_t>(
          std::clamp((error + 0.525) / 0.05, 0.0, static_cast<double>(Comparison::kBins - 1)));
      ++out.errors[static_cast<std::size_t>(a.kind(slices[i]))][bin];
    }
  }
  out.matched = matched;
  out.only_a = static_cast<std::int64_t>(a.size()) - matched;
  out.only_b = static_cast<std::int64_t>(b.size()) - matched;
}

double processes_with_slices(const Store& store) {
  std::vector<char> seen(store.processes.size(), 0);
  for (const Track& track : store.tracks) {
    if (track.count > 0) seen[track.process] = 1;
  }
  return std::max<double>(1, static_cast<double>(std::count(seen.begin(), seen.end(), 1)));
}

}  // namespace

Comparison compare(const Store& a, const Store& b, GroupBy by) {
  Comparison out;
  std::map<std::string, Difference> rows;
  const double share_a = 1e-12 / processes_with_slices(a);
  const double share_b = 1e-12 / processes_with_slices(b);
  for (const GroupRow& row : aggregate(a, a.range(), by)) {
    Difference& d = rows[row.key];
    d.key = row.key;
    d.kind = row.kind;
    d.count_a = row.count;
    d.time_a = static_cast<double>(row.total) * share_a;
    d.example_a = row.example;
  }
  for (const GroupRow& row : aggregate(b, b.range(), by)) {
    Difference& d = rows[row.key];
    if (d.count_a == 0) d.kind = row.kind;
    d.key = row.key;
    d.count_b = row.count;
    d.time_b = static_cast<double>(row.total) * share_b;
    d.example_b = row.example;
  }
  for (auto& [key, row] : rows) out.rows.push_back(std::move(row));
  std::stable_sort(out.rows.begin(), out.rows.end(), [](const Difference& x, const Difference& y) {
    return std::abs(x.time_b - x.time_a) > std::abs(y.time_b - y.time_a);
  });
  match_slices(a, b, out);
  return out;
}

}  // namespace gputwin
