#include "sim/app/worker_pool.h"

#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <boost/process.hpp>
#include <csignal>
#include <memory>
#include <mutex>
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

}  // namespace

WorkerPool::WorkerPool(std::filesystem::path program, int workers)
    : program_(std::move(program)), workers_(std::max(1, workers)) {}

std::vector<Json> WorkerPool::run(const std::vector<Json>& requests,
                                  const std::function<bool(double)>& progress) {
  std::vector<Json> answers(requests.size(), {{"status", "cancelled"}, {"reason", "cancelled"}});
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  std::size_t done = 0;
  std::mutex telling;
  const auto work = [&] {
    std::unique_ptr<Child> child;
    while (!stopped) {
      const std::size_t i = next++;
      if (i >= requests.size()) return;
      if (!child) child = std::make_unique<Child>(program_.string());
      if (!child->ask(requests[i], answers[i])) {
        child.reset();
        answers[i] = {{"status", "error"}, {"reason", "the worker process died"}};
      }
      const std::lock_guard lock(telling);
      ++done;
      const double share = static_cast<double>(done) / static_cast<double>(requests.size());
      if (progress && !progress(share)) stopped = true;
    }
  };
  const auto before = std::signal(SIGPIPE, SIG_IGN);  // a child that died is no reason to end
  std::vector<std::thread> threads;
  const std::size_t count = std::min(requests.size(), static_cast<std::size_t>(workers_));
  for (std::size_t t = 0; t < count; ++t) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  std::signal(SIGPIPE, before);
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
