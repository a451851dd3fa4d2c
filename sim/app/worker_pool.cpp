#include "sim/app/worker_pool.h"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <boost/process.hpp>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace gputwin {
namespace {

namespace bp = boost::process;
using Json = nlohmann::ordered_json;

// One child and the pipes to it.
class Child {
 public:
  explicit Child(const std::string& program) {
    // Our ends of the pipes must not reach other children, or this one would not see them close.
    static std::mutex starting;
    const std::lock_guard lock(starting);
    for (const int end : {to_.pipe().native_sink(), from_.pipe().native_source()}) {
      fcntl(end, F_SETFD, FD_CLOEXEC);
    }
    process_ = bp::child(program, "worker", bp::std_in<to_, bp::std_out> from_);
  }
  ~Child() {
    to_.pipe().close();  // the child ends when its input does
    std::error_code ignored;
    process_.wait(ignored);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t id() const { return process_.id(); }

  // False if the child has died.
  bool ask(const Json& request, Json& answer) {
    to_ << request.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    std::string line;
    if (!to_ || !std::getline(from_, line)) return false;
    answer = Json::parse(line, nullptr, false);
    return !answer.is_discarded();
  }

 private:
  bp::opstream to_;
  bp::ipstream from_;
  bp::child process_;
};

// Ids of the children alive, so that all can be killed.
class Alive {
 public:
  void add(pid_t id) {
    const std::lock_guard lock(mutex_);
    ids_.insert(id);
  }
  void remove(pid_t id) {
    const std::lock_guard lock(mutex_);
    ids_.erase(id);
  }
  void kill_all() {
    const std::lock_guard lock(mutex_);
    for (const pid_t id : ids_) ::kill(id, SIGKILL);
  }

 private:
  std::mutex mutex_;
  std::set<pid_t> ids_;
};

// One thread of WorkerPool::work: a child, and the requests it gets.
void work_with_child(const std::string& program, const WorkerPool::Work& work,
                     const std::atomic<bool>& stopped, Alive& alive) {
  std::unique_ptr<Child> child;
  const auto dismiss = [&] {
    if (child) alive.remove(child->id());
    child.reset();
  };
  while (!stopped) {
    std::optional<WorkerPool::Task> task = work.next();
    if (!task) break;
    if (!child) {
      child = std::make_unique<Child>(program);
      alive.add(child->id());
    }
    Json answer;
    if (!child->ask(task->request, answer)) {
      dismiss();
      answer = {{"status", "error"}, {"reason", "the worker process died"}};
    }
    if (!stopped) work.answered(task->index, std::move(answer));
  }
  dismiss();
}

}  // namespace

WorkerPool::WorkerPool(std::filesystem::path program, int workers)
    : program_(std::move(program)), workers_(std::max(1, workers)) {}

void WorkerPool::work(const Work& work) {
  constexpr std::chrono::milliseconds kPoll{20};
  const auto before = std::signal(SIGPIPE, SIG_IGN);  // a child that died is no reason to end
  std::atomic<bool> stopped{false};
  Alive alive;
  std::mutex mutex;
  std::condition_variable ended;
  int running = workers_;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (int t = 0; t < workers_; ++t) {
    threads.emplace_back([&] {
      std::exception_ptr mine;
      try {
        work_with_child(program_.string(), work, stopped, alive);
      } catch (...) {
        mine = std::current_exception();
        stopped = true;
      }
      const std::lock_guard lock(mutex);
      if (mine && !failure) failure = mine;
      --running;
      ended.notify_one();
    });
  }
  for (std::unique_lock lock(mutex); running > 0;) {
    ended.wait_for(lock, kPoll);
    if (work.cancelled && work.cancelled()) stopped = true;
    if (stopped) alive.kill_all();
  }
  for (std::thread& t : threads) t.join();
  std::signal(SIGPIPE, before);
  if (failure) std::rethrow_exception(failure);
}

std::vector<Json> WorkerPool::run(const std::vector<Json>& requests,
                                  const std::function<bool(double)>& progress) {
  std::vector<Json> answers(requests.size(), {{"status", "cancelled"}, {"reason", "cancelled"}});
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  std::size_t done = 0;
  std::mutex telling;
  Work all;
  all.next = [&]() -> std::optional<Task> {
    const std::size_t i = next++;
    if (stopped || i >= requests.size()) return std::nullopt;
    return Task{i, requests[i]};
  };
  all.answered = [&](std::size_t i, Json answer) {
    answers[i] = std::move(answer);
    const std::lock_guard lock(telling);
    ++done;
    const double share = static_cast<double>(done) / static_cast<double>(requests.size());
    if (progress && !progress(share)) stopped = true;
  };
  WorkerPool(program_,
             static_cast<int>(std::min(requests.size(), static_cast<std::size_t>(workers_))))
      .work(all);
  return answers;
}

std::filesystem::path this_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace gputwin
