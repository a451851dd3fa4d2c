// Collects the slices of a run or an imported trace and makes a Store of them.
#pragma once

#include <string>
#include <vector>

#include "sim/trace/store.h"

namespace gputwin {

/// Times beyond this are not taken: sums of times must not overflow.
inline constexpr Ps kMaxTime = 4'000'000'000'000'000'000;

/// Slices come in any order; those of one thread may nest or overlap and are then laid out in
/// several tracks. About 24 B a slice until finish(), which frees them thread by thread.
class StoreBuilder {
 public:
  std::uint32_t process(TraceProcess process);
  TraceProcess& process_at(std::uint32_t id) { return store_.processes[id]; }
  /// A stream or host thread. Threads of a process appear in order of `order`, then of coming.
  std::uint32_t thread(std::uint32_t process, std::string name, std::int64_t order);
  void rename_thread(std::uint32_t thread, std::string name) { threads_[thread].name = name; }
  void order_thread(std::uint32_t thread, std::int64_t order) { threads_[thread].order = order; }
  std::uint32_t definition(Definition definition);
  void slice(std::uint32_t thread, Ps start, Ps duration, std::uint32_t definition,
             std::uint32_t frame = kUnframed, std::uint32_t body = 0,
             std::string_view arguments = {});
  /// From the slice of one thread around a time to that of another.
  void flow(std::uint32_t from_thread, Ps from_at, std::uint32_t to_thread, Ps to_at);
  std::uint32_t counter(std::uint32_t process, std::string name, std::string series);
  void sample(std::uint32_t counter, Ps at, double value);
  void warn(std::string text) { store_.warnings.push_back(std::move(text)); }
  std::size_t slices() const { return slices_; }

  Store finish(std::string title);

 private:
  struct Row {
    Ps start, duration;
    std::uint32_t definition, frame, argument;
  };
  struct Thread {
    std::uint32_t process;
    std::string name;
    std::int64_t order;
    std::vector<Row> rows;
    std::vector<std::uint32_t> tracks;  // by depth, once laid out
  };
  struct Pending {
    std::uint32_t from_thread, to_thread;
    Ps from_at, to_at;
  };

  void lay_out(Thread& thread);
  void append(const Row& row);
  SliceId find(const Thread& thread, Ps at) const;
  void resolve_flows();
  void finish_counters();

  Store store_;
  std::vector<Thread> threads_;
  std::vector<Pending> pending_;
  bool own_arguments_ = false;
  std::size_t slices_ = 0;
};

}  // namespace gputwin
