#include "sim/trace/run_comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>

#include "sim/trace/store_builder.h"

namespace gputwin {

std::string_view label(TimePart part) {
  switch (part) {
    case TimePart::Compute: return "compute";
    case TimePart::Optimizer: return "optimizer";
    case TimePart::TpComm: return "exposed tp communication";
    case TimePart::DpComm: return "exposed dp communication";
    case TimePart::PpComm: return "exposed pp communication";
    case TimePart::OtherComm: return "other exposed communication";
    case TimePart::Wait: return "waiting for other ranks";
    case TimePart::Copy: return "copy";
    case TimePart::Host: return "host";
    case TimePart::Bubble: return "bubble";
  }
  return "";
}

TimePart part_of(SliceKind kind) {
  switch (kind) {
    case SliceKind::Gemm:
    case SliceKind::Attention:
    case SliceKind::Pointwise: return TimePart::Compute;
    case SliceKind::Optimizer: return TimePart::Optimizer;
    case SliceKind::TpComm: return TimePart::TpComm;
    case SliceKind::DpComm: return TimePart::DpComm;
    case SliceKind::PpComm: return TimePart::PpComm;
    case SliceKind::OtherComm: return TimePart::OtherComm;
    case SliceKind::Copy: return TimePart::Copy;
    case SliceKind::Host:
    case SliceKind::Other: return TimePart::Host;
  }
  return TimePart::Host;
}

namespace {

constexpr double kSecond = 1e-12;  // of a picosecond

/// The host of a profile at work: an operator or a call of CUDA, but for one that waits.
bool prepares(const Definition& d) {
  const ProfileEvent event = profile_event(d.phase);
  return (event == ProfileEvent::Call || event == ProfileEvent::HostOp) &&
         d.op.find("ynchronize") == std::string::npos;
}

/// One run with what is asked of it more than once.
struct Side {
  explicit Side(const Store& s)
      : store(s), rank_of(ranks_of(s)), range(run_range(s)), waits(waiting_times(s)) {
    iterations = iterations_of(s);
    for (const Definition& d : s.definitions) preparing.push_back(prepares(d) ? 1 : 0);
    // The host of a profile with one rank and no number on it is that rank's.
    std::vector<std::int32_t> ranks(rank_of);
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    if (!ranks.empty() && ranks.front() < 0) ranks.erase(ranks.begin());
    working = ranks.size();
    if (working != 1) return;
    for (std::int32_t& r : rank_of) r = ranks.front();
  }
  double per_iteration(Ps time) const {
    return static_cast<double>(time) * kSecond / static_cast<double>(iterations);
  }
  const Store& store;
  std::vector<std::int32_t> rank_of;  // by process
  TimeRange range;
  std::vector<Ps> waits;
  std::vector<char> preparing;  // by definition
  std::int32_t iterations = 1;
  std::size_t working = 0;  // ranks
};

struct Edge {
  Ps at;
  TimePart part;
  std::int8_t step;
};

void add_edges(const Side& side, SliceId s, std::vector<Edge>& edges) {
  const Definition& d = side.store.definition(s);
  const bool work = is_work(d);
  if (!work && side.preparing[side.store.definition_id(s)] == 0) return;
  const auto add = [&](Ps from, Ps until, TimePart part) {
    from = std::max(from, side.range.begin);
    until = std::min(until, side.range.end);
    if (until <= from) return;
    edges.push_back({from, part, 1});
    edges.push_back({until, part, -1});
  };
  const Ps begin = side.store.start(s), end = side.store.end(s);
  const Ps met = begin + (work ? side.waits[s] : 0);
  if (met > begin) add(begin, met, TimePart::Wait);
  add(met, end, part_of(d.kind));
}

std::array<Ps, kTimeParts> sweep(std::vector<Edge>& edges, TimeRange range) {
  std::sort(edges.begin(), edges.end(), [](const Edge& x, const Edge& y) { return x.at < y.at; });
  std::array<Ps, kTimeParts> out{};
  std::array<std::int32_t, kTimeParts> running{};
  Ps before = range.begin;
  const auto account = [&](Ps until) {
    const auto top = std::find_if(running.begin(), running.end() - 1, [](auto n) { return n > 0; });
    out[static_cast<std::size_t>(top - running.begin())] += until - before;
    before = until;
  };
  for (const Edge& edge : edges) {
    if (edge.at > before) account(edge.at);
    running[static_cast<std::size_t>(edge.part)] += edge.step;
  }
  if (range.end > before) account(range.end);
  return out;
}

PartTimes parts_of_rank(const Side& side, std::int32_t rank) {
  std::vector<Edge> edges;
  for (const Track& track : side.store.tracks) {
    if (side.rank_of[track.process] != rank) continue;
    const auto [from, until] = side.store.overlapping(track, side.range.begin, side.range.end);
    for (SliceId s = from; s < until; ++s) add_edges(side, s, edges);
  }
  const auto times = sweep(edges, side.range);
  PartTimes out{};
  for (std::size_t p = 0; p < kTimeParts; ++p) out[p] = side.per_iteration(times[p]);
  return out;
}

/// Time of the operations themselves, hidden or not, in one iteration.
double work_of_rank(const Side& side, std::int32_t rank) {
  Ps time = 0;
  for (const Track& track : side.store.tracks) {
    if (side.rank_of[track.process] != rank) continue;
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      if (is_compute(side.store.kind(s))) time += side.store.duration(s);
    }
  }
  return side.per_iteration(time);
}

/// Ranks of B that stand against `common` of A: the same, or those in the same place.
std::vector<std::int32_t> ranks_of_b(const Alignment& alignment, const Side& b) {
  if (!alignment.ranks_by_order) return alignment.common_ranks;
  std::vector<std::int32_t> all(b.rank_of);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  if (!all.empty() && all.front() < 0) all.erase(all.begin());
  all.resize(std::min(all.size(), alignment.common_ranks.size()));
  return all;
}

void compare_ranks(const Side& a, const Side& b, const Alignment& alignment, RunComparison& out) {
  const std::vector<std::int32_t> others = ranks_of_b(alignment, b);
  std::vector<double> busy_a, busy_b;
  for (std::size_t i = 0; i < alignment.common_ranks.size(); ++i) {
    RankTimes times;
    times.rank = alignment.common_ranks[i];
    times.a = parts_of_rank(a, times.rank);
    times.b = parts_of_rank(b, others[i]);
    busy_a.push_back(times.busy_a = work_of_rank(a, times.rank));
    busy_b.push_back(times.busy_b = work_of_rank(b, others[i]));
    out.ranks.push_back(times);
  }
  const auto n = static_cast<double>(std::max<std::size_t>(1, out.ranks.size()));
  for (const RankTimes& times : out.ranks) {
    for (std::size_t p = 0; p < kTimeParts; ++p) {
      out.a[p] += times.a[p] / n;
      out.b[p] += times.b[p] / n;
    }
  }
  out.stragglers_a = stragglers(busy_a);
  out.stragglers_b = stragglers(busy_b);
}

/// Value below which a share of the sorted values lies; nearest rank.
double percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(std::max(1.0, rank)) - 1];
}

KindErrors errors_of(SliceKind kind, std::vector<std::pair<Ps, Ps>> durations) {
  KindErrors out;
  out.kind = kind;
  std::vector<double> sizes;
  for (const auto& [a, b] : durations) {
    out.time_a += static_cast<double>(a) * kSecond;
    out.time_b += static_cast<double>(b) * kSecond;
    if (b <= 0) continue;
    const double error = static_cast<double>(a) / static_cast<double>(b) - 1;
    out.mean += error;
    sizes.push_back(std::abs(error));
  }
  out.pairs = static_cast<std::int64_t>(durations.size());
  if (sizes.empty()) return out;
  const auto n = static_cast<double>(sizes.size());
  out.mean /= n;
  out.absolute = std::accumulate(sizes.begin(), sizes.end(), 0.0) / n;
  std::sort(sizes.begin(), sizes.end());
  out.median = percentile(sizes, 0.5);
  out.p95 = percentile(sizes, 0.95);
  return out;
}

void compare_durations(const Side& a, const Side& b, const Alignment& alignment,
                       RunComparison& out) {
  std::array<std::vector<std::pair<Ps, Ps>>, kSliceKinds> by_kind;
  std::vector<std::pair<Ps, Ps>> all;
  for (const SlicePair& pair : alignment.pairs) {
    const Ps in_a = a.store.duration(pair.a) - a.waits[pair.a];
    const Ps in_b = b.store.duration(pair.b) - b.waits[pair.b];
    by_kind[static_cast<std::size_t>(a.store.kind(pair.a))].emplace_back(in_a, in_b);
    all.emplace_back(in_a, in_b);
    ++out.paired_by[static_cast<std::size_t>(pair.by)];
  }
  for (std::size_t k = 0; k < kSliceKinds; ++k) {
    if (by_kind[k].empty()) continue;
    out.kinds.push_back(errors_of(static_cast<SliceKind>(k), std::move(by_kind[k])));
  }
  out.pairs = static_cast<std::int64_t>(all.size());
  out.all = errors_of(SliceKind::Other, std::move(all));
}

using OpKey = std::tuple<std::string, std::string, SliceKind>;  // operation, phase, kind

/// Adds the work of the given ranks, per rank and iteration, to the rows of their operations.
void add_ops(const Side& side, const std::vector<std::int32_t>& ranks, bool is_a,
             std::map<OpKey, OpTimes>& rows) {
  struct Sum {
    std::int64_t count = 0;
    Ps time = 0, wait = 0;
  };
  std::vector<Sum> sums(side.store.definitions.size());
  for (const Track& track : side.store.tracks) {
    if (!std::binary_search(ranks.begin(), ranks.end(), side.rank_of[track.process])) continue;
    const auto [from, until] = side.store.overlapping(track, side.range.begin, side.range.end);
    for (SliceId s = from; s < until; ++s) {
      Sum& sum = sums[side.store.definition_id(s)];
      ++sum.count;
      sum.time += side.store.duration(s) - side.waits[s];
      sum.wait += side.waits[s];
    }
  }
  const double n = static_cast<double>(std::max<std::size_t>(1, ranks.size()));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const Definition& d = side.store.definitions[i];
    if (sums[i].count == 0 || !is_work(d)) continue;
    OpTimes& row = rows[{d.op, d.phase, d.kind}];
    row.op = d.op, row.phase = d.phase, row.kind = d.kind;
    const double count = static_cast<double>(sums[i].count) / n / side.iterations;
    (is_a ? row.count_a : row.count_b) += count;
    (is_a ? row.time_a : row.time_b) += side.per_iteration(sums[i].time) / n;
    (is_a ? row.wait_a : row.wait_b) += side.per_iteration(sums[i].wait) / n;
  }
}

std::vector<Unmatched> unmatched(const Store& store, const std::vector<SliceId>& slices) {
  std::map<OpKey, Unmatched> rows;
  for (const SliceId s : slices) {
    const Definition& d = store.definition(s);
    Unmatched& row = rows[{d.op, d.phase, d.kind}];
    row.op = d.op, row.phase = d.phase, row.kind = d.kind;
    ++row.count;
    row.time_s += static_cast<double>(store.duration(s)) * kSecond;
  }
  std::vector<Unmatched> out;
  for (auto& [key, row] : rows) out.push_back(std::move(row));
  std::stable_sort(out.begin(), out.end(),
                   [](const Unmatched& x, const Unmatched& y) { return x.time_s > y.time_s; });
  return out;
}

bool has_loose_communication(const Side& side) {
  if (!side.store.flows().empty()) return false;
  return std::any_of(side.waits.begin(), side.waits.end(), [](Ps wait) { return wait > 0; });
}

}  // namespace

TimeRange run_range(const Store& store) {
  TimeRange steps{std::numeric_limits<Ps>::max(), std::numeric_limits<Ps>::min()};
  for (SliceId s = 0; s < store.size(); ++s) {
    if (!store.definition(s).op.starts_with("ProfilerStep#")) continue;
    steps.begin = std::min(steps.begin, store.start(s));
    steps.end = std::max(steps.end, store.end(s));
  }
  return steps.begin < steps.end ? steps : store.range();
}

std::vector<std::size_t> stragglers(const std::vector<double>& values) {
  std::vector<std::size_t> out;
  if (values.size() < 3) return out;
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double deviation = std::sqrt(squares / n);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] > mean + deviation && values[i] > 1.1 * mean) out.push_back(i);
  }
  return out;
}

RunComparison compare_runs(const Store& store_a, const Store& store_b) {
  const Side a(store_a), b(store_b);
  const Alignment alignment = align(store_a, store_b, a.iterations, b.iterations);
  RunComparison out;
  out.iterations_a = a.iterations;
  out.iterations_b = b.iterations;
  out.iteration_a = a.per_iteration(a.range.length());
  out.iteration_b = b.per_iteration(b.range.length());
  out.ranks_a = a.working;
  out.ranks_b = b.working;
  out.ranks_by_order = alignment.ranks_by_order;
  out.wait_is_bound = has_loose_communication(a) || has_loose_communication(b);
  compare_ranks(a, b, alignment, out);
  compare_durations(a, b, alignment, out);
  std::map<OpKey, OpTimes> rows;
  add_ops(a, alignment.common_ranks, true, rows);
  add_ops(b, ranks_of_b(alignment, b), false, rows);
  for (auto& [key, row] : rows) out.ops.push_back(std::move(row));
  const auto change = [](const OpTimes& row) {
    return std::abs(row.time_b - row.time_a + row.wait_b - row.wait_a);
  };
  std::stable_sort(out.ops.begin(), out.ops.end(),
                   [&](const OpTimes& x, const OpTimes& y) { return change(x) > change(y); });
  out.only_a = unmatched(store_a, alignment.only_a);
  out.only_b = unmatched(store_b, alignment.only_b);
  out.alone_a = static_cast<std::int64_t>(alignment.only_a.size());
  out.alone_b = static_cast<std::int64_t>(alignment.only_b.size());
  out.unordered = alignment.unordered;
  out.renamed.assign(alignment.renamed.begin(), alignment.renamed.end());
  return out;
}

namespace {

void add_run(const Store& store, const std::string& prefix, StoreBuilder& builder) {
  const Ps zero = run_range(store).begin;
  std::vector<std::uint32_t> processes, definitions;
  for (TraceProcess p : store.processes) {
    p.name = prefix + p.name;
    processes.push_back(builder.process(std::move(p)));
  }
  for (const Definition& d : store.definitions) definitions.push_back(builder.definition(d));
  std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> threads;
  std::vector<std::uint32_t> thread_of_track;
  for (std::size_t t = 0; t < store.tracks.size(); ++t) {
    const Track& track = store.tracks[t];
    auto found = threads.find({track.process, track.name});
    if (found == threads.end() || track.depth == 0) {
      const std::uint32_t id =
          builder.thread(processes[track.process], track.name, static_cast<std::int64_t>(t));
      found = threads.insert_or_assign({track.process, track.name}, id).first;
    }
    thread_of_track.push_back(found->second);
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      const std::string_view own = store.arguments(s);
      const bool shared = own.data() == store.definition(s).arguments.data();
      builder.slice(found->second, store.start(s) - zero, store.duration(s),
                    definitions[store.definition_id(s)],
                    store.framed(s) ? store.frame(s) : kUnframed, store.body(s),
                    shared ? std::string_view() : own);
    }
  }
  for (const Flow& f : store.flows()) {
    builder.flow(thread_of_track[store.track_of(f.from)], store.start(f.from) - zero,
                 thread_of_track[store.track_of(f.to)], store.start(f.to) - zero);
  }
  for (const Counter& c : store.counters) {
    const std::uint32_t id = builder.counter(processes[c.process], c.name, c.series);
    for (std::size_t i = 0; i < c.at.size(); ++i) builder.sample(id, c.at[i] - zero, c.value[i]);
  }
}

}  // namespace

Store joint_store(const Store& a, const Store& b) {
  StoreBuilder builder;
  add_run(a, "A · ", builder);
  add_run(b, "B · ", builder);
  return builder.finish("A " + a.title + " · B " + b.title);
}

}  // namespace gputwin
