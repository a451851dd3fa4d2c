// What every real run has, whatever it runs on: tasks with their times, what becomes of them, and
// initial values in its memory.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "sim/core/event_sink.h"
#include "sim/core/run_result.h"
#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::executors {

using Clock = std::chrono::steady_clock;

/// One task that ran; times since the machine was made.
struct Ran {
  RankId rank{};
  std::uint8_t stream = 0;
  const Instruction* instruction = nullptr;
  int body = 0;           // -1: prologue
  Ps start = 0, end = 0;  // a collective or message starts when this rank arrives
};

/// Thrown in every thread of a machine once one of them has failed or waited for too long.
struct Stopped {};

/// "12.50 GiB, GPU 0 has 8.00 GiB: 4.50 GiB too much" for `has` = "GPU 0 has".
std::string shortage(Bytes needed, const std::string& has, Bytes limit);

/// All elements of a buffer.
View whole(const Plan& plan, BufferId id);

/// Calls `write` with the memory, view and initial values of each buffer that is live.
template <class Live, class Write>
void write_initial_values(const interpreted::RankState& rank, const Plan& plan, const Live& live,
                          const Write& write) {
  for (const auto& [key, memory] : live) {
    const View view = whole(plan, BufferId(key.first));
    write(memory, view, rank.memory.at(key)->load(view));
  }
}

/// Keeps what `read` finds in live buffers, for the read-out of losses and weights.
template <class Live, class Read>
void read_back(const interpreted::RankState& rank, const Plan& plan, const Live& live,
               const Read& read) {
  for (const auto& [key, memory] : live) {
    const View view = whole(plan, BufferId(key.first));
    const auto block = rank.memory.find(key);
    if (block != rank.memory.end()) block->second->store(view, read(memory, view));
  }
}

/// Tasks of a run of `copy`, with the instructions of the plan it is a copy of; by their ends.
std::vector<Ran> by_end(std::vector<Ran> ran, const Plan& copy, const Plan& given);

/// Tells a sink every task of the bodies, and that all is done.
void tell(EventSink* sink, const std::vector<Ran>& ran);

/// Figures of a run from its tasks, which are sorted by their ends. Bodies after the first count if
/// there are any; `iteration` is the median (lower) of them and the breakdown that of its body:
/// what a rank's compute stream does, else which communication or copy goes on, else nothing.
Execution real_figures(const Plan& plan, const std::vector<Ran>& ran, int bodies,
                       std::vector<Ps>& iterations);

}  // namespace gputwin::executors
