// Where stays of buffers lie: the order of a program's tasks, then a place for each stay.
#include <algorithm>
#include <limits>
#include <map>

#include "validation/executors/cuda/cuda_memory.h"

namespace gputwin::executors {

namespace {

constexpr std::int64_t kAlignment = 256;  // as cudaMalloc gives

std::int64_t aligned(std::int64_t bytes) {
  return (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

/// By stream: how many of its tasks have ended for sure.
using Ended = std::vector<std::uint64_t>;

void raise_to(Ended& to, const Ended& from) {
  for (std::size_t s = 0; s < to.size(); ++s) to[s] = std::max(to[s], from[s]);
}

/// One stay in order of issue.
struct Stay {
  BufferId buffer{};
  Ended ended_before;  // every use of it starts
  Ended last_use;      // by stream, tasks counted from 1; 0: none
};

/// What happens to memory, in order of issue.
struct Step {
  enum class Kind : std::uint8_t { Take, GiveBack, AllEnded };
  Kind kind = Kind::Take;
  std::size_t stay = 0;
};

/// Walks a program as its host does and notes which tasks are ordered.
class Order {
 public:
  Order(const Plan& plan, const Program& program, int bodies)
      : plan_(plan),
        streams_(program.streams.size(), Ended(program.streams.size(), 0)),
        host_(program.streams.size(), 0),
        count_(program.streams.size(), 0) {
    for (const BufferId id : program.buffers) {
      const Buffer& b = plan.buffers[id.value];
      const std::uint32_t frames = !b.persistent ? 0 : b.framed ? program.frames : 1;
      for (std::uint32_t f = 0; f < frames; ++f) take({id.value, b.framed ? f : kNoFrame});
    }
    for (const Instruction& i : program.prologue) issue(i);
    for (int body = 0; body < bodies; ++body) {
      previous_ = events_;
      if (!plan.crosses_iterations()) {  // bodies begin when all streams are idle
        host_ = count_;
        steps.push_back({Step::Kind::AllEnded, 0});
      }
      for (const Instruction& i : program.body) issue(i);
    }
  }

  std::vector<Stay> stays;
  std::vector<Step> steps;

 private:
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // buffer, frame

  Key key(BufferId id, const Instruction& i) const {
    return {id.value, plan_.buffers[id.value].framed ? i.frame() : kNoFrame};
  }

  void take(Key key) {
    constexpr auto kNever = std::numeric_limits<std::uint64_t>::max();
    live_[key] = stays.size();
    steps.push_back({Step::Kind::Take, stays.size()});
    stays.push_back({BufferId(key.first), Ended(count_.size(), kNever), Ended(count_.size(), 0)});
  }

  void issue(const Instruction& i) {
    switch (i.kind) {
      case Kind::Alloc: return take(key(i.buffer_id(), i));
      case Kind::Free: {
        const auto found = live_.find(key(i.buffer_id(), i));
        steps.push_back({Step::Kind::GiveBack, found->second});
        live_.erase(found);
        return;
      }
      case Kind::Record:
        events_[i.event] = streams_[i.stream];
        raise_to(events_[i.event], host_);
        return;
      case Kind::Wait: return raise_to(streams_[i.stream], event(i));
      case Kind::HostWait: return raise_to(host_, event(i));
      default: return run(i);
    }
  }

  const Ended& event(const Instruction& i) const {
    return ((i.flags & kPreviousBody) != 0 ? previous_ : events_).at(i.event);
  }

  void run(const Instruction& i) {
    Ended& ended = streams_[i.stream];
    raise_to(ended, host_);
    const std::uint64_t number = ++count_[i.stream];
    const Call& call = plan_.call(i);
    for (const auto* views : {&call.reads, &call.writes}) {
      for (const View& view : *views) {
        Stay& stay = stays[live_.at(key(view.buffer, i))];
        for (std::size_t s = 0; s < ended.size(); ++s) {
          stay.ended_before[s] = std::min(stay.ended_before[s], ended[s]);
        }
        stay.last_use[i.stream] = number;
      }
    }
    ended[i.stream] = number;  // for what follows in the stream
  }

  const Plan& plan_;
  std::vector<Ended> streams_;  // for the next task of each
  Ended host_, count_;
  std::map<Key, std::size_t> live_;
  std::map<std::uint32_t, Ended> events_, previous_;
};

/// One piece of memory while stays are placed.
class Piece {
 public:
  std::int64_t place(std::size_t number, const Stay& stay, std::int64_t bytes) {
    const std::int64_t size = aligned(bytes);
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (const auto& [other, range] : live_) taken.push_back(range);
    for (const Left& left : left_) {
      bool ended = true;
      for (std::size_t s = 0; s < left.last_use.size(); ++s) {
        ended = ended && left.last_use[s] <= stay.ended_before[s];
      }
      if (!ended) taken.push_back(left.range);
    }
    std::sort(taken.begin(), taken.end());
    std::int64_t begin = 0;
    for (const auto& [from, to] : taken) {
      if (from - begin >= size) break;
      begin = std::max(begin, to);
    }
    const std::int64_t end = begin + size;
    // What lay here ended before this stay: who comes after this stay comes after that too.
    std::erase_if(left_,
                  [&](const Left& l) { return l.range.first >= begin && l.range.second <= end; });
    live_[number] = {begin, end};
    high_ = std::max(high_, end);
    return begin;
  }

  void give_back(std::size_t number, const Stay& stay) {
    const auto found = live_.find(number);
    if (found == live_.end()) return;  // it has an address of the plan
    left_.push_back({found->second, stay.last_use});
    live_.erase(found);
  }

  void all_ended() { left_.clear(); }
  std::int64_t high() const { return high_; }

 private:
  struct Left {
    std::pair<std::int64_t, std::int64_t> range;
    Ended last_use;
  };
  std::map<std::size_t, std::pair<std::int64_t, std::int64_t>> live_;  // by stay
  std::vector<Left> left_;
  std::int64_t high_ = 0;
};

/// Addresses of a program's buffers by the plan (-1: none), and how far they reach in each home.
std::vector<std::int64_t> fixed_addresses(const Plan& plan, const Program& program,
                                          const std::vector<Home>& homes,
                                          std::array<std::int64_t, kHomes>& reach) {
  std::vector<std::int64_t> address(plan.buffers.size(), -1);
  for (const Home home : {Home::Gpu, Home::Pinned, Home::Pageable}) {
    std::vector<std::pair<std::int64_t, BufferId>> fixed;
    for (const BufferId id : program.buffers) {
      const Buffer& b = plan.buffers[id.value];
      if (b.address >= 0 && homes[id.value] == home && !b.framed) fixed.emplace_back(b.address, id);
    }
    std::sort(fixed.begin(), fixed.end());
    std::int64_t end = 0;
    bool apart = true;
    for (const auto& [at, id] : fixed) {
      apart = apart && at >= end && at % kAlignment == 0;
      end = at + plan.buffers[id.value].bytes.value;
    }
    if (!apart || fixed.empty()) continue;
    for (const auto& [at, id] : fixed) address[id.value] = at;
    reach[static_cast<std::size_t>(home)] = aligned(end);
  }
  return address;
}

}  // namespace

MemoryMap memory_map(const Plan& plan, const Program& program, const std::vector<Home>& homes,
                     int bodies) {
  std::array<std::int64_t, kHomes> reach{};
  const std::vector<std::int64_t> address = fixed_addresses(plan, program, homes, reach);
  const Order order(plan, program, bodies);
  MemoryMap map;
  std::array<Piece, kHomes> pieces;
  for (const Step& step : order.steps) {
    if (step.kind == Step::Kind::AllEnded) {
      for (Piece& piece : pieces) piece.all_ended();
      continue;
    }
    const Stay& stay = order.stays[step.stay];
    const auto home = static_cast<std::size_t>(homes[stay.buffer.value]);
    if (step.kind == Step::Kind::GiveBack) {
      pieces[home].give_back(step.stay, stay);
    } else if (address[stay.buffer.value] >= 0) {
      map.stays.push_back({stay.buffer, address[stay.buffer.value]});
    } else {
      const std::int64_t bytes = plan.buffers[stay.buffer.value].bytes.value;
      map.stays.push_back({stay.buffer, reach[home] + pieces[home].place(step.stay, stay, bytes)});
    }
  }
  for (std::size_t home = 0; home < kHomes; ++home) {
    map.bytes[home] = reach[home] + pieces[home].high();
  }
  return map;
}

}  // namespace gputwin::executors
