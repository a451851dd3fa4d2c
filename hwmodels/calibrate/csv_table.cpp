#include "hwmodels/calibrate/csv_table.h"

#include <algorithm>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

#include "sim/core/error.h"

namespace gputwin {

namespace {

std::string line_pointer(std::size_t line) { return "line " + std::to_string(line); }

// Fields of one line. A quoted field does not reach beyond its line.
std::vector<std::string> split(const std::string& file, std::size_t line_number,
                               const std::string& line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += '"';
      ++i;
    } else if (c == '"' && (quoted || fields.back().empty())) {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c == '\0') {
      throw InputError(file, line_pointer(line_number), "", "holds a zero byte: this is no table",
                       "give a text file of comma-separated values");
    } else {
      fields.back() += c;
    }
  }
  if (quoted) {
    throw InputError(file, line_pointer(line_number), fields.back().substr(0, 40),
                     "opens a quote that the line does not close", "close it");
  }
  return fields;
}

}  // namespace

CsvTable CsvTable::read(const std::filesystem::path& path) {
  CsvTable table;
  table.file_ = path.string();
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    throw InputError(table.file_, "", "", "cannot be read", "give a table of measurements");
  }
  boost::iostreams::filtering_istream in;
  if (path.extension() == ".gz") in.push(boost::iostreams::gzip_decompressor());
  in.push(file);
  try {
    table.read_lines(in);
  } catch (const boost::iostreams::gzip_error&) {
    throw InputError(table.file_, line_pointer(table.last_line_), "",
                     "is where the compressed file breaks off or is damaged",
                     "compress the table again, or give it plain");
  }
  if (table.columns_.empty()) {
    throw InputError(table.file_, "", "", "is empty", "begin with a line of column names");
  }
  return table;
}

void CsvTable::read_lines(std::istream& in) {
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    last_line_ = number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || line.front() == '#') continue;
    std::vector<std::string> fields = split(file_, number, line);
    if (columns_.empty()) {
      columns_ = std::move(fields);
      std::vector<std::string> sorted = columns_;
      std::sort(sorted.begin(), sorted.end());
      const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
      if (twice != sorted.end()) {
        throw InputError(file_, line_pointer(number), *twice, "is the name of two columns",
                         "name each column once");
      }
      continue;
    }
    if (fields.size() != columns_.size()) {
      throw InputError(file_, line_pointer(number), std::to_string(fields.size()),
                       "fields, but the header names " + std::to_string(columns_.size()),
                       "is the file cut off, or a comma not quoted?");
    }
    std::move(fields.begin(), fields.end(), std::back_inserter(fields_));
    lines_.push_back(number);
  }
  // A stream that went bad is a broken file, not its end.
  if (in.bad()) {
    throw InputError(file_, line_pointer(last_line_), "", "is the last line that can be read",
                     "is the file damaged? Compressed tables are compressed again");
  }
}

std::size_t CsvTable::index(std::string_view column) const {
  const auto found = std::find(columns_.begin(), columns_.end(), column);
  return static_cast<std::size_t>(found - columns_.begin());
}

bool CsvTable::has(std::string_view column) const { return index(column) < columns_.size(); }

const std::string& CsvTable::text(std::size_t row, std::string_view column) const {
  static const std::string kNone;
  const std::size_t i = index(column);
  return i < columns_.size() ? fields_[row * columns_.size() + i] : kNone;
}

double CsvTable::number(std::size_t row, std::string_view column) const {
  const std::string& field = text(row, column);
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (field.empty() || error != std::errc() || end != field.data() + field.size() ||
      !std::isfinite(value)) {
    fail(row, column, "is no number", "write digits, with a point if need be");
  }
  return value;
}

double CsvTable::number_or(std::size_t row, std::string_view column, double absent) const {
  return text(row, column).empty() ? absent : number(row, column);
}

std::int64_t CsvTable::integer(std::size_t row, std::string_view column) const {
  const double value = number(row, column);
  if (value != std::floor(value) || std::abs(value) > 9e15) {
    fail(row, column, "is no whole number", "write a whole number");
  }
  return static_cast<std::int64_t>(value);
}

std::int64_t CsvTable::extent(std::size_t row, std::string_view column, std::int64_t least) const {
  const std::int64_t value = integer(row, column);
  if (value < least) {
    fail(row, column, "is too small", "write " + std::to_string(least) + " or more");
  }
  return value;
}

void CsvTable::fail(std::size_t row, std::string_view column, const std::string& problem,
                    const std::string& fix) const {
  throw InputError(file_, line_pointer(lines_[row]) + ", column " + std::string(column),
                   text(row, column), problem, fix);
}

}  // namespace gputwin
