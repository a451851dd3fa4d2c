#include "validation/executors/host/host_machine.h"

#include <sys/prctl.h>

#include <algorithm>

namespace gputwin::executors {

void sleep_until(Clock::time_point end) {
  static thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  static_cast<void>(exact);  // refused: sleeps are 50 us late
  std::this_thread::sleep_until(end);
}

HostMachine::HostMachine(const interpreted::World& world, const HostOptions& options)
    : world_(world), options_(options) {}

Ps HostMachine::now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count() * 1000;
}

HostMachine::Actor& HostMachine::add_actor(RankId rank, std::optional<std::uint8_t> stream) {
  const std::lock_guard guard(mutex_);
  Actor& actor = actors_.emplace_back();
  actor.rank = rank;
  actor.stream = stream;
  return actor;
}

void HostMachine::at(Actor& actor, const Instruction* instruction) {
  const std::lock_guard guard(mutex_);
  actor.running = instruction;
}

void HostMachine::await(Lock& lock, Actor& actor, std::function<std::string()> waiting_for,
                        const std::function<bool()>& ready) {
  actor.waiting_for = std::move(waiting_for);
  const auto patience = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.time_out_s));
  actor.ready = &ready;
  while (!ready() && !stopped_) {
    const auto until = last_progress_ + patience;
    if (Clock::now() >= until) {
      report_time_out();
      break;
    }
    actor.woken.wait_until(lock, until);
  }
  actor.ready = nullptr;
  actor.waiting_for = nullptr;
  if (!ready()) throw Stopped{};
}

void HostMachine::idle(Lock& lock, Actor& actor, const std::function<bool()>& ready) {
  actor.ready = &ready;
  actor.woken.wait(lock, [&] { return stopped_ || ready(); });
  actor.ready = nullptr;
  if (stopped_) throw Stopped{};
}

void HostMachine::wake_ready() {
  for (Actor& actor : actors_) {
    if (actor.ready != nullptr && (*actor.ready)()) actor.woken.notify_one();
  }
}

void HostMachine::wake_all() {
  for (Actor& actor : actors_) actor.woken.notify_one();
  changed_.notify_all();
}

void HostMachine::progressed() {
  last_progress_ = Clock::now();
  wake_ready();
}

void HostMachine::fail(std::exception_ptr error) {
  const std::lock_guard guard(mutex_);
  if (!error_ && !deadlock_) error_ = std::move(error);
  stopped_ = true;
  wake_all();
}

void HostMachine::stop() {
  const std::lock_guard guard(mutex_);
  stopped_ = true;
  wake_all();
}

void HostMachine::left(Who who) {
  const std::lock_guard guard(mutex_);
  ++left_[static_cast<std::size_t>(who)];
  changed_.notify_all();
}

bool HostMachine::all_left(Who who, std::size_t threads, std::optional<Clock::duration> patience,
                           const std::function<bool(int)>& go_on) {
  constexpr auto kLook = std::chrono::milliseconds(100);
  const Clock::time_point begin = Clock::now();
  Lock held(mutex_);
  for (;;) {
    const std::size_t& count = left_[static_cast<std::size_t>(who)];
    if (changed_.wait_for(held, kLook, [&] { return count >= threads; })) return true;
    if (patience && Clock::now() > begin + *patience) return false;
    const int begun = static_cast<int>(met_.size());
    held.unlock();
    if (go_on && !go_on(begun)) stop();
    held.lock();
  }
}

Deadlock HostMachine::who_waits() const {
  constexpr std::size_t kMost = 16;
  Deadlock report;
  for (const Actor& actor : actors_) {
    if (actor.running == nullptr) continue;
    ++report.total;
    const std::string where =
        actor.stream ? " on " + plan().program_of(actor.rank).streams[*actor.stream].name
                     : " on the host";
    report.ranks.push_back({actor.rank, plan().full_name(*actor.running) + where,
                            actor.waiting_for ? actor.waiting_for() : "its own end: it runs"});
  }
  std::stable_sort(report.ranks.begin(), report.ranks.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (report.ranks.size() > kMost) report.ranks.resize(kMost);
  return report;
}

void HostMachine::report_time_out() {
  deadlock_ = who_waits();
  stopped_ = true;
  wake_all();
}

Deadlock HostMachine::hung() {
  const Lock held(mutex_);
  return deadlock_ ? *deadlock_ : who_waits();
}

Clock::time_point HostMachine::reserve(const Link& link, Clock::time_point& free_at, double bytes) {
  const double busy = link.rate.value > 0 ? bytes / link.rate.value : 0.0;
  const auto as_clock = [](double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  free_at = std::max(free_at, Clock::now()) + as_clock(busy);
  return free_at + as_clock(link.latency.value);
}

namespace {

/// Bytes that each member of a ring sends in a collective. Source: Patarasuk and Yuan 2009,
/// bandwidth optimal all-reduce; the halves of it for gather and scatter.
double ring_bytes(const Call& call, std::size_t members) {
  const double read = static_cast<double>(bytes_of(call.reads).value);
  const double whole = std::max(read, static_cast<double>(bytes_of(call.writes).value));
  const double share = static_cast<double>(members - 1) / static_cast<double>(members);
  return (call.op.kind == OpKind::AllReduce ? 2.0 : 1.0) * share * whole;
}

}  // namespace

std::string HostMachine::missing_members(CommunicatorId group, std::uint64_t sequence,
                                         const Meeting& meeting) const {
  const Communicator& communicator = plan().communicators[group.value];
  std::string text;
  for (std::size_t m = 0; m < meeting.tasks.size(); ++m) {
    if (meeting.tasks[m]) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(communicator.members[m].value);
  }
  return text + " to join collective #" + std::to_string(sequence) + " of " + communicator.name;
}

void HostMachine::collective(Actor& actor, CommunicatorId group, std::uint64_t sequence,
                             const HostTask& task) {
  const std::pair key{group.value, sequence};
  const std::size_t size = plan().communicators[group.value].members.size();
  const auto member = static_cast<std::size_t>(plan().member_index(group, actor.rank));
  Lock held(mutex_);
  Meeting& meeting = meetings_[key];
  meeting.tasks.resize(size);
  meeting.tasks[member] = task;
  if (++meeting.here == size) {
    const auto end = reserve(options_.collectives, group_free_[group.value],
                             ring_bytes(plan().call(*task.instruction), size));
    std::vector<const HostTask*> parts;
    for (const auto& part : meeting.tasks) parts.push_back(&*part);
    held.unlock();
    run_collective(plan(), parts);
    sleep_until(end);
    held.lock();
    meeting.done = true;
    progressed();
  }
  await(
      held, actor, [&, this] { return missing_members(group, sequence, meeting); },
      [&] { return meeting.done; });
  if (++meeting.left == size) meetings_.erase(key);
}

void HostMachine::transfer(Actor& actor, const std::vector<HostMessage>& messages) {
  const auto key = [](const HostMessage& m) {
    return PairKey{m.from.value, m.to.value, m.sequence};
  };
  Lock held(mutex_);
  for (const HostMessage& m : messages) {
    (m.send ? pairs_[key(m)].send : pairs_[key(m)].receive) = m;
  }
  wake_ready();
  for (const HostMessage& message : messages) {
    Pair& pair = pairs_[key(message)];
    const RankId other = message.send ? message.to : message.from;
    const auto waiting_for = [&] {
      return "rank " + std::to_string(other.value) + (message.send ? " to receive" : " to send") +
             " message #" + std::to_string(message.sequence);
    };
    await(held, actor, waiting_for,
          [&] { return pair.send.has_value() && pair.receive.has_value(); });
    if (!pair.taken) {
      pair.taken = true;
      const auto end =
          reserve(options_.messages, pair_free_[{message.from.value, message.to.value}],
                  static_cast<double>(pair.send->operand.view.bytes().value));
      held.unlock();
      move_values(pair.send->operand, pair.receive->operand);
      sleep_until(end);
      held.lock();
      pair.done = true;
      progressed();
    }
    await(held, actor, waiting_for, [&] { return pair.done; });
    if (++pair.left == 2) pairs_.erase(key(message));
  }
}

void HostMachine::kernel(Actor& actor, const HostTask& task) {
  std::optional<Clock::time_point> end;
  const Call& call = plan().call(*task.instruction);
  if (task.instruction->kind == Kind::Copy && !call.reads.empty() && !call.writes.empty()) {
    const ArenaId from = plan().buffers[call.reads[0].buffer.value].arena;
    const ArenaId to = plan().buffers[call.writes[0].buffer.value].arena;
    if (from != to) {
      const Lock held(mutex_);
      end = reserve(options_.copies, copy_free_[{actor.rank.value, from.value, to.value}],
                    static_cast<double>(bytes_of(call.reads).value));
    }
  }
  run_kernel(world_, world_.ranks[actor.rank.value], task);
  if (end) sleep_until(*end);
}

void HostMachine::meet(Actor& actor, int body) {
  Lock held(mutex_);
  const std::size_t ranks = plan().ranks.size();
  if (++met_[body] == ranks) progressed();
  await(
      held, actor, [] { return std::string("the other ranks to end the body"); },
      [&] { return met_[body] == ranks; });
}

void HostMachine::record(const Ran& ran) {
  const std::lock_guard guard(mutex_);
  ran_.push_back(ran);
}

HostDevice::HostDevice(HostMachine& machine, RankId rank, const CoreSet& cores)
    : machine_(machine),
      rank_(rank),
      cores_(cores),
      host_(machine.add_actor(rank, std::nullopt)),
      pool_(machine.options().poison) {
  const std::size_t count = machine.plan().program_of(rank).streams.size();
  for (std::size_t s = 0; s < count; ++s) {
    HostMachine::Actor& actor = machine.add_actor(rank, static_cast<std::uint8_t>(s));
    Stream& stream = streams_.emplace_back();
    const std::vector<int>& on = s == 0 ? cores_.compute : cores_.others;
    stream.worker = std::thread([this, &stream, &actor, &on] { serve(stream, actor, on); });
  }
}

void HostDevice::close() {
  const auto held = machine_.lock();
  closing_ = true;
  machine_.progressed();
}

HostDevice::~HostDevice() {
  close();
  for (Stream& stream : streams_) stream.worker.join();
}

void HostDevice::serve(Stream& stream, HostMachine::Actor& actor, const std::vector<int>& cores) {
  stay_on(cores);
  try {
    for (;;) {
      auto held = machine_.lock();
      machine_.idle(held, actor, [&] { return closing_ || !stream.queue.empty(); });
      if (stream.queue.empty()) break;
      Work work = std::move(stream.queue.front());
      stream.queue.pop_front();
      held.unlock();
      work(actor);
      work = nullptr;  // lets go of its memory
      held.lock();
      actor.running = nullptr;
      --stream.unfinished;
      machine_.progressed();
    }
  } catch (const Stopped&) {
  } catch (...) {
    machine_.fail(std::current_exception());
  }
  machine_.left(HostMachine::Who::Stream);
}

void HostDevice::push(std::uint8_t stream, Work work) {
  const auto held = machine_.lock();
  streams_.at(stream).queue.push_back(std::move(work));
  ++streams_[stream].unfinished;
  machine_.progressed();
}

HostDevice::Event HostDevice::record(std::uint8_t stream) {
  const auto event = std::make_shared<HostMachine::Signal>();
  push(stream, [this, event](HostMachine::Actor&) {
    const auto held = machine_.lock();
    event->happened = true;
    machine_.progressed();
  });
  return event;
}

void HostDevice::wait(std::uint8_t stream, Event event, const Instruction& instruction) {
  push(stream, [this, event, &instruction](HostMachine::Actor& actor) {
    auto held = machine_.lock();
    actor.running = &instruction;
    machine_.await(
        held, actor, [&] { return "event e" + std::to_string(instruction.event); },
        [&] { return event->happened; });
  });
}

void HostDevice::host_wait(const Event& event, const Instruction& instruction) {
  auto held = machine_.lock();
  host_.running = &instruction;
  machine_.await(
      held, host_, [&] { return "event e" + std::to_string(instruction.event); },
      [&] { return event->happened; });
  host_.running = nullptr;
}

HostDevice::Memory HostDevice::allocate(BufferId buffer) {
  return pool_.allocate(machine_.plan().buffers[buffer.value].bytes.value);
}

void HostDevice::run_task(std::uint8_t stream, HostMachine::Actor& actor, int body,
                          const std::vector<const Instruction*>& instructions,
                          const std::function<void()>& work) {
  const Instruction& first = *instructions.front();
  const Ps start = machine_.now();
  machine_.at(actor, &first);
  try {
    if (machine_.options().before_task) machine_.options().before_task(rank_, first);
    work();
  } catch (const Fault& fault) {
    throw Fault("rank " + std::to_string(rank_.value) + ", " + machine_.plan().full_name(first) +
                ": " + fault.what());
  }
  const Ps end = machine_.now();
  for (const Instruction* i : instructions) machine_.record({rank_, stream, i, body, start, end});
}

void HostDevice::launch(std::uint8_t stream, HostTask task) {
  push(stream, [this, stream, task = std::move(task)](HostMachine::Actor& actor) {
    run_task(stream, actor, task.body, {task.instruction}, [&] { machine_.kernel(actor, task); });
  });
}

void HostDevice::collective(std::uint8_t stream, CommunicatorId group, std::uint64_t sequence,
                            HostTask task) {
  push(stream, [this, stream, group, sequence, task = std::move(task)](HostMachine::Actor& actor) {
    run_task(stream, actor, task.body, {task.instruction},
             [&] { machine_.collective(actor, group, sequence, task); });
  });
}

void HostDevice::transfers(std::uint8_t stream, std::vector<HostMessage> messages) {
  push(stream, [this, stream, messages = std::move(messages)](HostMachine::Actor& actor) {
    std::vector<const Instruction*> instructions;
    for (const HostMessage& m : messages) instructions.push_back(m.instruction);
    run_task(stream, actor, messages.front().body, instructions,
             [&] { machine_.transfer(actor, messages); });
  });
}

void HostDevice::meet(int body) {
  auto held = machine_.lock();
  machine_.await(
      held, host_, [] { return std::string("its streams"); },
      [this] {
        return std::all_of(streams_.begin(), streams_.end(),
                           [](const Stream& s) { return s.unfinished == 0; });
      });
  held.unlock();
  machine_.meet(host_, body);
}

}  // namespace gputwin::executors
