// Walks the program of one rank as its host thread does, on any device: issues in order, resolves
// buffers, counts collectives and messages, keeps events. What waits and what takes time is the
// device's.
//
// A Device has
//   types   Event (copyable), Memory (copyable handle; the last copy gives the memory back)
//   Event   record(stream)                     an event after all that the stream holds so far
//   void    wait(stream, Event, instruction)   the stream goes on when the event has happened
//   void    host_wait(Event, instruction)      the caller goes on when the event has happened
//   Memory  allocate(BufferId)                 room for a buffer, in the buffer's arena
//   void    launch(stream, Task)               kernel, copy or task of the host's processor
//   void    collective(stream, communicator, sequence, Task)
//   void    transfers(stream, vector<Message>) messages that start and end together
//   void    meet(body)                         returns when every rank's streams are idle
// Waits are bounded: a device that waits for too long throws, and the walk ends with it.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "sim/core/check.h"
#include "sim/core/plan.h"

namespace gputwin::executors {

template <class Memory>
struct Operand {
  Memory memory;
  View view;
};

/// A kernel, copy, host task or one member's part of a collective.
template <class Memory>
struct Task {
  const Instruction* instruction = nullptr;  // within the plan
  int body = 0;                              // -1: prologue
  std::vector<Operand<Memory>> reads, writes;
};

/// One end of a message. The `sequence`-th from `from` to `to`.
template <class Memory>
struct Message {
  const Instruction* instruction = nullptr;
  int body = 0;
  bool send = false;
  RankId from{}, to{};
  std::uint64_t sequence = 0;
  Operand<Memory> operand;
};

template <class Device>
class Walker {
 public:
  using Memory = typename Device::Memory;
  using Event = typename Device::Event;
  /// Memory of (buffer, frame); kNoFrame where the buffer is not framed.
  using Key = std::pair<std::uint32_t, std::uint32_t>;

  Walker(const Plan& plan, RankId rank, Device& device)
      : plan_(plan), program_(plan.program_of(rank)), rank_(rank), device_(device) {
    for (const BufferId id : program_.buffers) {
      const Buffer& buffer = plan_.buffers[id.value];
      if (!buffer.persistent) continue;
      for (std::uint32_t frame = 0; frame < (buffer.framed ? program_.frames : 1); ++frame) {
        live_[{id.value, buffer.framed ? frame : kNoFrame}] = device_.allocate(id);
      }
    }
  }

  /// Issues the prologue and `bodies` bodies; returns when all ranks have finished.
  void run(int bodies) {
    const bool crosses = plan_.crosses_iterations();
    body_ = -1;
    issue_all(program_.prologue);
    for (body_ = 0; body_ < bodies; ++body_) {
      previous_events_ = events_;
      if (!crosses) device_.meet(body_);
      issue_all(program_.body);
    }
    device_.meet(bodies);
  }

  const std::map<Key, Memory>& live() const { return live_; }

 private:
  void issue_all(const std::vector<Instruction>& list) {
    for (std::size_t next = 0; next < list.size(); ++next) {
      const Instruction& i = list[next];
      switch (i.kind) {
        case Kind::Kernel:
        case Kind::Copy:
        case Kind::HostTask: device_.launch(i.stream, task(i)); break;
        case Kind::Collective: issue_collective(i); break;
        case Kind::Send:
        case Kind::Recv: next = issue_transfers(list, next); break;
        case Kind::Alloc: live_[key(i.buffer_id(), i)] = device_.allocate(i.buffer_id()); break;
        case Kind::Free: live_.erase(key(i.buffer_id(), i)); break;
        case Kind::Record: events_[i.event] = device_.record(i.stream); break;
        case Kind::Wait: device_.wait(i.stream, awaited(i), i); break;
        case Kind::HostWait: device_.host_wait(awaited(i), i); break;
      }
    }
  }

  Key key(BufferId id, const Instruction& i) const {
    return {id.value, plan_.buffers[id.value].framed ? i.frame() : kNoFrame};
  }

  Operand<Memory> operand(const View& view, const Instruction& i) const {
    const auto found = live_.find(key(view.buffer, i));
    GPUTWIN_CHECK(found != live_.end(), plan_.full_name(i) + " uses a buffer that is not live");
    return {found->second, view};
  }

  Task<Memory> task(const Instruction& i) const {
    Task<Memory> made{&i, body_, {}, {}};
    Call own;
    const Call& call = placed(plan_, rank_, plan_.call(i), own);
    for (const View& view : call.reads) made.reads.push_back(operand(view, i));
    for (const View& view : call.writes) made.writes.push_back(operand(view, i));
    return made;
  }

  const Event& awaited(const Instruction& i) const {
    const auto& events = (i.flags & kPreviousBody) != 0 ? previous_events_ : events_;
    const auto found = events.find(i.event);
    GPUTWIN_CHECK(found != events.end(), "a wait has an earlier record");
    return found->second;
  }

  void issue_collective(const Instruction& i) {
    const CommunicatorId group = plan_.communicator(rank_, plan_.call(i).op.slot);
    device_.collective(i.stream, group, collectives_[group.value]++, task(i));
  }

  /// A message and, if it is grouped, those that follow on its stream. Returns the last one issued.
  std::size_t issue_transfers(const std::vector<Instruction>& list, std::size_t next) {
    std::vector<Message<Memory>> messages;
    const std::uint8_t stream = list[next].stream;
    for (;; ++next) {
      const Instruction& i = list[next];
      const Call& call = plan_.call(i);
      const RankId peer = plan_.peer(rank_, call.op.slot);
      const bool send = i.kind == Kind::Send;
      messages.push_back({&i, body_, send, send ? rank_ : peer, send ? peer : rank_,
                          (send ? sent_ : received_)[peer.value]++,
                          operand(send ? call.reads.at(0) : call.writes.at(0), i)});
      if (next + 1 == list.size()) break;
      const Instruction& after = list[next + 1];
      const bool message = after.kind == Kind::Send || after.kind == Kind::Recv;
      const bool grouped = (i.flags & kGrouped) != 0 && (after.flags & kGrouped) != 0;
      if (!message || !grouped || after.stream != stream) break;
    }
    device_.transfers(stream, std::move(messages));
    return next;
  }

  const Plan& plan_;
  const Program& program_;
  RankId rank_;
  Device& device_;
  int body_ = -1;
  std::map<Key, Memory> live_;
  std::map<std::uint32_t, Event> events_, previous_events_;
  std::map<std::uint32_t, std::uint64_t> collectives_, sent_, received_;
};

}  // namespace gputwin::executors
