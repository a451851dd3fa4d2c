// Which cores the threads of a rank work on. Left to the system, two ranks were packed on one core
// for milliseconds while the other was idle, and an iteration took 1.5 times as long as the next
// one.
#pragma once

#include <cstddef>
#include <vector>

namespace gputwin::executors {

struct CoreSet {
  std::vector<int> compute;  // of the rank's first stream
  std::vector<int> others;   // of its other streams and of the host thread, which issues
};

/// The processor's cores that this process may use, rising. Empty: the system does not say.
std::vector<int> usable_cores();

/// Cores of `rank` of `ranks`: an equal, adjacent part of `usable`, the first of them for the
/// compute stream alone; ranks with one core or less have all their threads there, in turn.
CoreSet cores_of(std::size_t rank, std::size_t ranks, const std::vector<int>& usable);

/// Keeps the calling thread on `cores`; empty, or refused by the system: where it was.
void stay_on(const std::vector<int>& cores);

}  // namespace gputwin::executors
