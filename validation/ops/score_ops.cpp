#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "validation/ops/ops.h"
#include "validation/runs/scoring.h"

namespace gputwin {

namespace {

struct Band {
  const char* name;
  double below_s;
};

constexpr std::array kBands{Band{"< 10 us", 10e-6}, Band{"10-100 us", 100e-6},
                            Band{"0.1-1 ms", 1e-3}, Band{">= 1 ms", 1e300}};

using Rows = std::vector<const OpPrediction*>;

OpErrors errors_of(const Rows& rows) {
  OpErrors e;
  e.rows = rows.size();
  std::vector<double> absolute, error;
  std::size_t inside = 0;
  for (const OpPrediction* row : rows) {
    if (!row->ok()) continue;
    error.push_back(row->error());
    absolute.push_back(std::abs(row->error()));
    const double measured = row->sample.time.value;
    inside += measured >= row->low_s && measured <= row->high_s ? 1 : 0;
  }
  e.predicted = error.size();
  if (error.empty()) return e;
  const auto n = static_cast<double>(error.size());
  for (const double a : absolute) e.mean += a / n;
  e.median = quantile(absolute, 0.5);
  e.p90 = quantile(absolute, 0.9);
  e.bias = quantile(error, 0.5);
  e.coverage = static_cast<double>(inside) / n;
  return e;
}

struct Lines {
  std::vector<OpErrors>& out;
  std::string table, device;

  void add(const std::string& part, bool band, const Rows& rows) {
    OpErrors e = errors_of(rows);
    e.table = table, e.device = device, e.part = part, e.band = band;
    out.push_back(std::move(e));
  }

  void add_all(const Rows& rows) {
    add("", false, rows);
    std::map<std::string, Rows> groups;
    for (const OpPrediction* row : rows) groups[row->sample.group].push_back(row);
    for (const auto& [group, members] : groups) {
      if (groups.size() > 1) add(group, false, members);
    }
    double from = 0;
    for (const Band& band : kBands) {
      Rows inside;
      for (const OpPrediction* row : rows) {
        const double t = row->sample.time.value;
        if (t >= from && t < band.below_s) inside.push_back(row);
      }
      if (!inside.empty()) add(band.name, true, inside);
      from = band.below_s;
    }
  }
};

}  // namespace

std::vector<OpErrors> score_ops(const std::vector<OpTable>& tables) {
  std::map<std::pair<std::string, std::string>, Rows> by_device;
  std::map<std::string, Rows> by_table;
  for (const OpTable& table : tables) {
    for (const OpPrediction& row : table.rows) {
      const std::string& device =
          row.sample.device.empty() ? row.sample.spelling : row.sample.device;
      by_device[{table.format, device}].push_back(&row);
      by_table[table.format].push_back(&row);
    }
  }
  std::vector<OpErrors> out;
  for (const auto& [key, rows] : by_device) Lines{out, key.first, key.second}.add_all(rows);
  for (const auto& [table, rows] : by_table) Lines{out, table, ""}.add_all(rows);
  return out;
}

}  // namespace gputwin
