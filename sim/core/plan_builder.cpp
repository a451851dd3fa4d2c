#include "sim/core/plan_builder.h"

#include <bit>

namespace gputwin {
namespace {

class Hash {
 public:
  template <class T>
  Hash& add(T value) {
    if constexpr (std::is_floating_point_v<T>) {
      mix(std::bit_cast<std::uint64_t>(static_cast<double>(value)));
    } else {
      mix(static_cast<std::uint64_t>(value));
    }
    return *this;
  }
  std::size_t value() const { return h_; }

 private:
  void mix(std::uint64_t v) {
    h_ = (h_ ^ v) * 0x9e3779b97f4a7c15ull;
    h_ ^= h_ >> 29;
  }
  std::uint64_t h_ = 0x243f6a8885a308d3ull;
};

std::size_t hash_of(const Call& call) {
  Hash h;
  const Op& op = call.op;
  h.add(static_cast<int>(op.kind)).add(op.slot.value).add(static_cast<int>(op.dtype));
  h.add(op.window).add(op.launches);
  h.add(op.ring_step).add(op.accumulate).add(op.scale).add(op.flops.value).add(op.stated.value);
  for (const std::int64_t d : op.dims) h.add(d);
  if (op.filter[0] != 0) {
    for (const std::int64_t w : op.filter) h.add(w);
  }
  for (const View& v : call.reads) h.add(v.buffer.value).add(v.offset).add(v.rows);
  for (const View& v : call.writes) h.add(v.buffer.value).add(v.offset).add(v.rows);
  return h.value();
}

std::size_t hash_of(const Name& name) {
  Hash h;
  h.add(static_cast<int>(name.phase)).add(name.layer).add(name.occurrence);
  return h.add(std::hash<std::string>{}(name.op)).value();
}

// Finds an equal row of `table` or appends one; returns its index.
template <class T>
std::uint32_t intern(std::vector<T>& table,
                     std::unordered_map<std::size_t, std::vector<std::uint32_t>>& index, T value) {
  std::vector<std::uint32_t>& candidates = index[hash_of(value)];
  for (const std::uint32_t c : candidates) {
    if (table[c] == value) return c;
  }
  candidates.push_back(static_cast<std::uint32_t>(table.size()));
  table.push_back(std::move(value));
  return candidates.back();
}

template <class Id, class T>
Id append(std::vector<T>& table, T value) {
  table.push_back(std::move(value));
  return Id(static_cast<std::uint32_t>(table.size() - 1));
}

}  // namespace

PlanBuilder::PlanBuilder(Plan start) : plan_(std::move(start)) {
  for (std::uint32_t c = 0; c < plan_.calls.size(); ++c) {
    calls_[hash_of(plan_.calls[c])].push_back(c);
  }
  for (std::uint32_t n = 0; n < plan_.names.size(); ++n) {
    names_[hash_of(plan_.names[n])].push_back(n);
  }
}

ArenaId PlanBuilder::arena(Arena a) { return append<ArenaId>(plan_.arenas, std::move(a)); }
BufferId PlanBuilder::buffer(Buffer b) { return append<BufferId>(plan_.buffers, std::move(b)); }
CallId PlanBuilder::call(Call c) { return CallId(intern(plan_.calls, calls_, std::move(c))); }
NameId PlanBuilder::name(Name n) { return NameId(intern(plan_.names, names_, std::move(n))); }
ProgramId PlanBuilder::program(Program p) {
  return append<ProgramId>(plan_.programs, std::move(p));
}
CommunicatorId PlanBuilder::communicator(Communicator c) {
  return append<CommunicatorId>(plan_.communicators, std::move(c));
}
RankId PlanBuilder::rank(Rank r) { return append<RankId>(plan_.ranks, std::move(r)); }

}  // namespace gputwin
