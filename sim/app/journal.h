// A file of one JSON object a line that only grows, safe against being killed at any moment.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

namespace gputwin {

/// Every line is on the disk before append() returns, so a process killed at any moment loses at
/// most the line it was writing; that torn line is cut off when the journal is opened again. One
/// process at a time has it open.
class Journal {
 public:
  using Json = nlohmann::ordered_json;

  /// Opens or creates `path` and its folder. Errors: InputError if it is in use by a process
  /// alive, cannot be read or written, or holds a whole line that is no JSON object.
  explicit Journal(std::filesystem::path path);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  const std::vector<Json>& lines() const { return lines_; }
  void append(const Json& line);

  const std::filesystem::path& path() const { return path_; }
  [[noreturn]] void fail(const std::string& pointer, const std::string& problem,
                         const std::string& fix) const;

 private:
  void create_folder() const;
  void read();

  std::filesystem::path path_;
  int file_ = -1;
  std::vector<Json> lines_;
};

}  // namespace gputwin
