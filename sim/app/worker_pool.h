// Many runs at once: child processes of the program, since SimGrid allows one engine per process.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace gputwin {

/// Children that serve() requests, each one after another; a child that dies is replaced, and its
/// request is answered with status "error".
class WorkerPool {
 public:
  struct Task {
    std::size_t index = 0;
    nlohmann::ordered_json request;
  };

  /// A stream of requests. All three are called from several threads at once; without `cancelled`
  /// nothing stops the work.
  struct Work {
    std::function<std::optional<Task>()> next;  // may block; none: this child is done
    std::function<void(std::size_t, nlohmann::ordered_json)> answered;
    std::function<bool()> cancelled;
  };

  /// `program`: the gputwin executable; it is started with the argument "worker".
  WorkerPool(std::filesystem::path program, int workers);

  int workers() const { return workers_; }

  /// Answers in the order of `requests` (see worker.h for both), whichever child made them. After
  /// each answer `progress` is told the share done; if it returns false, the rest is answered
  /// with status "cancelled".
  std::vector<nlohmann::ordered_json> run(const std::vector<nlohmann::ordered_json>& requests,
                                          const std::function<bool(double)>& progress = {});

  /// Works until `next` has nothing more for any child. Once `cancelled` says so, children are
  /// killed within a moment, and what they were doing stays without an answer.
  void work(const Work& work);

 private:
  std::filesystem::path program_;
  int workers_;
};

/// The program that is running.
std::filesystem::path this_program();

/// Processors this process may use.
int usable_processors();

}  // namespace gputwin
