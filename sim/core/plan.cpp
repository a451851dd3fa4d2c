#include "sim/core/plan.h"

#include <algorithm>

#include "sim/core/spelling.h"

namespace gputwin {

bool overlap(const View& a, const View& b) {
  if (a.buffer != b.buffer || a.elements() == 0 || b.elements() == 0) return false;
  const auto end = [](const View& v) { return v.offset + (v.rows - 1) * v.ld + v.cols; };
  if (a.offset >= end(b) || b.offset >= end(a)) return false;
  if (a.ld != b.ld || a.ld <= 0 || a.dtype != b.dtype) return true;
  // Equal pitch: compare rectangles. A view may start inside a row, so its columns are offset mod
  // ld.
  const std::int64_t row_a = a.offset / a.ld, row_b = b.offset / b.ld;
  const std::int64_t col_a = a.offset % a.ld, col_b = b.offset % b.ld;
  if (col_a + a.cols > a.ld || col_b + b.cols > b.ld) return true;  // wraps: hulls decide
  const bool rows = row_a < row_b + b.rows && row_b < row_a + a.rows;
  const bool cols = col_a < col_b + b.cols && col_b < col_a + a.cols;
  return rows && cols;
}

const Call& placed(const Plan& plan, RankId rank, const Call& call, Call& own) {
  const Op& op = call.op;
  if (op.kind != OpKind::Gemm || !op.slot.valid()) return call;
  const CommunicatorId group = plan.communicator(rank, op.slot);
  const auto n = static_cast<std::int64_t>(plan.communicators[group.value].members.size());
  const std::int64_t at = (plan.member_index(group, rank) + n - op.ring_step % n) % n;
  const auto block = [&](View& view, std::int64_t elements) {
    if (view.elements() != n * elements || n == 1) return;
    view.rows /= n;
    view.offset += at * view.rows * view.ld;
  };
  own = call;
  block(own.reads[0], op.dims[0] * op.dims[2]);
  block(own.reads[1], op.dims[2] * op.dims[1]);
  block(own.writes[0], op.dims[0] * op.dims[1]);
  return own;
}

Bytes bytes_of(const std::vector<View>& views) {
  Bytes sum;
  for (const View& v : views) sum += v.bytes();
  return sum;
}

std::int32_t Plan::member_index(CommunicatorId c, RankId r) const {
  const std::vector<RankId>& members = communicators[c.value].members;
  const auto it = std::find(members.begin(), members.end(), r);
  return it == members.end() ? -1 : static_cast<std::int32_t>(it - members.begin());
}

std::int64_t Plan::tasks_per_body() const {
  std::vector<std::int64_t> by_program(programs.size());
  for (std::size_t p = 0; p < programs.size(); ++p) {
    by_program[p] = std::count_if(programs[p].body.begin(), programs[p].body.end(),
                                  [](const Instruction& i) { return is_task(i.kind); });
  }
  std::int64_t sum = 0;
  for (const Rank& rank : ranks) sum += by_program[rank.program.value];
  return sum;
}

std::string Plan::full_name(const Instruction& i) const {
  if (i.name >= names.size()) return "?";
  const Name& name = names[i.name];
  std::string text(1, kPhaseLetters[static_cast<std::size_t>(name.phase)]);
  if (is_task(i.kind) && i.frame() != kNoFrame) text += "/mb" + std::to_string(i.frame());
  if (name.layer >= 0) text += "/L" + std::to_string(name.layer);
  if (name.layer == -2) text += "/head";
  text += "/" + name.op;
  if (name.occurrence != 0) text += "#" + std::to_string(name.occurrence);
  return text;
}

bool Plan::crosses_iterations() const {
  return std::any_of(programs.begin(), programs.end(), [](const Program& p) {
    return std::any_of(p.body.begin(), p.body.end(), [](const Instruction& i) {
      return (i.kind == Kind::Wait || i.kind == Kind::HostWait) && (i.flags & kPreviousBody) != 0;
    });
  });
}

std::vector<BufferId> used_buffers(const Plan& plan, const Program& program) {
  std::vector<char> buffer_used(plan.buffers.size()), call_used(plan.calls.size());
  for (const auto* list : {&program.prologue, &program.body}) {
    for (const Instruction& i : *list) {
      if (is_task(i.kind)) call_used[i.call] = 1;
      if (i.kind == Kind::Alloc || i.kind == Kind::Free) buffer_used[i.call] = 1;
    }
  }
  const auto mark = [&](BufferId b) {
    if (b.valid()) buffer_used[b.value] = 1;
  };
  for (std::size_t c = 0; c < plan.calls.size(); ++c) {
    if (!call_used[c]) continue;
    for (const View& v : plan.calls[c].reads) mark(v.buffer);
    for (const View& v : plan.calls[c].writes) mark(v.buffer);
  }
  for (const Parameter& p : program.parameters) {
    mark(p.weight.buffer);
    mark(p.gradient.buffer);
  }
  for (const Input& input : program.inputs) mark(input.buffer);
  mark(program.loss);
  std::vector<BufferId> used;
  for (std::uint32_t b = 0; b < plan.buffers.size(); ++b) {
    if (buffer_used[b]) used.push_back(BufferId(b));
  }
  return used;
}

}  // namespace gputwin
