#include "sim/app/sweep_journal.h"

#include <fmt/format.h>

#include <utility>

namespace gputwin {
namespace {

constexpr const char* kHeader = "gputwin_sweep";
constexpr int kVersion = 1;

}  // namespace

SweepJournal::SweepJournal(std::filesystem::path path, const Json& identity, std::size_t points)
    : journal_(std::move(path)) {
  const std::vector<Json>& lines = journal_.lines();
  if (lines.empty()) {
    Json header{{kHeader, kVersion}};
    header.update(identity);
    journal_.append(header);
    return;
  }
  check_header(lines.front(), identity);
  for (std::size_t i = 1; i < lines.size(); ++i) read_row(lines[i], i + 1, points);
}

void SweepJournal::check_header(const Json& header, const Json& identity) const {
  if (header.value(kHeader, 0) != kVersion) {
    journal_.fail("line 1", "is not the beginning of a sweep's journal", "name another --out");
  }
  std::string differ;
  for (const auto& [key, value] : identity.items()) {
    if (header.contains(key) && header[key] == value) continue;
    differ += (differ.empty() ? "" : ", ") + key;
  }
  if (differ.empty()) return;
  journal_.fail("", "is the journal of another sweep: different " + differ,
                "name another --out, or remove the journal to start anew");
}

void SweepJournal::read_row(const Json& entry, std::size_t number, std::size_t points) {
  const bool legal = entry.contains("point") && entry.contains("row") &&
                     entry["point"].is_number_unsigned() &&
                     entry["point"].get<std::size_t>() < points &&
                     !rows_.contains(entry["point"].get<std::size_t>());
  if (!legal) {
    journal_.fail(fmt::format("line {}", number), "is damaged",
                  "remove this line, or the journal to start anew");
  }
  rows_[entry["point"].get<std::size_t>()] = entry["row"];
}

void SweepJournal::append(std::size_t point, const Json& row) {
  journal_.append({{"point", point}, {"row", row}});
  rows_[point] = row;
}

}  // namespace gputwin
