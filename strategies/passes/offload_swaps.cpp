// Slots of GPU memory for objects that come and go.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "sim/core/check.h"
#include "strategies/offload/swap_schedule.h"
#include "strategies/passes/offload_program.h"

namespace gputwin::offloading {
namespace {

// Buffers of host memory between NVMe and the GPU: DeepSpeed's offload_param.buffer_count.
constexpr std::size_t kStages = 5;
// What Adam reads of its outputs: master copy and two moments (op.h). The weight after them is new.
constexpr std::size_t kReadByAdam = 3;

// Tasks that find objects at home, not in a slot.
bool at_home(const Instruction& i) { return i.kind == Kind::Copy || i.kind == Kind::HostTask; }

bool overwrites(const Call& call, const View& v, const Plan& plan) {
  const bool kind = call.op.kind == OpKind::Zero || call.op.kind == OpKind::AllGather ||
                    call.op.kind == OpKind::ReduceScatter;
  return kind && v.bytes() == plan.buffers[v.buffer.value].bytes;
}

// Collectives that kernels wait for at once.
bool blocks(const Context& c, const Instruction& i) {
  if (i.kind != Kind::Collective) return false;
  const Domain d = c.target().slots[c.call(i).op.slot.value].domain;
  return d == Domain::Tp || d == Domain::Cp || d == Domain::Ep;
}

class Swaps {
 public:
  Swaps(const Context& c, const std::vector<BufferId>& objects, OffloadPlace home,
        const std::string& what)
      : c_(c),
        objects_(objects),
        on_nvme_(home == OffloadPlace::Nvme),
        writes_back_(c.spec.writes_back && what == "weight"),
        what_(what) {
    for (std::size_t k = 0; k < objects.size(); ++k) {
      index_[objects[k].value] = static_cast<std::int32_t>(k);
    }
  }

  void run(std::int32_t slots) {
    list_uses();
    problem_.slots = slots;
    SwapSchedule plan = plan_swaps(problem_, c_.spec.policy);
    while (!plan.feasible) {  // one instruction touches more objects
      ++problem_.slots;
      plan = plan_swaps(problem_, c_.spec.policy);
    }
    slots_ = like_the_largest(static_cast<std::size_t>(problem_.slots), "_slot", ArenaId(0));
    if (on_nvme_) stages_ = like_the_largest(kStages, "_stage", c_.host);
    rewrite(plan);
    const ArenaId home = on_nvme_ ? c_.nvme : c_.host;
    for (const BufferId b : objects_) c_.plan().buffers[b.value].arena = home;
  }

 private:
  std::int32_t object(const View& v) const {
    const auto found = index_.find(v.buffer.value);
    return found == index_.end() ? -1 : found->second;
  }

  void list_uses() {
    const std::vector<Instruction>& body = c_.target().body;
    const std::vector<double> start = timeline(c_);
    for (std::uint32_t i = 0; i < body.size(); ++i) {
      if (!is_task(body[i].kind) || at_home(body[i])) continue;
      const Call& call = c_.call(body[i]);
      drops_ = c_.plan().names[body[i].name].op == kCastGradient;
      for (const View& v : call.writes) {
        if (object(v) >= 0) add(i, object(v), !overwrites(call, v, c_.plan()), true, start);
      }
      for (const View& v : call.reads) {
        if (object(v) >= 0) add(i, object(v), true, writes_back_, start);
      }
    }
    problem_.objects = static_cast<std::int32_t>(objects_.size());
    for (const BufferId b : objects_) {
      problem_.load.push_back(
          std::max(copy_time(CopyKind::HostToDevice, b), drive_time(CopyKind::NvmeToHost, b)));
      problem_.store.push_back(
          std::max(copy_time(CopyKind::DeviceToHost, b), drive_time(CopyKind::HostToNvme, b)));
    }
  }

  Seconds drive_time(CopyKind kind, BufferId b) const {
    return on_nvme_ && c_.costs != nullptr ? copy_time(kind, b) : Seconds();
  }
  Seconds copy_time(CopyKind kind, BufferId b) const {
    if (c_.costs == nullptr) return Seconds(1e-6);
    constexpr std::int64_t kAll = 1 << 20;
    return shared_copy_time(c_, kind, c_.plan().buffers[b.value].bytes, kAll);
  }

  void add(std::uint32_t i, std::int32_t object, bool reads, bool writes,
           const std::vector<double>& start) {
    std::vector<SlotUse>& uses = problem_.uses;
    for (std::size_t k = uses.size(); k-- > 0 && uses[k].last == i;) {
      if (uses[k].object != object) continue;
      // An instruction that overwrites the whole and reads another part of it, reads.
      uses[k].writes = uses[k].writes || writes;
      uses[k].drops = drops_;
      return;
    }
    if (!uses.empty() && uses.back().object == object) {  // one run of instructions
      uses.back().last = i;
      uses.back().end = Seconds(start[i + 1]);
      uses.back().writes = uses.back().writes || writes;
      uses.back().drops = drops_;
      return;
    }
    uses.push_back({.object = object,
                    .first = i,
                    .last = i,
                    .begin = Seconds(start[i]),
                    .end = Seconds(start[i + 1]),
                    .reads = reads,
                    .writes = writes,
                    .drops = drops_});
  }

  std::vector<BufferId> like_the_largest(std::size_t count, const char* name, ArenaId arena) {
    Buffer made = c_.plan().buffers[objects_.front().value];
    for (const BufferId b : objects_) {
      made.bytes = std::max(made.bytes, c_.plan().buffers[b.value].bytes);
    }
    made.arena = arena;
    constexpr std::int64_t kAlignment = 512;
    const std::int64_t pitch = (made.bytes.value + kAlignment - 1) / kAlignment * kAlignment;
    std::vector<BufferId> list;
    for (std::size_t k = 0; k < count; ++k) {
      made.name = c_.target().name + "." + what_ + name + std::to_string(k);
      made.address = pitch * static_cast<std::int64_t>(k);
      list.push_back(c_.builder.buffer(made));
    }
    return list;
  }

  View in_slot(const View& v, std::int32_t slot) const {
    View moved = v;
    moved.buffer = slots_[static_cast<std::size_t>(slot)];
    return moved;
  }
  View in_next_stage(const View& v) {
    View moved = v;
    moved.buffer = stages_[next_stage_++ % stages_.size()];
    return moved;
  }
  View whole(std::int32_t object) const {
    const BufferId id = objects_[static_cast<std::size_t>(object)];
    const Buffer& b = c_.plan().buffers[id.value];
    const std::int64_t n = b.bytes.value * 8 / bits(b.dtype);
    return {.buffer = id, .rows = 1, .cols = n, .ld = n, .dtype = b.dtype};
  }

  void rewrite(const SwapSchedule& plan) {
    const std::vector<Instruction> body = std::exchange(c_.target().body, {});
    for (const Instruction& i : body) {
      if (i.kind >= Kind::Record) demand_event_ = std::max(demand_event_, i.event + 1);
    }
    std::vector<std::vector<Instruction>> insert(body.size() + 1);
    place_stores(plan, insert);
    place_loads(plan, insert);
    std::vector<Instruction> out;
    std::vector<std::int32_t> where(objects_.size(), -1);
    std::size_t use = 0;
    for (std::uint32_t i = 0; i <= body.size(); ++i) {
      out.insert(out.end(), insert[i].begin(), insert[i].end());
      if (i == body.size()) break;
      for (; use < problem_.uses.size() && problem_.uses[use].first <= i; ++use) {
        where[static_cast<std::size_t>(problem_.uses[use].object)] = plan.slot_of_use[use];
      }
      if (on_nvme_ && body[i].kind == Kind::HostTask) {
        on_host(body[i], out);
        continue;
      }
      out.push_back(body[i]);
      if (is_task(body[i].kind) && !at_home(body[i])) redirect(out.back(), where);
    }
    c_.target().body = std::move(out);
  }

  void place_stores(const SwapSchedule& plan, std::vector<std::vector<Instruction>>& insert) {
    for (const SlotStore& s : plan.stores) {
      const View home = whole(s.object), below = on_nvme_ ? in_next_stage(home) : home;
      std::vector<Instruction>& to = insert[problem_.uses[s.after].last + 1];
      to.push_back(c_.copy(CopyKind::DeviceToHost, c_.streams.out, in_slot(home, s.slot), below,
                           what_ + "_out", s.object));
      if (on_nvme_) to.push_back(to_drive(below, s.object));
    }
  }

  // Issued as soon as the slot's last user is, in order of use: a copy engine takes them in turn.
  void place_loads(const SwapSchedule& plan, std::vector<std::vector<Instruction>>& insert) {
    std::size_t issued = 0;
    for (const SlotLoad& l : plan.loads) {
      if (!l.copies) continue;
      const std::size_t needed = problem_.uses[l.before].first;
      const bool greedy = c_.spec.policy == OffloadPolicy::Greedy;
      const std::size_t free = l.after == kNever ? 0 : problem_.uses[l.after].last + 1;
      issued = greedy ? std::max(issued, free) : needed;
      GPUTWIN_CHECK(issued <= needed, "a load is issued before its use");
      if (!greedy) wait_for_kernels(insert[issued]);
      const View home = whole(l.object), below = on_nvme_ ? in_next_stage(home) : home;
      if (on_nvme_) insert[issued].push_back(from_drive(below, l.object));
      insert[issued].push_back(c_.copy(CopyKind::HostToDevice, c_.streams.in, below,
                                       in_slot(home, l.slot), what_ + "_in", l.object));
    }
  }

  Instruction from_drive(const View& stage, std::int32_t object) {
    return c_.copy(CopyKind::NvmeToHost, c_.streams.nvme_in, whole(object), stage, what_ + "_read",
                   object);
  }
  Instruction to_drive(const View& stage, std::int32_t object) {
    return c_.copy(CopyKind::HostToNvme, c_.streams.nvme_out, stage, whole(object),
                   what_ + "_write", object);
  }

  // A task of the host changes the object in a buffer of host memory, into which it is read before
  // unless Adam writes all of it anew.
  void on_host(Instruction i, std::vector<Instruction>& out) {
    Call moved = c_.call(i);
    std::vector<Instruction> writes;
    for (std::size_t n = 0; n < moved.writes.size(); ++n) {
      View& v = moved.writes[n];
      const std::int32_t k = object(v);
      if (k < 0) continue;
      const View stage = in_next_stage(whole(k));
      const bool anew = moved.op.kind == OpKind::CpuAdam && n >= kReadByAdam;
      if (!anew || v.bytes() < stage.bytes()) out.push_back(from_drive(stage, k));
      writes.push_back(to_drive(stage, k));
      v.buffer = stage.buffer;
    }
    if (!writes.empty()) i.call = c_.builder.call(std::move(moved)).value;
    out.push_back(i);
    out.insert(out.end(), writes.begin(), writes.end());
  }

  // A fetch on demand starts when the kernels before it have ended.
  void wait_for_kernels(std::vector<Instruction>& to) {
    to.push_back({.kind = Kind::Record, .stream = 0, .event = demand_event_});
    to.push_back({.kind = Kind::Wait, .stream = c_.streams.in, .event = demand_event_});
  }

  void redirect(Instruction& i, const std::vector<std::int32_t>& where) {
    const Call& call = c_.call(i);
    std::vector<std::int32_t> key{static_cast<std::int32_t>(i.call)};
    for (const auto* views : {&call.reads, &call.writes}) {
      for (const View& v : *views) {
        if (object(v) >= 0) key.push_back(where[static_cast<std::size_t>(object(v))]);
      }
    }
    if (key.size() == 1) return;
    const auto [found, added] = redirected_.try_emplace(key, CallId());
    if (added) {
      Call moved = call;
      for (auto* views : {&moved.reads, &moved.writes}) {
        for (View& v : *views) {
          if (object(v) >= 0) v = in_slot(v, where[static_cast<std::size_t>(object(v))]);
        }
      }
      found->second = c_.builder.call(std::move(moved));
    }
    i.call = found->second.value;
  }

  const Context& c_;
  const std::vector<BufferId>& objects_;
  const bool on_nvme_;
  bool drops_ = false;      // the instruction is the last that needs its objects
  const bool writes_back_;  // what was only read is copied down as well
  const std::string what_;
  std::map<std::uint32_t, std::int32_t> index_;  // by buffer
  SwapProblem problem_;
  std::vector<BufferId> slots_, stages_;
  std::size_t next_stage_ = 0;
  std::map<std::vector<std::int32_t>, CallId> redirected_;
  std::uint32_t demand_event_ = 0;  // explicit ones so far come before it
};

}  // namespace

Seconds duration(const Context& c, const Instruction& i) {
  const Call& call = c.call(i);
  if (c.costs == nullptr) return Seconds(1e-6);
  const Rank& rank = c.plan().ranks[c.rank.value];
  if (i.kind == Kind::Copy) {
    return shared_copy_time(c, call.op.copy, bytes_of(call.reads), c.ranks_on_node());
  }
  if (i.kind == Kind::Kernel || i.kind == Kind::HostTask) {
    return c.costs
        ->kernel(call.op, bytes_of(call.reads), bytes_of(call.writes),
                 c.topology->device_kind(rank.gpu))
        .time;
  }
  if (i.kind != Kind::Collective || rank.slots[call.op.slot.value] == SlotId::kNone) return {};
  std::vector<GpuId> gpus;
  for (const RankId m : c.plan().communicators[rank.slots[call.op.slot.value]].members) {
    gpus.push_back(c.plan().ranks[m.value].gpu);
  }
  const Bytes bytes = std::max(bytes_of(call.reads), bytes_of(call.writes));
  return closed_form(c.costs->collective(call.op.kind, bytes, gpus), gpus, *c.topology);
}

Seconds shared_copy_time(const Context& c, CopyKind kind, Bytes bytes, std::int64_t ranks) {
  const auto sharers = static_cast<double>(std::min<std::int64_t>(
      ranks, c.topology->node_type(c.plan().ranks[c.rank.value].gpu).pcie.gpus_per_switch));
  const GpuId gpu = c.plan().ranks[c.rank.value].gpu;
  const Seconds alone = c.costs->copy(kind, bytes, c.spec.pinned, gpu).time;
  if (kind == CopyKind::NvmeToHost || kind == CopyKind::HostToNvme) {
    return alone * static_cast<double>(c.ranks_on_node());
  }
  const PcieTree& pcie = c.topology->node_type(gpu).pcie;
  const double uplink = pcie.switch_uplink.value * pcie.efficiency / sharers;
  return std::max(alone, uplink > 0 ? bytes / BytesPerSecond(uplink) : Seconds());
}

std::vector<double> timeline(const Context& c) {
  const std::vector<Instruction>& body = c.target().body;
  std::vector<double> start(body.size() + 1, 0.0);
  std::vector<double> by_call(c.plan().calls.size(), -1.0);
  double now = 0;
  for (std::size_t i = 0; i < body.size(); ++i) {
    start[i] = now;
    const bool kernel = body[i].kind == Kind::Kernel &&
                        c.target().streams[body[i].stream].kind == StreamKind::Compute;
    if (!kernel && !blocks(c, body[i])) continue;
    double& seconds = by_call[body[i].call];
    if (seconds < 0) seconds = duration(c, body[i]).value;
    now += seconds;
  }
  start[body.size()] = now;
  return start;
}

void add_swaps(const Context& c, const std::vector<BufferId>& objects, std::int32_t slots,
               OffloadPlace home, const std::string& what) {
  if (objects.empty()) return;
  Swaps swaps(c, objects, home, what);
  swaps.run(slots);
}

}  // namespace gputwin::offloading
