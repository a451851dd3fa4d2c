// The GPU of one rank, as Walker wants a device.
#pragma once

#include "validation/executors/cuda/cuda_machine.h"

namespace gputwin::executors {

class CudaDevice {
 public:
  using Event = std::shared_ptr<cuda::Event>;
  using Memory = std::shared_ptr<CudaStay>;

  CudaDevice(CudaMachine& machine, const interpreted::RankState& rank, int gpu);
  ~CudaDevice();  // waits, at most the time-out, for what was enqueued
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  /// Makes the calling thread the rank's host, and time begin.
  void enter();
  Event record(std::uint8_t stream);
  void wait(std::uint8_t stream, Event event, const Instruction& instruction);
  void host_wait(const Event& event, const Instruction& instruction);
  Memory allocate(BufferId buffer) { return memory_.allocate(buffer); }
  void launch(std::uint8_t stream, CudaTask task);
  void collective(std::uint8_t stream, CommunicatorId group, std::uint64_t sequence, CudaTask task);
  void transfers(std::uint8_t stream, std::vector<CudaMessage> messages);
  void meet(int body);

  /// Whole contents of a stay, for what is there before and after the run.
  void write(const Memory& stay, const View& whole, const std::vector<double>& values);
  std::vector<double> read(const Memory& stay, const View& whole);

  /// False: something on a stream still runs, or waits.
  bool idle() const;
  /// Returns when idle; false after the time-out. A GPU that failed holds nothing up.
  bool drained() const;
  const std::vector<Ran>& ran() const { return ran_; }
  std::int64_t gpu_bytes() const { return memory_.gpu_bytes(); }

  // For the report of a time-out, from another thread.
  void report(std::vector<Deadlock::Blocked>& blocked) const;
  bool has_begun(CommunicatorId group, std::uint64_t sequence) const;
  bool has_begun(const CudaMessage& message) const;

 private:
  /// A task of a stream, from issue until it is seen to have ended.
  struct Issued {
    std::vector<const Instruction*> instructions;  // one, or the messages of a group
    int body = 0;
    std::vector<std::pair<Event, const Instruction*>> waits;  // of its stream, issued before it
    Event begin, end;
    std::optional<std::pair<CommunicatorId, std::uint64_t>> meeting;  // of a collective
    std::vector<CudaMessage> messages;                                // without operands
    std::shared_ptr<void> kept;  // what the host's part of it needs
  };
  struct Stream {
    cuda::Stream queue;
    std::unique_ptr<cuda::Gemm> products;
    std::optional<cuda::Arena> scratch;
    std::vector<std::pair<Event, const Instruction*>> waits;  // since the last task
    std::deque<Issued> issued;
    std::uint64_t count = 0;  // tasks issued
  };

  Event fresh_event();
  /// Enqueues what an instruction does between the two events of its time.
  void issue(std::uint8_t stream, Issued task, const std::function<void(const Lane&)>& enqueue);
  void host_task(std::uint8_t stream, Issued issued, const CudaTask& task);
  void prepare_streams();
  /// Takes tasks that have ended off the streams. True if there were some.
  bool poll();
  void note(const Issued& task, std::uint8_t stream);
  /// Polls until `ready`, with less and less haste.
  void until(const std::function<bool()>& ready);
  void begin_time();
  void at(const Instruction* instruction, std::string waiting_for);
  std::string waits_for(const Issued& task) const;
  std::string name_of(const Instruction& instruction) const;

  CudaMachine& machine_;
  const interpreted::RankState& rank_;
  const Program& program_;
  int gpu_;
  CudaMemory memory_;
  std::vector<std::unique_ptr<cuda::Event>> spare_;
  std::deque<Stream> streams_;
  Event zero_;        // device times count from it
  Ps zero_time_ = 0;  // when it happened
  std::vector<Ran> ran_;

  mutable std::recursive_mutex mutex_;  // of what report() reads; it asks other ranks, they this
  const Instruction* at_ = nullptr;
  std::string host_waits_for_;
  std::map<std::uint32_t, std::uint64_t> ended_collectives_;  // by communicator: how many
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint64_t> ended_messages_;  // by pair
};

}  // namespace gputwin::executors
