#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "validation/ops/ops.h"

namespace gputwin {

namespace {

using Json = nlohmann::ordered_json;

std::string figures(const OpErrors& e) {
  if (e.predicted == 0)
    return fmt::format("{:>7} {:>7} {:>7} {:>7} {:>6}", "-", "-", "-", "-", "-");
  return fmt::format("{:>7.1f} {:>7.1f} {:>7.1f} {:>+7.1f} {:>6.0f}", 100 * e.median, 100 * e.mean,
                     100 * e.p90, 100 * e.bias, 100 * e.coverage);
}

// Rows without a prediction, by reason.
std::map<std::string, std::size_t> reasons(const OpTable& table) {
  std::map<std::string, std::size_t> count;
  for (const OpPrediction& row : table.rows) {
    if (!row.ok()) ++count[row.reason];
  }
  return count;
}

Json error_json(const OpErrors& e) {
  Json out;
  out["rows"] = e.rows;
  out["predicted"] = e.predicted;
  const auto figure = [&](double v) { return e.predicted > 0 ? Json(v) : Json(nullptr); };
  out["median"] = figure(e.median);
  out["mean"] = figure(e.mean);
  out["p90"] = figure(e.p90);
  out["bias"] = figure(e.bias);
  out["coverage80"] = figure(e.coverage);
  return out;
}

}  // namespace

std::string ops_report(const std::vector<OpTable>& tables) {
  std::string out =
      fmt::format("{:32} {:22} {:18} {:>15}  {:>7} {:>7} {:>7} {:>7} {:>6}\n", "table", "device",
                  "part", "predicted", "med %", "mean %", "p90 %", "bias %", "in80 %");
  for (const OpErrors& e : score_ops(tables)) {
    const bool part = !e.part.empty();
    out += fmt::format("{:32} {:22} {:18} {:>15}  {}\n", part ? "" : e.table,
                       part               ? ""
                       : e.device.empty() ? "all devices"
                                          : e.device,
                       e.part, fmt::format("{}/{}", e.predicted, e.rows), figures(e));
  }
  for (const OpTable& table : tables) {
    for (const auto& [reason, count] : reasons(table)) {
      out += fmt::format("{}: {} rows not predicted: {}\n", table.file, count, reason);
    }
  }
  return out;
}

std::string ops_json(const std::vector<OpTable>& tables) {
  Json lines = Json::array();
  for (const OpErrors& e : score_ops(tables)) {
    if (!e.part.empty()) {
      Json part{{e.band ? "band" : "group", e.part}};
      part.update(error_json(e));
      lines.back()[e.band ? "bands" : "groups"].push_back(std::move(part));
      continue;
    }
    Json line{{"table", e.table}, {"device", e.device.empty() ? Json(nullptr) : Json(e.device)}};
    line.update(error_json(e));
    lines.push_back(std::move(line));
  }
  Json skipped = Json::array();
  for (const OpTable& table : tables) {
    for (const auto& [reason, count] : reasons(table)) {
      skipped.push_back({{"file", table.file}, {"rows", count}, {"reason", reason}});
    }
  }
  return Json{{"tables", std::move(lines)}, {"not_predicted", std::move(skipped)}}.dump(1) + "\n";
}

std::string worst_ops(const std::vector<OpTable>& tables, std::size_t n) {
  std::string out;
  for (const OpTable& table : tables) {
    std::vector<const OpPrediction*> rows;
    for (const OpPrediction& row : table.rows) {
      if (row.ok()) rows.push_back(&row);
    }
    const auto off = [](const OpPrediction* row) { return std::abs(std::log1p(row->error())); };
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const auto* a, const auto* b) { return off(a) > off(b); });
    for (std::size_t i = 0; i < std::min(n, rows.size()); ++i) {
      const OpPrediction& row = *rows[i];
      out += fmt::format("{}:{}: {} measured {:.2f} us, predicted {:.2f} us ({:+.0f} %){}\n",
                         table.file, row.sample.line, row.sample.device,
                         row.sample.time.value * 1e6, row.predicted_s * 1e6, 100 * row.error(),
                         row.extrapolated ? ", extrapolated" : "");
    }
  }
  return out;
}

}  // namespace gputwin
