// A table of measurements: a header of column names, then one row a line, fields between commas.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace gputwin {

/// A CSV file in memory (RFC 4180: a field may stand in quotes, a doubled quote is one). Files
/// whose name ends in .gz are read through gzip.
///
/// Lines that begin with # are comments and empty lines are skipped. Columns are found by name, in
/// any order; unknown ones are ignored. Throws InputError with file and line: unreadable or empty
/// file, a header with a name twice, a row with more or fewer fields than the header, an open
/// quote.
class CsvTable {
 public:
  static CsvTable read(const std::filesystem::path& path);

  const std::string& file() const { return file_; }
  const std::vector<std::string>& columns() const { return columns_; }
  std::size_t rows() const { return lines_.size(); }
  /// Line of the file in which row `row` stands, from 1.
  std::size_t line(std::size_t row) const { return lines_[row]; }

  bool has(std::string_view column) const;
  /// The field of `row`; empty if the table has no such column.
  const std::string& text(std::size_t row, std::string_view column) const;
  /// The field as a number. Throws InputError with file, line and column if it is none.
  double number(std::size_t row, std::string_view column) const;
  /// As `number`; `absent` if the field is empty or the column missing.
  double number_or(std::size_t row, std::string_view column, double absent) const;
  std::int64_t integer(std::size_t row, std::string_view column) const;
  /// A whole number of at least `least`: an extent or a count.
  std::int64_t extent(std::size_t row, std::string_view column, std::int64_t least = 1) const;

  [[noreturn]] void fail(std::size_t row, std::string_view column, const std::string& problem,
                         const std::string& fix) const;

 private:
  void read_lines(std::istream& in);
  std::size_t index(std::string_view column) const;  // columns_.size() if missing

  std::string file_;
  std::vector<std::string> columns_;
  std::vector<std::string> fields_;  // rows x columns
  std::vector<std::size_t> lines_;
  std::size_t last_line_ = 0;  // read so far
};

}  // namespace gputwin
