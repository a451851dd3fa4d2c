// Which earlier instructions of other streams an instruction conflicts with, given the order that
// events already establish. Shared by synchronise() (adds the missing waits) and verify() (reports
// them).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/plan.h"

namespace gputwin {

/// Walks a program in issue order and keeps, per (buffer, frame), the accesses that later ones may
/// conflict with, and a vector clock per stream. Buffers that one stream alone touches are not
/// tracked.
class HazardTracker {
 public:
  HazardTracker(const Plan& plan, const Program& program, const std::vector<Instruction>& body);

  /// Body indices of the instructions (at most one per stream) that must have ended before
  /// `body[index]` may start and that nothing orders before it yet. Call once per task, in issue
  /// order.
  const std::vector<std::uint32_t>& before(std::uint32_t index);
  /// Orders `stream` after `body[index]`, as a Record there and a Wait on `stream` would.
  void order(std::uint8_t stream, std::uint32_t index);
  /// Ends the task `body[index]`: it becomes what later ones may conflict with.
  void add(std::uint32_t index);

  void record(const Instruction& instruction);
  void wait(const Instruction& instruction);
  void host_wait(const Instruction& instruction);

 private:
  using Clock = std::vector<std::uint32_t>;  // by stream: tasks of it known to have ended
  struct Access {
    View view;
    std::uint32_t index, sequence;
    std::uint8_t stream;
    bool write;
  };

  void find_tracked_buffers();
  std::vector<Access>* accesses(const View& view, std::uint32_t frame);
  void collect(const View& view, std::uint32_t frame, std::uint8_t stream, bool write);
  void insert(const View& view, std::uint32_t index, bool write);
  void join(Clock& into, const Clock& from) const;

  const Plan& plan_;
  const Program& program_;
  const std::vector<Instruction>& body_;
  std::vector<char> call_tracked_;
  std::vector<std::uint32_t> first_state_;  // by buffer: index into states_, or none
  std::vector<std::vector<Access>> states_;
  std::vector<Clock> clocks_;  // by stream
  Clock host_;
  std::vector<std::uint32_t> issued_;      // by stream: tasks issued so far
  std::vector<Clock> event_clocks_;        // by event
  std::vector<std::uint32_t> task_clock_;  // by body index: row of saved_, for tracked tasks
  std::vector<std::uint32_t> saved_;       // rows of streams() entries
  std::vector<std::uint32_t> found_;
  std::vector<std::uint32_t> needed_;  // by stream: body index + 1 of the latest conflict
};

}  // namespace gputwin
