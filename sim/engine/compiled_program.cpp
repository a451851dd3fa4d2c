#include "sim/engine/compiled_program.h"

#include <algorithm>
#include <cmath>

#include "sim/core/check.h"
#include "sim/engine/reference_executor.h"

namespace gputwin::engine {
namespace {

bool is_pair(Kind kind) { return kind == Kind::Send || kind == Kind::Recv; }

/// One Record of the program, with all that its slot needs to know.
struct RecordUse {
  std::uint32_t at = 0;               // position in the program
  std::uint32_t last_wait = 0;        // position of the last Wait of the same body
  bool waited = false, kept = false;  // kept: waited for across bodies, its slot is never reused
  std::uint32_t position = 0;         // in the ops of its stream
  std::uint32_t slot = kNoRow;
  std::vector<std::pair<std::uint8_t, std::uint32_t>> waits;  // entry of a clock, and position
};

class Compiler {
 public:
  Compiler(const Plan& plan, const CompileOptions& options)
      : plan_(plan), options_(options), program_(plan.programs[options.program.value]) {
    out_.source = &program_;
    prologue_ = static_cast<std::uint32_t>(program_.prologue.size());
    all_ = static_cast<std::uint32_t>(prologue_ + program_.body.size());
    GPUTWIN_CHECK(program_.streams.size() <= 32, "stream masks have 32 bits");
  }

  CompiledProgram run() {
    describe_streams();
    resolve_waits();
    emit();
    order();
    number_bodies();
    return std::move(out_);
  }

 private:
  const Instruction& at(std::uint32_t i) const { return out_.instruction(i); }

  void describe_streams() {
    const std::size_t n = program_.streams.size();
    out_.streams.resize(n);
    bool found = false;
    for (std::uint32_t s = 0; s < n; ++s) {
      if (program_.streams[s].kind != StreamKind::Compute) continue;
      out_.compute_streams |= 1u << s;
      if (!found) out_.compute_stream = s;
      found = true;
    }
    out_.launch = plan_.cuda_graph ? 0 : to_ps(options_.host.launch);
    out_.communication_launch = plan_.cuda_graph ? 0 : to_ps(options_.host.collective_launch);
    out_.resume = plan_.cuda_graph ? 0 : to_ps(options_.host.resume);
  }

  // Which Record does every Wait mean?
  void resolve_waits() {
    record_of_.assign(all_, kNoRow);
    wait_of_.assign(all_, kNoRow);
    std::vector<std::uint32_t> in_prologue(program_.events, kNoRow);
    std::vector<std::uint32_t> in_body(program_.events, kNoRow);
    for (std::uint32_t i = 0; i < all_; ++i) {  // the last Record of each event
      if (at(i).kind != Kind::Record) continue;
      record_of_[i] = static_cast<std::uint32_t>(records_.size());
      records_.push_back({});
      records_.back().at = i;
      (i < prologue_ ? in_prologue : in_body)[at(i).event] = record_of_[i];
    }
    std::vector<std::uint32_t> latest(program_.events, kNoRow);
    for (std::uint32_t i = 0; i < all_; ++i) {
      if (i == prologue_) std::fill(latest.begin(), latest.end(), kNoRow);
      const Instruction& instruction = at(i);
      if (instruction.kind == Kind::Record) latest[instruction.event] = record_of_[i];
      if (instruction.kind != Kind::Wait && instruction.kind != Kind::HostWait) continue;
      const bool body = i >= prologue_;
      resolve(i, body, latest[instruction.event], in_prologue[instruction.event],
              body ? in_body[instruction.event] : kNoRow);
    }
  }

  void resolve(std::uint32_t i, bool body, std::uint32_t latest, std::uint32_t in_prologue,
               std::uint32_t in_body) {
    const bool previous = (at(i).flags & kPreviousBody) != 0;
    Resolved wait;
    wait.event = at(i).event;
    if (latest != kNoRow && !previous) {
      wait.kind = WaitKind::Body;
      wait.record = latest;
      RecordUse& record = records_[latest];
      record.waited = true;
      record.last_wait = i;
    } else if (!body) {
      wait.kind = previous ? WaitKind::Nothing : WaitKind::Never;
    } else if (in_body != kNoRow) {
      wait.kind = WaitKind::Previous;
      wait.record = in_body;
      wait.prologue_record = in_prologue;
      records_[in_body].waited = records_[in_body].kept = true;
      if (in_prologue != kNoRow) records_[in_prologue].waited = records_[in_prologue].kept = true;
    } else if (in_prologue != kNoRow) {
      wait.kind = WaitKind::Prologue;
      wait.prologue_record = in_prologue;
      records_[in_prologue].waited = records_[in_prologue].kept = true;
    } else {
      wait.kind = previous ? WaitKind::Nothing : WaitKind::Never;
    }
    wait_of_[i] = static_cast<std::uint32_t>(resolved_.size());
    resolved_.push_back(wait);
  }

  // The lists of operations.
  void emit() {
    position_.assign(all_, 0);
    for (std::uint32_t i = 0; i < all_; ++i) {
      if (i == prologue_) begin_body();
      emit_one(i);
    }
    if (prologue_ == all_) begin_body();
    out_.body_tasks = static_cast<std::uint32_t>(out_.task_stream.size()) - out_.prologue_tasks;
    sequences_per_body();
  }

  void begin_body() {
    for (StreamProgram& stream : out_.streams) {
      stream.body_begin = static_cast<std::uint32_t>(stream.ops.size());
    }
    out_.host_body_begin = static_cast<std::uint32_t>(out_.host.size());
    out_.host_waits_body_begin = static_cast<std::uint32_t>(out_.host_waits.size());
    out_.host_launches_body_begin = static_cast<std::uint32_t>(out_.host_launches.size());
    out_.prologue_tasks = static_cast<std::uint32_t>(out_.task_stream.size());
    prologue_sequences_ = sequences_;
  }

  void emit_one(std::uint32_t i) {
    const Instruction& instruction = at(i);
    auto& ops = out_.streams[instruction.stream].ops;
    position_[i] = static_cast<std::uint32_t>(ops.size());
    StreamOp op;
    op.instruction = i;
    switch (instruction.kind) {
      case Kind::Alloc:
      case Kind::Free: return;
      case Kind::HostWait:
        out_.host.push_back(HostOp::Wait);
        out_.host_waits.push_back(wait_of_[i]);
        return;
      case Kind::Record:
        if (!records_[record_of_[i]].waited) return;
        records_[record_of_[i]].position = position_[i];
        op.code = OpCode::Record;
        ops.push_back(op);
        return;
      case Kind::Wait:
        op.code = OpCode::Wait;
        op.operand = wait_of_[i];
        ops.push_back(op);
        return;
      case Kind::Kernel:
      case Kind::HostTask:
      case Kind::Collective:
      case Kind::Send:
      case Kind::Recv:
      case Kind::Copy: break;
    }
    op.task = static_cast<std::uint32_t>(out_.task_stream.size());
    out_.task_stream.push_back(instruction.stream);
    const bool communicates = instruction.kind == Kind::Collective || is_pair(instruction.kind);
    const std::uint16_t launches = plan_.call(instruction).op.launches;
    if (!communicates && launches != 1) {
      out_.host.push_back(HostOp::LaunchSeveral);
      out_.host_launches.push_back(launches);
    } else {
      out_.host.push_back(communicates ? HostOp::LaunchCommunication : HostOp::Launch);
    }
    emit_task(i, op, ops);
  }

  void emit_task(std::uint32_t i, StreamOp op, std::vector<StreamOp>& ops) {
    const Instruction& instruction = at(i);
    if (instruction.kind == Kind::Kernel || instruction.kind == Kind::HostTask) {
      op.code = instruction.kind == Kind::Kernel ? OpCode::Kernel : OpCode::HostTask;
      op.operand = time_row(instruction);
      const bool named = instruction.name < plan_.names.size();
      if (named && plan_.names[instruction.name].phase == Phase::Optimizer) {
        op.flags |= kOptimizerPhase;
      }
    } else if (instruction.kind == Kind::Copy) {
      op.code = OpCode::Copy;
      op.operand = site_row(instruction);
    } else if (instruction.kind == Kind::Collective) {
      op.code = OpCode::Collective;
      const std::uint32_t site = site_row(instruction);
      op.operand = static_cast<std::uint32_t>(out_.collectives.size());
      out_.collectives.push_back({site, sequence(out_.sites[site]), 0});
    } else {
      op.code = OpCode::PointToPoint;
      if (joins_group(i)) {
        position_[i] = static_cast<std::uint32_t>(ops.size()) - 1;
        ops.back().task = op.task;
        add_pair(i, op.task, out_.groups[ops.back().operand]);
        return;
      }
      op.operand = static_cast<std::uint32_t>(out_.groups.size());
      out_.groups.push_back({static_cast<std::uint32_t>(out_.pairs.size()), 0});
      add_pair(i, op.task, out_.groups.back());
    }
    ops.push_back(op);
  }

  bool joins_group(std::uint32_t i) const {
    if (i == 0 || i == prologue_) return false;
    const Instruction &before = at(i - 1), &now = at(i);
    return is_pair(before.kind) && (before.flags & kGrouped) != 0 && (now.flags & kGrouped) != 0 &&
           before.stream == now.stream;
  }

  void add_pair(std::uint32_t i, std::uint32_t task, PairGroup& group) {
    const std::uint32_t site = site_row(at(i));
    for (std::uint32_t p = group.first; p < group.first + group.count; ++p) {
      if (out_.pairs[p].site == site) out_.sites[site].in_group_with_itself = true;
    }
    out_.pairs.push_back({site, sequence(out_.sites[site]), 0, task, i});
    ++group.count;
  }

  std::uint32_t& counter(const Site& site) {
    const std::size_t kinds = 3;  // collectives, sends and receives of one slot are counted apart
    const std::size_t kind = site.kind == Kind::Collective ? 0 : site.kind == Kind::Send ? 1 : 2;
    const std::size_t row = site.slot.value * kinds + kind;
    if (row >= sequences_.size()) sequences_.resize(row + 1, 0);
    return sequences_[row];
  }
  std::uint32_t sequence(const Site& site) { return counter(site)++; }

  void sequences_per_body() {
    prologue_sequences_.resize(sequences_.size(), 0);
    std::vector<std::uint32_t> per_body(sequences_.size());
    for (std::size_t i = 0; i < per_body.size(); ++i) {
      per_body[i] = sequences_[i] - prologue_sequences_[i];
    }
    sequences_ = per_body;
    for (CollectiveOp& op : out_.collectives) op.per_body = counter(out_.sites[op.site]);
    for (PairOp& op : out_.pairs) op.per_body = counter(out_.sites[op.site]);
  }

  std::uint32_t time_row(const Instruction& instruction) {
    if (time_rows_.empty()) time_rows_.assign(plan_.calls.size() * 2, kNoRow);
    const bool kernel = instruction.kind == Kind::Kernel;
    std::uint32_t& row = time_rows_[instruction.call * 2 + (kernel ? 1 : 0)];
    if (row != kNoRow) return row;
    KernelTime time;
    time.base = options_.kernel_time(instruction.call_id());
    if (kernel) {
      const Op& op = plan_.call(instruction).op;
      time.factor = options_.slowdown;
      if (op.load != 0 && op.slot.valid()) time.factor *= options_.load_factor[op.load - 1];
    }
    time.time = to_ps(time.base * time.factor);
    row = static_cast<std::uint32_t>(out_.times.size());
    out_.times.push_back(time);
    return row;
  }

  std::uint32_t site_row(const Instruction& instruction) {
    const Call& call = plan_.call(instruction);
    Site site;
    site.kind = instruction.kind;
    site.stream = instruction.stream;
    site.bytes = transfer_bytes(call);
    if (instruction.kind == Kind::Copy) {
      site.copy = call.op.copy;
      site.pinned = call.op.pinned;
      site.part = Part::CopyStall;
    } else {
      site.op = instruction.kind == Kind::Collective ? call.op.kind : OpKind::SendTo;
      site.slot = SlotId(options_.slots[call.op.slot.value]);
      site.part = exposed(program_.slots[call.op.slot.value].domain);
    }
    for (std::uint32_t s = 0; s < out_.sites.size(); ++s) {
      Site known = out_.sites[s];
      known.in_group_with_itself = false;
      if (known == site) return s;
    }
    out_.sites.push_back(site);
    return static_cast<std::uint32_t>(out_.sites.size() - 1);
  }

  // What every stream knows to be over: vector clocks over positions, by stream, and last of all
  // over the waits of the host. They tell when the slot of an event can be used again and which
  // collectives no kernel can overlap. The core holds tasks back until the host has issued them,
  // but not Records and Waits: these know nothing of the host.
  using Clock = std::vector<std::uint32_t>;

  static void join(Clock& into, const Clock& other) {
    for (std::size_t s = 0; s < into.size(); ++s) into[s] = std::max(into[s], other[s]);
  }

  void order() {
    const std::size_t n = out_.streams.size();
    clocks_.assign(n, Clock(n + 1, 0));
    host_.assign(n + 1, 0);
    snapshots_.resize(records_.size());
    for (std::uint32_t i = 0; i < all_; ++i) {
      if (wait_of_[i] == kNoRow || resolved_[wait_of_[i]].kind != WaitKind::Body) continue;
      auto& waits = records_[resolved_[wait_of_[i]].record].waits;
      if (at(i).kind == Kind::Wait) {
        waits.emplace_back(at(i).stream, position_[i]);
      } else {
        waits.emplace_back(static_cast<std::uint8_t>(n), i);
      }
    }
    for (std::uint32_t i = 0; i < all_; ++i) {
      if (i == prologue_ && options_.crosses_iterations) last_kernel_ = kNoRow;
      order_one(i);
    }
    if (options_.crosses_iterations) {
      for (const auto& [stream, position] : open_collectives_) mark_overlap(stream, position);
    }
    resolve_slots();
  }

  void order_one(std::uint32_t i) {
    const Instruction& instruction = at(i);
    const std::uint8_t s = instruction.stream;
    if (instruction.kind == Kind::Alloc || instruction.kind == Kind::Free) return;
    const std::uint32_t wait = wait_of_[i];
    const bool same_body = wait != kNoRow && resolved_[wait].kind == WaitKind::Body;
    if (instruction.kind == Kind::HostWait) {
      if (same_body) join(host_, snapshots_[resolved_[wait].record]);
      host_.back() = i + 1;
      retire(i, wait);
      return;
    }
    if (is_task(instruction.kind)) {
      host_issues();
      join(clocks_[s], host_);
    }
    if (same_body) join(clocks_[s], snapshots_[resolved_[wait].record]);
    retire(i, wait);
    if (instruction.kind == Kind::Record) {
      RecordUse& record = records_[record_of_[i]];
      if (!record.waited) return;
      record.slot = free_slot(s);
      clocks_[s][s] = position_[i] + 1;
      snapshots_[record_of_[i]] = clocks_[s];
      out_.streams[s].ops[position_[i]].operand = record.slot;
    }
    if (instruction.kind == Kind::Collective) check_overlap(s, position_[i]);
    if (instruction.kind == Kind::Kernel) kernel_passes(s, position_[i]);
    clocks_[s][s] = position_[i] + 1;
    if (is_task(instruction.kind)) task_position_.push_back(position_[i]);
  }

  /// The host issues a task only when the one a queue depth before it is over.
  void host_issues() {
    const auto depth = static_cast<std::size_t>(options_.host.queue_depth);
    const std::size_t task = task_position_.size();
    if (task < depth) return;
    std::uint32_t& known = host_[out_.task_stream[task - depth]];
    known = std::max(known, task_position_[task - depth] + 1);
  }

  void retire(std::uint32_t i, std::uint32_t wait) {
    if (wait == kNoRow || resolved_[wait].kind != WaitKind::Body) return;
    const RecordUse& record = records_[resolved_[wait].record];
    if (record.last_wait == i && !record.kept) retired_.push_back(resolved_[wait].record);
  }

  std::uint32_t free_slot(std::uint8_t stream) {
    constexpr std::size_t kLook = 64;
    for (std::size_t k = 0; k < std::min(kLook, retired_.size()); ++k) {
      const RecordUse& record = records_[retired_[k]];
      const auto over = [&](const auto& wait) { return clocks_[stream][wait.first] > wait.second; };
      if (!std::all_of(record.waits.begin(), record.waits.end(), over)) continue;
      const std::uint32_t slot = record.slot;
      retired_.erase(retired_.begin() + static_cast<std::ptrdiff_t>(k));
      return slot;
    }
    return out_.event_slots++;
  }

  void check_overlap(std::uint8_t s, std::uint32_t position) {
    const std::uint32_t compute = out_.compute_stream;
    if (out_.compute_streams == (1u << compute) && s == compute) return;
    const bool alone = out_.compute_streams == (1u << compute);
    const bool after_kernels =
        last_kernel_ == 0 || (last_kernel_ != kNoRow && clocks_[s][compute] >= last_kernel_);
    if (alone && after_kernels) {
      open_collectives_.emplace_back(s, position);
    } else {
      mark_overlap(s, position);
    }
  }

  void kernel_passes(std::uint8_t s, std::uint32_t position) {
    if (s != out_.compute_stream) return;
    for (const auto& [stream, collective] : open_collectives_) {
      if (clocks_[s][stream] <= collective) mark_overlap(stream, collective);
    }
    open_collectives_.clear();
    last_kernel_ = position + 1;
  }

  void mark_overlap(std::uint8_t s, std::uint32_t position) {
    out_.streams[s].ops[position].flags |= kMayOverlap;
    out_.overlapping_streams |= 1u << s;
  }

  void resolve_slots() {
    for (const Resolved& resolved : resolved_) {
      EventWait wait;
      wait.kind = resolved.kind;
      wait.event = resolved.event;
      if (resolved.record != kNoRow) {
        const RecordUse& record = records_[resolved.record];
        wait.stream = at(record.at).stream;
        wait.position = record.position;
        wait.slot = record.slot;
      }
      if (resolved.prologue_record != kNoRow) {
        const RecordUse& record = records_[resolved.prologue_record];
        wait.has_prologue = true;
        wait.prologue_stream = at(record.at).stream;
        wait.prologue_position = record.position;
        wait.prologue_slot = record.slot;
      }
      out_.waits.push_back(wait);
    }
  }

  /// A stream lags behind another by at most the queue depth, so slots of three bodies are enough
  /// where a body is longer than that; the shortest bodies get slots of their own for the prologue
  /// and all eight.
  void number_bodies() {
    const auto depth = static_cast<std::uint32_t>(options_.host.queue_depth);
    if (options_.crosses_iterations) out_.banks = out_.body_tasks > depth ? 3 : 9;
  }

  struct Resolved {
    WaitKind kind = WaitKind::Never;
    std::uint32_t record = kNoRow, prologue_record = kNoRow, event = 0;
  };

  const Plan& plan_;
  const CompileOptions& options_;
  const Program& program_;
  CompiledProgram out_;
  std::uint32_t prologue_ = 0, all_ = 0;
  std::vector<RecordUse> records_;
  std::vector<Resolved> resolved_;
  std::vector<std::uint32_t> record_of_, wait_of_;  // by position in the program
  std::vector<std::uint32_t> position_;             // in the ops of its stream
  std::vector<std::uint32_t> task_position_;        // by task: in the ops of its stream
  std::vector<std::uint32_t> time_rows_;
  std::vector<std::uint32_t> sequences_, prologue_sequences_;
  std::vector<Clock> clocks_, snapshots_;
  Clock host_;
  std::vector<std::uint32_t> retired_;
  std::vector<std::pair<std::uint8_t, std::uint32_t>> open_collectives_;
  std::uint32_t last_kernel_ = 0;  // position + 1; kNoRow: one of the body before, unknown
};

}  // namespace

CompiledProgram compile(const Plan& plan, const CompileOptions& options) {
  return Compiler(plan, options).run();
}

}  // namespace gputwin::engine
