// The journal of a sweep: what has been computed, safe against being killed at any moment.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

namespace gputwin {

/// A file of one JSON object a line: first what sweep it belongs to, then one row per point, in
/// the order in which points were done. Every line is on the disk before append() returns, so a
/// process killed at any moment loses at most the line it was writing; that torn line is cut off
/// when the journal is opened again.
class SweepJournal {
 public:
  using Json = nlohmann::ordered_json;

  /// Opens or creates `path` for the sweep with this identity (sweep_identity) and number of
  /// points. Errors: InputError if it belongs to another sweep (naming what differs), is in use by
  /// a process alive, is damaged before its last line, or cannot be written.
  SweepJournal(std::filesystem::path path, const Json& identity, std::size_t points);
  ~SweepJournal();
  SweepJournal(const SweepJournal&) = delete;
  SweepJournal& operator=(const SweepJournal&) = delete;

  /// Rows by point: what the file held, and what was appended.
  const std::map<std::size_t, Json>& rows() const { return rows_; }

  void append(std::size_t point, const Json& row);

 private:
  void create_folder() const;
  void read(const Json& identity, std::size_t points);
  void check_header(const std::string& line, const Json& identity) const;
  void read_row(const std::string& line, std::size_t number, std::size_t points);
  void write_line(const Json& line);
  [[noreturn]] void fail(const std::string& pointer, const std::string& problem,
                         const std::string& fix) const;

  std::filesystem::path path_;
  int file_ = -1;
  std::map<std::size_t, Json> rows_;
};

}  // namespace gputwin
