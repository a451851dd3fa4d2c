#include "sim/app/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "sim/core/error.h"

namespace gputwin {

Journal::Journal(std::filesystem::path path) : path_(std::move(path)) {
  create_folder();
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail("", std::string("cannot be opened: ") + std::strerror(errno), "");
  try {
    // The lock goes with the process, however it ends.
    if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      fail("", "is being written by another process", "wait for it, or name another folder");
    }
    read();
  } catch (...) {
    ::close(file_);
    throw;
  }
}

Journal::~Journal() { ::close(file_); }

void Journal::create_folder() const {
  std::error_code failed;
  std::filesystem::create_directories(path_.parent_path(), failed);
  if (failed) fail("", "cannot be made: " + failed.message(), "name another folder");
}

void Journal::fail(const std::string& pointer, const std::string& problem,
                   const std::string& fix) const {
  throw InputError(path_.string(), pointer, "", problem, fix);
}

void Journal::read() {
  std::ifstream in(path_, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Json line = Json::parse(text.substr(begin, end - begin), nullptr, false);
    if (!line.is_object()) {
      fail(fmt::format("line {}", lines_.size() + 1), "is no line of a journal",
           "name another folder, or remove a damaged line, or the journal to start anew");
    }
    lines_.push_back(std::move(line));
  }
  if (begin < text.size() && ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    fail("", std::string("cannot be shortened: ") + std::strerror(errno), "");
  }
}

void Journal::append(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const std::string problem = std::strerror(errno);
      // What stands of the line goes; where that fails too, the next opening cuts it off.
      const off_t whole = lseek(file_, 0, SEEK_END) - static_cast<off_t>(done);
      const bool torn = done > 0 && ftruncate(file_, whole) != 0;
      fail("", "cannot be written: " + problem,
           torn ? "is the disk full? The last line is cut off when the journal is opened again"
                : "is the disk full?");
    }
    done += static_cast<std::size_t>(written);
  }
  if (fdatasync(file_) != 0 && errno != EINVAL && errno != EROFS) {
    fail("", std::string("cannot be written: ") + std::strerror(errno), "is the disk full?");
  }
  lines_.push_back(line);
}

}  // namespace gputwin
