#include "sim/app/sweep_journal.h"

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
namespace {

constexpr const char* kHeader = "gputwin_sweep";
constexpr int kVersion = 1;

}  // namespace

SweepJournal::SweepJournal(std::filesystem::path path, const Json& identity, std::size_t points)
    : path_(std::move(path)) {
  create_folder();
  file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail("", std::string("cannot be opened: ") + std::strerror(errno), "");
  try {
    // The lock goes with the process, however it ends.
    if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      fail("", "is being written by another sweep", "wait for it, or name another --out");
    }
    read(identity, points);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

SweepJournal::~SweepJournal() { ::close(file_); }

void SweepJournal::create_folder() const {
  std::error_code failed;
  std::filesystem::create_directories(path_.parent_path(), failed);
  if (failed) fail("", "cannot be made: " + failed.message(), "name another --out");
}

void SweepJournal::fail(const std::string& pointer, const std::string& problem,
                        const std::string& fix) const {
  throw InputError(path_.string(), pointer, "", problem, fix);
}

void SweepJournal::read(const Json& identity, std::size_t points) {
  std::ifstream in(path_, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  std::size_t begin = 0, number = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    if (++number == 1) {
      check_header(line, identity);
    } else {
      read_row(line, number, points);
    }
  }
  if (begin < text.size() && ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    fail("", std::string("cannot be shortened: ") + std::strerror(errno), "");
  }
  if (number > 0) return;
  Json header{{kHeader, kVersion}};
  header.update(identity);
  write_line(header);
}

void SweepJournal::check_header(const std::string& line, const Json& identity) const {
  const Json header = Json::parse(line, nullptr, false);
  if (!header.is_object() || header.value(kHeader, 0) != kVersion) {
    fail("line 1", "is not the beginning of a sweep's journal", "name another --out");
  }
  std::string differ;
  for (const auto& [key, value] : identity.items()) {
    if (header.contains(key) && header[key] == value) continue;
    differ += (differ.empty() ? "" : ", ") + key;
  }
  if (differ.empty()) return;
  fail("", "is the journal of another sweep: different " + differ,
       "name another --out, or remove the journal to start anew");
}

void SweepJournal::read_row(const std::string& line, std::size_t number, std::size_t points) {
  const Json entry = Json::parse(line, nullptr, false);
  const bool legal = entry.is_object() && entry.contains("point") && entry.contains("row") &&
                     entry["point"].is_number_unsigned() &&
                     entry["point"].get<std::size_t>() < points &&
                     !rows_.contains(entry["point"].get<std::size_t>());
  if (!legal) {
    fail(fmt::format("line {}", number), "is damaged",
         "remove this line, or the journal to start anew");
  }
  rows_[entry["point"].get<std::size_t>()] = entry["row"];
}

void SweepJournal::append(std::size_t point, const Json& row) {
  write_line({{"point", point}, {"row", row}});
  rows_[point] = row;
}

void SweepJournal::write_line(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file_, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail("", std::string("cannot be written: ") + std::strerror(errno), "is the disk full?");
    }
    done += static_cast<std::size_t>(written);
  }
  if (fdatasync(file_) != 0 && errno != EINVAL && errno != EROFS) {
    fail("", std::string("cannot be written: ") + std::strerror(errno), "is the disk full?");
  }
}

}  // namespace gputwin
