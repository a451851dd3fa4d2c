#include "sim/trace/alignment.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>

#include "sim/core/spelling.h"
#include "sim/trace/argument_text.h"

namespace gputwin {

bool is_work(const Definition& d) {
  if (d.kind == SliceKind::Other) return false;
  return d.kind != SliceKind::Host || from_string<Phase>(d.phase).has_value();
}

std::vector<std::int32_t> ranks_of(const Store& store) {
  std::vector<char> works(store.processes.size(), 0);
  for (const Track& track : store.tracks) {
    for (SliceId s = track.first; s < track.first + track.count && works[track.process] == 0; ++s) {
      if (is_work(store.definition(s))) works[track.process] = 1;
    }
  }
  std::vector<std::int32_t> ranks(store.processes.size(), -1);
  std::int32_t next = 0;
  for (std::size_t p = 0; p < ranks.size(); ++p) {
    if (works[p] == 0) continue;
    ranks[p] = store.processes[p].rank >= 0 ? store.processes[p].rank : next;
    ++next;
  }
  return ranks;
}

std::int32_t iterations_of(const Store& store) {
  std::uint32_t bodies = 0, steps = 0;
  for (const Track& track : store.tracks) {
    std::uint32_t here = 0;
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      bodies = std::max(bodies, store.body(s));
      if (store.definition(s).op.starts_with("ProfilerStep#")) ++here;
    }
    steps = std::max(steps, here);
  }
  return static_cast<std::int32_t>(std::max({1u, bodies + 1, steps}));
}

namespace {

/// One slice with what identifies it, the occurrence apart.
struct Keyed {
  std::int32_t rank;
  std::uint32_t op, frame;
  Ps start;
  SliceId slice;
  auto key() const { return std::tuple(rank, op, frame); }
};

/// Numbers for (phase, layer, op), the same for both runs.
class OpNames {
 public:
  std::vector<std::uint32_t> of(const Store& store) {
    std::vector<std::uint32_t> out;
    for (const Definition& d : store.definitions) {
      const std::string key = d.phase + "\x1f" + std::to_string(d.layer) + "\x1f" + d.op;
      out.push_back(ids_.try_emplace(key, static_cast<std::uint32_t>(ids_.size())).first->second);
    }
    return out;
  }

 private:
  std::unordered_map<std::string, std::uint32_t> ids_;
};

std::vector<Keyed> keyed(const Store& store, const std::vector<std::int32_t>& ranks,
                         const std::map<std::int32_t, std::int32_t>& taken,
                         const std::vector<std::uint32_t>& ops) {
  std::vector<Keyed> out;
  for (const Track& track : store.tracks) {
    const auto rank = taken.find(ranks[track.process]);
    if (rank == taken.end()) continue;
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      if (!is_work(store.definition(s))) continue;
      out.push_back({rank->second, ops[store.definition_id(s)], store.frame(s), store.start(s), s});
    }
  }
  std::sort(out.begin(), out.end(), [](const Keyed& x, const Keyed& y) {
    return std::tuple(x.rank, x.op, x.frame, x.start, x.slice) <
           std::tuple(y.rank, y.op, y.frame, y.start, y.slice);
  });
  return out;
}

/// Slices of one key in A and in B: pairs by occurrence. Where every iteration has the same number
/// of them, the occurrence of one iteration of A meets that of the like iteration of B; the run
/// with fewer iterations begins anew, so that one predicted iteration stands for each measured one.
void pair_up(const Keyed* a, std::size_t in_a, const Keyed* b, std::size_t in_b, std::size_t its_a,
             std::size_t its_b, Alignment& out) {
  const bool whole = in_a % its_a == 0 && in_b % its_b == 0 && in_a / its_a == in_b / its_b;
  if (whole) {
    const std::size_t each = in_a / its_a;
    for (std::size_t k = 0; k < std::max(in_a, in_b); ++k) {
      const std::size_t iteration = k / each, place = k % each;
      out.pairs.push_back({a[iteration % its_a * each + place].slice,
                           b[iteration % its_b * each + place].slice, PairedBy::Name});
    }
    return;
  }
  const std::size_t both = std::min(in_a, in_b);
  for (std::size_t k = 0; k < both; ++k)
    out.pairs.push_back({a[k].slice, b[k].slice, PairedBy::Name});
  for (std::size_t k = both; k < in_a; ++k) out.only_a.push_back(a[k].slice);
  for (std::size_t k = both; k < in_b; ++k) out.only_b.push_back(b[k].slice);
}

void join(const std::vector<Keyed>& a, const std::vector<Keyed>& b, std::size_t its_a,
          std::size_t its_b, Alignment& out) {
  std::size_t i = 0, j = 0;
  const auto last = [](const std::vector<Keyed>& rows, std::size_t from) {
    std::size_t to = from;
    while (to < rows.size() && rows[to].key() == rows[from].key()) ++to;
    return to;
  };
  while (i < a.size() || j < b.size()) {
    const bool here_a = i < a.size() && (j == b.size() || a[i].key() <= b[j].key());
    const bool here_b = j < b.size() && (i == a.size() || b[j].key() <= a[i].key());
    const std::size_t to_a = here_a ? last(a, i) : i, to_b = here_b ? last(b, j) : j;
    pair_up(a.data() + i, to_a - i, b.data() + j, to_b - j, its_a, its_b, out);
    i = to_a;
    j = to_b;
  }
}

/// Slices of one operation that has no counterpart.
struct Lonely {
  Ps first = std::numeric_limits<Ps>::max();
  std::string op;
  std::vector<SliceId> slices;  // by rank's process, then time
};
using Place = std::tuple<std::string, std::int32_t, SliceKind>;  // phase, layer, kind

std::map<Place, std::vector<Lonely>> lonely(const Store& store, const std::vector<SliceId>& alone,
                                            const Store& other) {
  std::unordered_map<std::string, char> known;
  for (const Definition& d : other.definitions) known[d.op] = 1;
  std::map<Place, std::map<std::string, Lonely>> by_op;
  for (const SliceId s : alone) {
    const Definition& d = store.definition(s);
    if (known.contains(d.op)) continue;  // fewer of them is no other name
    Lonely& group = by_op[{d.phase, d.layer, d.kind}][d.op];
    group.op = d.op;
    group.first = std::min(group.first, store.start(s));
    group.slices.push_back(s);
  }
  std::map<Place, std::vector<Lonely>> out;
  for (auto& [place, groups] : by_op) {
    auto& list = out[place];
    for (auto& [op, group] : groups) list.push_back(std::move(group));
    std::stable_sort(list.begin(), list.end(),
                     [](const Lonely& x, const Lonely& y) { return x.first < y.first; });
  }
  return out;
}

void remove(std::vector<SliceId>& all, std::vector<SliceId> taken) {
  std::sort(all.begin(), all.end());
  std::sort(taken.begin(), taken.end());
  std::vector<SliceId> rest;
  std::set_difference(all.begin(), all.end(), taken.begin(), taken.end(), std::back_inserter(rest));
  all = std::move(rest);
}

void pair_renamed(const Store& a, const Store& b, Alignment& out) {
  auto in_a = lonely(a, out.only_a, b), in_b = lonely(b, out.only_b, a);
  std::vector<SliceId> taken_a, taken_b;
  for (auto& [place, groups] : in_a) {
    const auto others = in_b.find(place);
    if (others == in_b.end()) continue;
    std::vector<char> used(others->second.size(), 0);
    for (const Lonely& group : groups) {
      for (std::size_t i = 0; i < others->second.size(); ++i) {
        const Lonely& other = others->second[i];
        if (used[i] != 0 || other.slices.size() != group.slices.size()) continue;
        used[i] = 1;
        out.renamed.emplace(group.op, other.op);
        for (std::size_t s = 0; s < group.slices.size(); ++s) {
          out.pairs.push_back({group.slices[s], other.slices[s], PairedBy::Place});
          taken_a.push_back(group.slices[s]);
          taken_b.push_back(other.slices[s]);
        }
        break;
      }
    }
  }
  remove(out.only_a, std::move(taken_a));
  remove(out.only_b, std::move(taken_b));
}

using RankKind = std::pair<std::int32_t, SliceKind>;

/// One run as align() takes it: its ranks in terms of A's, by process; -1: not compared.
struct Taken {
  const Store& store;
  std::vector<std::int32_t> rank_of;
  std::size_t iterations;
  RankKind of(SliceId s) const {
    return {rank_of[store.tracks[store.track_of(s)].process], store.kind(s)};
  }
};

std::map<RankKind, std::vector<SliceId>> rows_in_order(const Taken& run,
                                                       const std::vector<SliceId>& alone,
                                                       const std::vector<RankKind>& known) {
  std::map<RankKind, std::vector<SliceId>> rows;
  for (const SliceId s : alone) {
    if (const RankKind row = run.of(s); !std::binary_search(known.begin(), known.end(), row)) {
      rows[row].push_back(s);
    }
  }
  for (auto& [row, slices] : rows) {
    std::stable_sort(slices.begin(), slices.end(), [&run](SliceId x, SliceId y) {
      return run.store.start(x) < run.store.start(y);
    });
  }
  return rows;
}

void pair_by_order(const Taken& a, const Taken& b, Alignment& out) {
  std::vector<RankKind> known;
  for (const SlicePair& pair : out.pairs) known.push_back(a.of(pair.a));
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  const auto in_a = rows_in_order(a, out.only_a, known);
  const auto in_b = rows_in_order(b, out.only_b, known);
  std::vector<SliceId> taken_a, taken_b;
  for (const auto& [row, of_a] : in_a) {
    const auto found = in_b.find(row);
    if (found == in_b.end()) continue;
    const std::vector<SliceId>& of_b = found->second;
    const std::size_t each_a = of_a.size() / a.iterations, each_b = of_b.size() / b.iterations;
    const std::size_t most = std::max(each_a, each_b), both = std::min(each_a, each_b);
    const bool whole = of_a.size() % a.iterations == 0 && of_b.size() % b.iterations == 0;
    if (!whole || static_cast<double>(most - both) > kOrderTolerance * static_cast<double>(most)) {
      const auto mean = [](std::size_t n, std::size_t iterations) {
        return static_cast<double>(n) / static_cast<double>(iterations);
      };
      out.unordered.push_back({row.first, row.second, mean(of_a.size(), a.iterations),
                               mean(of_b.size(), b.iterations)});
      continue;
    }
    for (std::size_t i = 0; i < std::max(a.iterations, b.iterations); ++i) {
      for (std::size_t n = 0; n < both; ++n) {
        const SliceId s = of_a[i % a.iterations * each_a + n];
        const SliceId t = of_b[i % b.iterations * each_b + n];
        out.pairs.push_back({s, t, PairedBy::Order});
        taken_a.push_back(s);
        taken_b.push_back(t);
      }
    }
  }
  remove(out.only_a, std::move(taken_a));
  remove(out.only_b, std::move(taken_b));
}

std::vector<std::int32_t> distinct(std::vector<std::int32_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (!ranks.empty() && ranks.front() < 0) ranks.erase(ranks.begin());
  return ranks;
}

}  // namespace

Alignment align(const Store& a, const Store& b, std::int32_t iterations_a,
                std::int32_t iterations_b) {
  Alignment out;
  const std::vector<std::int32_t> ranks_a = ranks_of(a), ranks_b = ranks_of(b);
  const auto list_a = distinct(ranks_a), list_b = distinct(ranks_b);
  std::set_intersection(list_a.begin(), list_a.end(), list_b.begin(), list_b.end(),
                        std::back_inserter(out.common_ranks));
  std::map<std::int32_t, std::int32_t> taken_a, taken_b;
  for (const std::int32_t r : out.common_ranks) taken_a[r] = taken_b[r] = r;
  if (out.common_ranks.empty()) {
    out.ranks_by_order = true;
    for (std::size_t i = 0; i < std::min(list_a.size(), list_b.size()); ++i) {
      taken_a[list_a[i]] = taken_b[list_b[i]] = list_a[i];
      out.common_ranks.push_back(list_a[i]);
    }
  }
  OpNames names;
  const auto ops_a = names.of(a), ops_b = names.of(b);
  const auto its = [](std::int32_t given, const Store& store) {
    return static_cast<std::size_t>(given > 0 ? given : iterations_of(store));
  };
  join(keyed(a, ranks_a, taken_a, ops_a), keyed(b, ranks_b, taken_b, ops_b), its(iterations_a, a),
       its(iterations_b, b), out);
  pair_renamed(a, b, out);
  const auto in_terms_of_a = [](std::vector<std::int32_t> ranks,
                                const std::map<std::int32_t, std::int32_t>& taken) {
    for (std::int32_t& r : ranks) {
      const auto found = taken.find(r);
      r = found == taken.end() ? -1 : found->second;
    }
    return ranks;
  };
  pair_by_order({a, in_terms_of_a(ranks_a, taken_a), its(iterations_a, a)},
                {b, in_terms_of_a(ranks_b, taken_b), its(iterations_b, b)}, out);
  std::sort(out.pairs.begin(), out.pairs.end(),
            [](const SlicePair& x, const SlicePair& y) { return x.b < y.b; });
  return out;
}

namespace {

/// Root of `s` in a forest of parents; halves the way.
SliceId root(std::vector<SliceId>& parent, SliceId s) {
  while (parent[s] != s) s = parent[s] = parent[parent[s]];
  return s;
}

/// Operation and size, for communications that no flow links.
std::string like(const Store& store, SliceId s) {
  std::string key = std::to_string(store.definition_id(s));
  const std::string_view arguments = store.arguments(s);
  for (const char* member : {"In msg nelems", "Out msg nelems", "bytes", "Group size"}) {
    if (const auto n = number_in(arguments, member)) key += "\x1f" + std::to_string(*n);
  }
  return key;
}

void wait_beyond_shortest(const Store& store, const std::vector<SliceId>& alone,
                          std::vector<Ps>& out) {
  struct Shortest {
    Ps time = std::numeric_limits<Ps>::max();
    std::size_t count = 0;
  };
  std::unordered_map<std::string, Shortest> kinds;
  for (const SliceId s : alone) {
    Shortest& k = kinds[like(store, s)];
    k.time = std::min(k.time, store.duration(s));
    ++k.count;
  }
  for (const SliceId s : alone) {
    const Shortest& k = kinds[like(store, s)];
    if (k.count >= 3) out[s] = store.duration(s) - k.time;
  }
}

}  // namespace

std::vector<Ps> waiting_times(const Store& store) {
  std::vector<Ps> out(store.size(), 0);
  std::vector<SliceId> parent(store.size());
  std::iota(parent.begin(), parent.end(), SliceId{0});
  const auto talks = [&store](SliceId s) { return is_communication(store.kind(s)); };
  for (const Flow& f : store.flows()) {
    if (talks(f.from) && talks(f.to)) parent[root(parent, f.from)] = root(parent, f.to);
  }
  std::vector<Ps> begun(store.size(), std::numeric_limits<Ps>::min());
  std::vector<std::uint32_t> members(store.size(), 0);
  for (SliceId s = 0; s < store.size(); ++s) {
    if (!talks(s)) continue;
    const SliceId r = root(parent, s);
    begun[r] = std::max(begun[r], store.start(s));
    ++members[r];
  }
  std::vector<SliceId> alone;
  for (SliceId s = 0; s < store.size(); ++s) {
    if (!talks(s)) continue;
    const SliceId r = root(parent, s);
    if (members[r] < 2) {
      alone.push_back(s);
    } else {
      out[s] = std::clamp<Ps>(begun[r] - store.start(s), 0, store.duration(s));
    }
  }
  wait_beyond_shortest(store, alone, out);
  return out;
}

}  // namespace gputwin
