#include "sim/trace/memory_timeline.h"

#include <algorithm>
#include <utility>

namespace gputwin {

MemoryTimeline::MemoryTimeline(const Plan& plan, const Program& program)
    : plan_(&plan),
      program_(&program),
      now_(plan.arenas.size()),
      used_(plan.arenas.size()),
      changed_(plan.arenas.size(), false) {
  for (const BufferId id : program.buffers) {
    const Buffer& buffer = plan.buffers[id.value];
    used_[buffer.arena.value].set(static_cast<std::size_t>(buffer.memory));
    if (buffer.address >= 0) instances_.resize(plan.buffers.size());
    if (!buffer.persistent) continue;
    if (buffer.address >= 0) {
      instances_[id.value] = 1;
      placements_.push_back({0, id, 1});
    }
    now_[buffer.arena.value][static_cast<std::size_t>(buffer.memory)] += buffer.bytes.value;
  }
}

std::vector<MemorySample> MemoryTimeline::initial() const {
  std::vector<MemorySample> samples;
  for (std::uint32_t arena = 0; arena < now_.size(); ++arena) {
    if (used_[arena].any()) samples.push_back({0, ArenaId(arena), now_[arena]});
  }
  return samples;
}

void MemoryTimeline::ran(std::uint32_t body, std::size_t position, Ps start, Ps end,
                         std::vector<MemorySample>& out) {
  last_end_ = std::max(last_end_, end);
  const std::uint64_t bodies = program_->body.size() * static_cast<std::uint64_t>(body);
  const bool prologue = position < program_->prologue.size();
  ahead_.push({prologue ? position : bodies + position, start});
  while (!ahead_.empty()) {
    const Ahead next = ahead_.top();
    const bool overfull = ahead_.size() > kAhead;  // some task was never told: go on without it
    while (cursor_ < next.order && (overfull || !is_task(at(cursor_).kind))) apply(at(cursor_++));
    if (cursor_ < next.order) return;  // an earlier task has yet to run
    frontier_ = std::max(frontier_, next.start);
    emit(out);
    cursor_ = std::max(cursor_, next.order + 1);
    ahead_.pop();
  }
}

void MemoryTimeline::finish(std::vector<MemorySample>& out) {
  const std::uint64_t prologue = program_->prologue.size();
  const std::uint64_t body = program_->body.size();
  if (cursor_ <= prologue) return;  // no body was begun
  while ((cursor_ - prologue) % body != 0 && !is_task(at(cursor_).kind)) apply(at(cursor_++));
  frontier_ = std::max(frontier_, last_end_);
  emit(out);
}

const Instruction& MemoryTimeline::at(std::uint64_t order) const {
  const std::uint64_t prologue = program_->prologue.size();
  return order < prologue ? program_->prologue[order]
                          : program_->body[(order - prologue) % program_->body.size()];
}

void MemoryTimeline::apply(const Instruction& instruction) {
  if (instruction.kind != Kind::Alloc && instruction.kind != Kind::Free) return;
  const Buffer& buffer = plan_->buffers[instruction.buffer_id().value];
  const std::int64_t sign = instruction.kind == Kind::Alloc ? 1 : -1;
  now_[buffer.arena.value][static_cast<std::size_t>(buffer.memory)] += sign * buffer.bytes.value;
  changed_[buffer.arena.value] = true;
  if (buffer.address < 0 || instances_.empty()) return;
  instances_[instruction.buffer_id().value] += static_cast<std::int32_t>(sign);
  moved_.push_back(instruction.buffer_id());
}

std::vector<PlacementSample> MemoryTimeline::take_placements() {
  return std::exchange(placements_, {});
}

void MemoryTimeline::emit(std::vector<MemorySample>& out) {
  for (std::uint32_t arena = 0; arena < now_.size(); ++arena) {
    if (!changed_[arena]) continue;
    out.push_back({frontier_, ArenaId(arena), now_[arena]});
    changed_[arena] = false;
  }
  for (const BufferId id : moved_) placements_.push_back({frontier_, id, instances_[id.value]});
  moved_.clear();
}

}  // namespace gputwin
