#include "validation/executors/cuda/cuda_device.h"

#include <algorithm>
#include <thread>

#include "validation/executors/cuda/operands.h"
#include "validation/executors/host/host_kernels.h"

namespace gputwin::executors {

namespace {

Placed placed(const CudaOperand& operand) { return {operand.memory->data, operand.view}; }

HostOperand on_host(const CudaOperand& operand) {
  return {borrowed(operand.memory->data, operand.memory->bytes), operand.view};
}

/// A task of the host's processor in a stream.
struct HostPart {
  CudaMachine& machine;
  const interpreted::RankState& rank;
  HostTask task;
  std::string name;
};

void run_host_part(void* given) {
  HostPart& part = *static_cast<HostPart*>(given);
  try {
    part.machine.throw_if_stopped();
    run_kernel(part.machine.world(), part.rank, part.task);
  } catch (const Stopped&) {
  } catch (const std::exception& error) {
    part.machine.fail(std::make_exception_ptr(Fault(part.name + ": " + error.what())));
  }
}

}  // namespace

CudaDevice::CudaDevice(CudaMachine& machine, const interpreted::RankState& rank, int gpu)
    : machine_(machine),
      rank_(rank),
      program_(machine.plan().program_of(rank.id)),
      gpu_(gpu),
      memory_(machine.plan(), program_, machine.options().bodies) {
  for (std::size_t s = 0; s < program_.streams.size(); ++s) streams_.emplace_back();
  prepare_streams();
  machine.add(*this);
}

CudaDevice::~CudaDevice() { static_cast<void>(drained()); }

/// What the kernels of each stream need besides their operands.
void CudaDevice::prepare_streams() {
  std::vector<std::size_t> scratch(streams_.size(), 0);
  for (const auto* list : {&program_.prologue, &program_.body}) {
    for (const Instruction& i : *list) {
      if (i.kind != Kind::Kernel && i.kind != Kind::Copy) continue;
      const KernelWork work = work_without_memory(machine_.plan(), rank_.id, i);
      scratch[i.stream] = std::max(scratch[i.stream], prepare_kernel(work).scratch);
      auto& products = streams_[i.stream].products;
      if (needs_products(work.op) && !products) products = std::make_unique<cuda::Gemm>();
    }
  }
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (scratch[s] > 0) streams_[s].scratch.emplace(scratch[s]);
  }
}

void CudaDevice::enter() {
  cuda::use_device(gpu_);
  begin_time();
}

void CudaDevice::begin_time() {
  zero_ = fresh_event();
  zero_->record(streams_.front().queue);
  while (!zero_->done()) machine_.throw_if_stopped();
  zero_time_ = machine_.now();
}

CudaDevice::Event CudaDevice::fresh_event() {
  if (spare_.empty()) spare_.push_back(std::make_unique<cuda::Event>());
  cuda::Event* const event = spare_.back().release();
  spare_.pop_back();
  return {event, [this](cuda::Event* unused) { spare_.emplace_back(unused); }};
}

CudaDevice::Event CudaDevice::record(std::uint8_t stream) {
  machine_.throw_if_stopped();
  Event event = fresh_event();
  event->record(streams_[stream].queue);
  return event;
}

void CudaDevice::wait(std::uint8_t stream, Event event, const Instruction& instruction) {
  machine_.throw_if_stopped();
  event->wait_on(streams_[stream].queue);
  streams_[stream].waits.emplace_back(std::move(event), &instruction);
}

void CudaDevice::host_wait(const Event& event, const Instruction& instruction) {
  at(&instruction, "event e" + std::to_string(instruction.event));
  until([&] { return event->done(); });
  at(nullptr, "");
}

void CudaDevice::until(const std::function<bool()>& ready) {
  constexpr int kBusy = 2000;  // about a millisecond of queries
  for (int tries = 0; !ready(); ++tries) {
    machine_.throw_if_stopped();
    if (poll()) tries = 0;
    if (tries > kBusy) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void CudaDevice::at(const Instruction* instruction, std::string waiting_for) {
  const std::lock_guard guard(mutex_);
  at_ = instruction;
  host_waits_for_ = std::move(waiting_for);
}

std::string CudaDevice::name_of(const Instruction& instruction) const {
  return "rank " + std::to_string(rank_.id.value) + ", " + machine_.plan().full_name(instruction);
}

void CudaDevice::issue(std::uint8_t s, Issued task,
                       const std::function<void(const Lane&)>& enqueue) {
  machine_.throw_if_stopped();
  Stream& stream = streams_[s];
  const Instruction& first = *task.instructions.front();
  try {
    task.waits = std::exchange(stream.waits, {});
    task.begin = fresh_event();
    task.begin->record(stream.queue);
    at(&first, "its own call to return");
    auto* const scratch = stream.scratch ? stream.scratch->data() : nullptr;
    enqueue({stream.queue, stream.products.get(), static_cast<std::byte*>(scratch)});
    task.end = fresh_event();
    task.end->record(stream.queue);
    at(nullptr, "");
  } catch (const std::runtime_error& error) {
    machine_.throw_if_stopped();  // then the error follows from that
    throw cuda::DeviceError(name_of(first) + ": " + error.what());
  }
  {
    const std::lock_guard guard(mutex_);
    stream.issued.push_back(std::move(task));
    ++stream.count;
  }
  constexpr std::uint64_t kPollEvery = 32;
  if (stream.count % kPollEvery == 0) poll();
}

void CudaDevice::launch(std::uint8_t stream, CudaTask task) {
  Issued issued;
  issued.instructions = {task.instruction};
  issued.body = task.body;
  if (task.instruction->kind == Kind::HostTask) return host_task(stream, std::move(issued), task);
  const Op& op = machine_.plan().call(*task.instruction).op;
  KernelWork work{op,
                  {},
                  {},
                  machine_.world().member(rank_, op.slot),
                  task.body + 1,
                  machine_.options().values,
                  &rank_.counted_elsewhere};
  for (const CudaOperand& read : task.reads) work.reads.push_back(placed(read));
  for (const CudaOperand& write : task.writes) work.writes.push_back(placed(write));
  issue(stream, std::move(issued), [&](const Lane& lane) { prepare_kernel(work).enqueue(lane); });
}

void CudaDevice::host_task(std::uint8_t stream, Issued issued, const CudaTask& task) {
  const auto part = std::make_shared<HostPart>(
      HostPart{machine_, rank_, {task.instruction, task.body, {}, {}}, name_of(*task.instruction)});
  for (const CudaOperand& read : task.reads) part->task.reads.push_back(on_host(read));
  for (const CudaOperand& write : task.writes) part->task.writes.push_back(on_host(write));
  issued.kept = part;
  issue(stream, std::move(issued), [&](const Lane& lane) {
    GPUTWIN_CUDA(cudaLaunchHostFunc(lane.stream.get(), run_host_part, part.get()));
  });
}

void CudaDevice::collective(std::uint8_t stream, CommunicatorId group, std::uint64_t sequence,
                            CudaTask task) {
  Issued issued;
  issued.instructions = {task.instruction};
  issued.body = task.body;
  issued.meeting = {group, sequence};
  const Op& op = machine_.plan().call(*task.instruction).op;
  issue(stream, std::move(issued), [&](const Lane& lane) {
    const Placed from = placed(task.reads.at(0)), to = placed(task.writes.at(0));
    const bool by_shard = op.kind == OpKind::ReduceScatter;
    const View& counted = by_shard ? to.view : from.view;
    machine_.member(group, rank_.id)
        .collective(op.kind, without_gaps(from), without_gaps(to),
                    static_cast<std::size_t>(counted.elements()), collective_type(from.view.dtype),
                    op.reduce_max, static_cast<int>(op.root), lane.stream);
  });
}

void CudaDevice::transfers(std::uint8_t stream, std::vector<CudaMessage> messages) {
  Issued issued;
  for (const CudaMessage& message : messages) {
    issued.instructions.push_back(message.instruction);
    issued.messages.push_back(message);
    issued.messages.back().operand.memory = nullptr;  // a record of it must not hold its memory
  }
  issued.body = messages.front().body;
  issue(stream, std::move(issued), [&](const Lane& lane) {
    cuda::Group group;
    for (const CudaMessage& message : messages) {
      const Placed place = placed(message.operand);
      const auto bytes = static_cast<std::size_t>(place.view.bytes().value);
      const CudaMachine::MessageEnd end = machine_.message_end(rank_.id, message);
      if (message.send) {
        end.member.send(without_gaps(place), bytes, end.peer, lane.stream);
      } else {
        end.member.receive(without_gaps(place), bytes, end.peer, lane.stream);
      }
    }
    group.end();
  });
}

void CudaDevice::meet(int body) {
  until([this] {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const Stream& s) { return s.issued.empty(); });
  });
  machine_.meet(body);
  begin_time();
}

bool CudaDevice::poll() {
  bool some = false;
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    Stream& stream = streams_[s];
    while (!stream.issued.empty()) {
      const Issued& front = stream.issued.front();
      try {
        if (!front.end->done()) break;
        note(front, static_cast<std::uint8_t>(s));
      } catch (const cuda::DeviceError& error) {
        machine_.throw_if_stopped();
        throw cuda::DeviceError(name_of(*front.instructions.front()) +
                                " or what runs beside it: " + error.what());
      }
      const std::lock_guard guard(mutex_);
      if (front.meeting) ended_collectives_[front.meeting->first.value] = front.meeting->second + 1;
      for (const CudaMessage& m : front.messages) {
        ended_messages_[{m.from.value, m.to.value}] = m.sequence + 1;
      }
      stream.issued.pop_front();
      some = true;
    }
  }
  if (some) machine_.progressed();
  return some;
}

void CudaDevice::note(const Issued& task, std::uint8_t stream) {
  constexpr double kPsInSecond = 1e12;
  const auto when = [this](const Event& event) {
    return zero_time_ + static_cast<Ps>(cuda::seconds_between(*zero_, *event) * kPsInSecond);
  };
  const Ps start = when(task.begin), end = when(task.end);
  for (const Instruction* i : task.instructions) {
    ran_.push_back({rank_.id, stream, i, task.body, start, end});
  }
}

void CudaDevice::write(const Memory& stay, const View& whole, const std::vector<double>& values) {
  if (stay->home != Home::Gpu) return store({borrowed(stay->data, stay->bytes), whole}, values);
  std::vector<std::byte> bytes(static_cast<std::size_t>(stay->bytes));
  store({borrowed(bytes.data(), stay->bytes), whole}, values);
  cuda::Stream& queue = streams_.front().queue;
  cuda::copy(stay->data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, queue);
  const Event end = record(0);
  cuda::wait(*end, machine_.options().time_out_s, "a copy of initial values");
}

std::vector<double> CudaDevice::read(const Memory& stay, const View& whole) {
  if (stay->home != Home::Gpu) return load<double>({borrowed(stay->data, stay->bytes), whole});
  std::vector<std::byte> bytes(static_cast<std::size_t>(stay->bytes));
  cuda::Stream& queue = streams_.front().queue;
  cuda::copy(bytes.data(), stay->data, bytes.size(), cudaMemcpyDeviceToHost, queue);
  const Event end = record(0);
  cuda::wait(*end, machine_.options().time_out_s, "a copy of results");
  return load<double>({borrowed(bytes.data(), stay->bytes), whole});
}

bool CudaDevice::idle() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const Stream& s) { return s.queue.idle(); });
}

bool CudaDevice::drained() const {
  const std::chrono::duration<double> patience(machine_.options().time_out_s);
  const auto begin = Clock::now();
  try {
    while (!idle()) {
      if (Clock::now() - begin > patience) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const cuda::DeviceError&) {
    return true;  // all that ran on it has ended
  }
  return true;
}

bool CudaDevice::has_begun(CommunicatorId group, std::uint64_t sequence) const {
  const std::lock_guard guard(mutex_);
  const auto ended = ended_collectives_.find(group.value);
  if (ended != ended_collectives_.end() && sequence < ended->second) return true;
  for (const Stream& stream : streams_) {
    for (const Issued& task : stream.issued) {
      if (task.meeting == std::pair(group, sequence)) return task.begin->done();
    }
  }
  return false;
}

bool CudaDevice::has_begun(const CudaMessage& message) const {
  const std::lock_guard guard(mutex_);
  const auto ended = ended_messages_.find({message.from.value, message.to.value});
  if (ended != ended_messages_.end() && message.sequence < ended->second) return true;
  for (const Stream& stream : streams_) {
    for (const Issued& task : stream.issued) {
      for (const CudaMessage& m : task.messages) {
        const bool same = m.send == message.send && m.from == message.from && m.to == message.to &&
                          m.sequence == message.sequence;
        if (same) return task.begin->done();
      }
    }
  }
  return false;
}

std::string CudaDevice::waits_for(const Issued& task) const {
  if (!task.begin->done()) {
    for (const auto& [event, instruction] : task.waits) {
      if (!event->done()) return "event e" + std::to_string(instruction->event);
    }
    return "its stream, which stands still";
  }
  std::string missing;
  if (task.meeting) missing = machine_.missing_members(task.meeting->first, task.meeting->second);
  for (const CudaMessage& message : task.messages) {
    if (missing.empty()) missing = machine_.missing_end(message);
  }
  return missing.empty() ? "its own end: it runs" : missing;
}

void CudaDevice::report(std::vector<Deadlock::Blocked>& blocked) const {
  const std::lock_guard guard(mutex_);
  if (at_ != nullptr) {
    blocked.push_back(
        {rank_.id, machine_.plan().full_name(*at_) + " on the host", host_waits_for_});
  }
  for (std::size_t s = 0; s < streams_.size(); ++s) {
    if (streams_[s].issued.empty()) continue;
    const Issued& head = streams_[s].issued.front();
    std::string why;
    try {
      why = waits_for(head);
    } catch (const cuda::DeviceError& error) {
      why = error.what();
    }
    blocked.push_back(
        {rank_.id,
         machine_.plan().full_name(*head.instructions.front()) + " on " + program_.streams[s].name,
         why});
  }
}

}  // namespace gputwin::executors
