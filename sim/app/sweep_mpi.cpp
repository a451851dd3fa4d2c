// The crew over Boost.MPI. Only the main thread of a process calls MPI; the pool works in another.
#include "sim/app/sweep_mpi.h"

#include <atomic>
#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>
#include <boost/mpi/nonblocking.hpp>
#include <boost/serialization/string.hpp>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sim/core/error.h"

namespace gputwin {
namespace {

namespace mpi = boost::mpi;
using Json = nlohmann::ordered_json;

// Messages. A helper sends kReady once per child it has, then one kAnswer per task; either asks
// for a task. Rank 0 sends tasks, and kStop once, which a helper answers with its last message,
// kGone. Sends do not block: two processes that send to each other would wait forever.
enum Tag : int { kReady, kAnswer, kTask, kStop, kGone };

constexpr std::chrono::microseconds kPoll{500};

// Work in a thread of its own, while the main thread talks.
class PoolThread {
 public:
  PoolThread(WorkerPool& pool, WorkerPool::Work work)
      : thread_([this, &pool, work = std::move(work)] {
          try {
            pool.work(work);
          } catch (...) {
            failure_ = std::current_exception();
          }
          done_ = true;
        }) {}
  ~PoolThread() {
    if (thread_.joinable()) thread_.join();
  }
  PoolThread(const PoolThread&) = delete;
  PoolThread& operator=(const PoolThread&) = delete;

  bool done() const { return done_; }
  void join() {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::atomic<bool> done_{false};
  std::exception_ptr failure_;
  std::thread thread_;  // last: it uses the others
};

// What a helper's children take from and put into.
class Desk {
 public:
  void give(WorkerPool::Task task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  std::optional<WorkerPool::Task> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return closed_ || !tasks_.empty(); });
    if (closed_) return std::nullopt;
    WorkerPool::Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }
  void put(std::size_t index, Json answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back({index, std::move(answer)});
  }
  std::optional<WorkerPool::Task> answer() {
    const std::lock_guard lock(mutex_);
    if (answers_.empty()) return std::nullopt;
    WorkerPool::Task answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<WorkerPool::Task> tasks_, answers_;
  bool closed_ = false;
};

std::string packed(std::size_t index, const Json& content) {
  return Json{{"index", index}, {"content", content}}.dump(-1, ' ', false,
                                                           Json::error_handler_t::replace);
}

WorkerPool::Task unpacked(const std::string& text) {
  Json message = Json::parse(text);
  return {message.at("index").get<std::size_t>(), std::move(message.at("content"))};
}

}  // namespace

struct MpiCrew::Mpi {
  // Errors travel as exceptions to main, which ends the process as always.
  mpi::environment environment{mpi::threading::funneled, /*abort_on_exception=*/false};
  mpi::communicator world;
  std::vector<mpi::request> sent;  // perhaps still on their way
  bool stopped = false;

  void send(int to, Tag tag, const std::string& text) {
    std::erase_if(sent, [](mpi::request& r) { return r.test().has_value(); });
    sent.push_back(world.isend(to, tag, text));
  }
  std::optional<std::pair<mpi::status, std::string>> receive() {
    const auto message = world.iprobe(mpi::any_source, mpi::any_tag);
    if (!message) return std::nullopt;
    std::string text;
    const mpi::status status = world.recv(message->source(), message->tag(), text);
    return std::pair{status, std::move(text)};
  }
  void flush() {
    mpi::wait_all(sent.begin(), sent.end());
    sent.clear();
  }
  // Tells the others to end and waits until they have; what they still say is of no use.
  void stop_others() {
    if (stopped || world.rank() != 0) return;
    stopped = true;
    for (int r = 1; r < world.size(); ++r) send(r, kStop, "");
    for (int here = world.size() - 1; here > 0;) {
      const auto message = receive();
      if (message && message->first.tag() == kGone) --here;
      if (!message) std::this_thread::sleep_for(kPoll);
    }
    flush();
  }
};

MpiCrew::MpiCrew() : mpi_(std::make_unique<Mpi>()) {
  if (mpi_->world.size() == launched_processes()) return;
  throw InputError("sweep", "", std::to_string(launched_processes()) + " processes",
                   "were started together, but MPI sees " + std::to_string(mpi_->world.size()),
                   "use the launcher of the MPI this program was built with: mpirun, or srun "
                   "--mpi=pmix");
}

MpiCrew::~MpiCrew() { mpi_->stop_others(); }

int MpiCrew::rank() const { return mpi_->world.rank(); }

void MpiCrew::share(WorkerPool& pool, const WorkerPool::Work& work) {
  PoolThread own(pool, work);
  int away = 0;  // tasks that other ranks have
  bool exhausted = false;
  while (!work.cancelled()) {
    const auto message = mpi_->receive();
    if (!message) {
      if (own.done() && away == 0) break;
      std::this_thread::sleep_for(kPoll);
      continue;
    }
    if (message->first.tag() == kAnswer) {
      WorkerPool::Task answer = unpacked(message->second);
      --away;
      work.answered(answer.index, std::move(answer.request));
    }
    const auto task = exhausted ? std::nullopt : work.next();
    exhausted = !task;
    if (!task) continue;
    mpi_->send(message->first.source(), kTask, packed(task->index, task->request));
    ++away;
  }
  mpi_->stop_others();
  own.join();
}

void MpiCrew::help(WorkerPool& pool) {
  Desk desk;
  std::atomic<bool> stop{false};
  WorkerPool::Work work;
  work.next = [&] { return desk.take(); };
  work.answered = [&](std::size_t index, Json answer) { desk.put(index, std::move(answer)); };
  work.cancelled = [&] { return stop.load(); };
  PoolThread own(pool, work);
  for (int child = 0; child < pool.workers(); ++child) mpi_->send(0, kReady, "");
  while (!stop) {
    if (const auto answer = desk.answer()) {
      mpi_->send(0, kAnswer, packed(answer->index, answer->request));
    } else if (const auto message = mpi_->receive()) {
      if (message->first.tag() == kStop) stop = true;
      if (message->first.tag() == kTask) desk.give(unpacked(message->second));
    } else {
      std::this_thread::sleep_for(kPoll);
    }
  }
  desk.close();
  mpi_->send(0, kGone, "");
  mpi_->flush();
  own.join();
}

}  // namespace gputwin
