#include "tests/support/in_child.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>

namespace gputwin::test {
namespace {

void write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

[[noreturn]] void run_child(int fd, const std::function<std::string()>& work) {
  int code = 0;
  try {
    write_all(fd, work());
  } catch (const std::exception& e) {
    write_all(fd, e.what());
    code = 1;
  }
  _exit(code);
}

/// Reads until the child closes its end. False: the time was up first.
bool read_all(int fd, double timeout_s, std::string& text) {
  using Clock = std::chrono::steady_clock;
  const auto until = Clock::now() + std::chrono::duration<double>(timeout_s);
  char block[65536];
  while (true) {
    const std::chrono::duration<double, std::milli> left = until - Clock::now();
    if (left.count() <= 0) return false;
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, static_cast<int>(left.count()) + 1) <= 0) continue;
    const ssize_t n = read(fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    text.append(block, static_cast<std::size_t>(n));
  }
}

}  // namespace

ChildResult in_child(const std::function<std::string()>& work, double timeout_s) {
  int ends[2];
  if (pipe(ends) != 0) return {false, std::string("pipe: ") + std::strerror(errno)};
  const pid_t child = fork();
  if (child < 0) return {false, std::string("fork: ") + std::strerror(errno)};
  if (child == 0) {
    close(ends[0]);
    run_child(ends[1], work);
  }
  close(ends[1]);
  ChildResult result;
  const bool ended = read_all(ends[0], timeout_s, result.text);
  close(ends[0]);
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) return {false, "no end after " + std::to_string(timeout_s) + " s"};
  if (WIFSIGNALED(status)) {
    return {false, "killed by signal " + std::to_string(WTERMSIG(status)) + ": " + result.text};
  }
  result.ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return result;
}

}  // namespace gputwin::test
