// Random histories of the caching allocator: blocks never overlap, reserved covers allocated, and
// what is freed comes together again.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <vector>

#include "hwmodels/memory/caching_allocator.h"

namespace gputwin {
namespace {

struct History {
  AllocatorOptions options;
  std::vector<std::int64_t> steps;  // > 0: allocate so many bytes; <= 0: free one of the live
};

History drawn() {
  History h;
  h.options.expandable_segments = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) {
    h.options.max_split_size = Bytes(std::int64_t{*rc::gen::inRange(20, 200)} << 20);
  }
  h.options.roundup_power2_divisions = *rc::gen::element(0, 4, 16);
  const auto small = rc::gen::inRange<std::int64_t>(1, 2 << 20);
  const auto large = rc::gen::inRange<std::int64_t>(1 << 20, 100 << 20);
  const auto release = rc::gen::inRange<std::int64_t>(-50, 0);
  h.steps = *rc::gen::container<std::vector<std::int64_t>>(rc::gen::oneOf(small, large, release));
  return h;
}

class Player {
 public:
  explicit Player(const History& h) : allocator_(h.options) {}

  void step(std::int64_t what) {
    if (what > 0) {
      const auto block = allocator_.allocate(Bytes(what), what % 3 == 0 ? 1u : 0u);
      RC_ASSERT(allocator_.size(block) >= allocator_.rounded(Bytes(what)));
      live_.push_back(block);
      if (what % 5 == 0) allocator_.record_stream(block, 7);
    } else if (!live_.empty()) {
      const auto at = static_cast<std::size_t>(-what) % live_.size();
      allocator_.free(live_[at]);
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(at));
      if (what % 2 == 0) allocator_.complete(7);
    }
  }

  void check() const {
    std::map<std::int64_t, std::int64_t> by_address;
    Bytes sum{};
    for (const auto block : live_) {
      by_address[allocator_.address(block)] = allocator_.size(block).value;
      sum += allocator_.size(block);
    }
    RC_ASSERT(by_address.size() == live_.size());
    std::int64_t end = 0;
    for (const auto& [address, size] : by_address) {
      RC_ASSERT(address >= end);
      end = address + size;
    }
    RC_ASSERT(allocator_.figures().allocated == sum);
    RC_ASSERT(allocator_.figures().reserved >= sum);
    RC_ASSERT(allocator_.figures().peak_reserved >= allocator_.figures().peak_allocated);
  }

  // Everything freed leaves nothing allocated; emptied, nothing reserved: all blocks have joined.
  void end() {
    for (const auto block : live_) allocator_.free(block);
    live_.clear();
    allocator_.complete(7);
    RC_ASSERT(allocator_.figures().allocated == Bytes(0));
    allocator_.empty_cache();
    RC_ASSERT(allocator_.figures().reserved == Bytes(0));
  }

  const AllocatorFigures& figures() const { return allocator_.figures(); }

 private:
  CachingAllocator allocator_;
  std::vector<CachingAllocator::Handle> live_;
};

RC_GTEST_PROP(CachingAllocatorProperty, KeepsBlocksApartAndJoinsWhatIsFreed, ()) {
  const History history = drawn();
  Player player(history);
  for (const std::int64_t what : history.steps) {
    player.step(what);
    player.check();
  }
  player.end();
}

RC_GTEST_PROP(CachingAllocatorProperty, DoesTheSameTwice, ()) {
  const History history = drawn();
  Player one(history), other(history);
  for (const std::int64_t what : history.steps) {
    one.step(what);
    other.step(what);
  }
  RC_ASSERT(one.figures() == other.figures());
}

}  // namespace
}  // namespace gputwin
