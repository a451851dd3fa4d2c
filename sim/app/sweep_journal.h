// The journal of a sweep: what has been computed.
#pragma once

#include <map>

#include "sim/app/journal.h"

namespace gputwin {

/// First what sweep it belongs to, then one row per point, in the order in which points were done.
class SweepJournal {
 public:
  using Json = Journal::Json;

  /// Opens or creates `path` for the sweep with this identity (sweep_identity) and number of
  /// points. Errors: as Journal; InputError if it belongs to another sweep (naming what differs) or
  /// is damaged before its last line.
  SweepJournal(std::filesystem::path path, const Json& identity, std::size_t points);

  /// Rows by point: what the file held, and what was appended.
  const std::map<std::size_t, Json>& rows() const { return rows_; }

  void append(std::size_t point, const Json& row);

 private:
  void check_header(const Json& header, const Json& identity) const;
  void read_row(const Json& entry, std::size_t number, std::size_t points);

  Journal journal_;
  std::map<std::size_t, Json> rows_;
};

}  // namespace gputwin
