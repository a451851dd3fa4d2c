#include "sim/app/sweep_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

// A figure of a row: its column in CSV, and where it stands in the row.
struct Figure {
  const char* column;
  const char* pointer;
};

constexpr std::array kFigures{Figure{"iteration_time_s", "/iteration_time_s"},
                              Figure{"interval_low_s", "/interval_s/0"},
                              Figure{"interval_high_s", "/interval_s/1"},
                              Figure{"tokens_per_s", "/tokens_per_s"},
                              Figure{"samples_per_s", "/samples_per_s"},
                              Figure{"model_tflops_per_gpu", "/model_tflops_per_gpu"},
                              Figure{"hardware_tflops_per_gpu", "/hardware_tflops_per_gpu"},
                              Figure{"mfu", "/mfu"},
                              Figure{"hfu", "/hfu"},
                              Figure{"peak_allocated_bytes", "/memory/peak_allocated_bytes"},
                              Figure{"peak_reserved_bytes", "/memory/peak_reserved_bytes"},
                              Figure{"peak_device_bytes", "/memory/peak_device_bytes"},
                              Figure{"compute_s", "/breakdown_s/compute"},
                              Figure{"exposed_tp_s", "/breakdown_s/exposed_tp"},
                              Figure{"exposed_dp_s", "/breakdown_s/exposed_dp"},
                              Figure{"exposed_pp_s", "/breakdown_s/exposed_pp"},
                              Figure{"exposed_ep_s", "/breakdown_s/exposed_ep"},
                              Figure{"exposed_cp_s", "/breakdown_s/exposed_cp"},
                              Figure{"copy_stall_s", "/breakdown_s/copy_stall"},
                              Figure{"bubble_s", "/breakdown_s/bubble"},
                              Figure{"optimizer_s", "/breakdown_s/optimizer"},
                              Figure{"host_s", "/breakdown_s/host"}};

// Where some point offloads: of the first role that does.
constexpr std::array kOffloadFigures{
    Figure{"offload_bytes_to_gpu", "/offload/0/bytes_to_gpu"},
    Figure{"offload_bytes_from_gpu", "/offload/0/bytes_from_gpu"},
    Figure{"offload_link_in_busy", "/offload/0/link_in_busy"},
    Figure{"offload_link_out_busy", "/offload/0/link_out_busy"},
    Figure{"offload_host_optimizer_s", "/offload/0/host_optimizer_s"}};

std::vector<Figure> figures_of(const SweepRows& rows) {
  std::vector<Figure> list(kFigures.begin(), kFigures.end());
  const bool offloads = std::any_of(rows.begin(), rows.end(), [](const std::optional<Json>& row) {
    return row && row->contains("offload");
  });
  if (offloads) list.insert(list.end(), kOffloadFigures.begin(), kOffloadFigures.end());
  return list;
}

std::string quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char c : cell) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

std::string status_of(const std::optional<Json>& row) {
  return row ? row->at("status").get<std::string>() : "not run";
}

double figure(const Json& row, const char* pointer) {
  return row.value(Json::json_pointer(pointer), 0.0);
}

// The end of a path that tells it from the others: "nics.each_Gbps".
std::string short_path(const std::string& path) {
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot == 0) return path;
  dot = path.rfind('.', dot - 1);
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

// Columns padded to their widest cell; the last one left as it is.
std::string aligned(const std::vector<std::vector<std::string>>& table) {
  std::vector<std::size_t> width(table.front().size(), 0);
  for (const auto& line : table) {
    for (std::size_t c = 0; c + 1 < line.size(); ++c) width[c] = std::max(width[c], line[c].size());
  }
  std::string text;
  for (const auto& line : table) {
    std::string row;
    for (std::size_t c = 0; c < line.size(); ++c) row += fmt::format("{:<{}}  ", line[c], width[c]);
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

}  // namespace

std::string sweep_csv(const Sweep& sweep, const SweepRows& rows) {
  std::string text = "point";
  const std::vector<Figure> figures = figures_of(rows);
  for (const std::string& column : sweep.columns) text += "," + quoted(column);
  text += ",status,reason";
  for (const Figure& f : figures) text += std::string(",") + f.column;
  text += "\r\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += std::to_string(i);
    for (const std::string& column : sweep.columns) {
      text += "," + quoted(value_at(sweep.points[i], column));
    }
    const Json row = rows[i].value_or(Json::object());
    text += "," + status_of(rows[i]) + "," + quoted(row.value("reason", ""));
    for (const Figure& f : figures) {
      const Json::json_pointer at(f.pointer);
      text += "," + (row.contains(at) ? row.at(at).dump() : std::string());
    }
    text += "\r\n";
  }
  return text;
}

std::string sweep_json(const Sweep& sweep, const SweepRows& rows) {
  Json points = Json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Json point{{"point", i}, {"settings", Json::object()}};
    for (const Setting& s : sweep.points[i]) point["settings"][s.path] = s.value;
    point.update(rows[i].value_or(Json{{"status", "not run"}}));
    points.push_back(std::move(point));
  }
  const Json out{{"schema", 1},
                 {"scenario", sweep.name},
                 {"sets", sweep.sets},
                 {"columns", sweep.columns},
                 {"points", std::move(points)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::optional<std::size_t> best_point(const SweepRows& rows) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (status_of(rows[i]) != "ok") continue;
    if (!best || figure(*rows[i], "/samples_per_s") > figure(*rows[*best], "/samples_per_s")) {
      best = i;
    }
  }
  return best;
}

std::string sweep_report(const Sweep& sweep, const SweepRows& rows) {
  const std::optional<std::size_t> best = best_point(rows);
  std::vector<std::vector<std::string>> table(1);
  for (const std::string& column : sweep.columns) table[0].push_back(short_path(column));
  for (const char* name : {"time", "tokens/s", "MFU", "memory", "", ""}) table[0].push_back(name);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::vector<std::string> line;
    for (const std::string& column : sweep.columns) {
      line.push_back(value_at(sweep.points[i], column));
    }
    if (status_of(rows[i]) == "ok") {
      const Json& row = *rows[i];
      line.push_back(fmt::format("{:.4g} s", figure(row, "/iteration_time_s")));
      line.push_back(fmt::format("{:.5g}", figure(row, "/tokens_per_s")));
      line.push_back(fmt::format("{:.1f} %", figure(row, "/mfu") * 100));
      line.push_back(
          fmt::format("{:.1f} GiB", figure(row, "/memory/peak_device_bytes") / (1 << 30)));
      line.push_back(best == i ? "best" : "");
      line.push_back("");
    } else {
      line.insert(line.end(), 4, "-");
      line.push_back(status_of(rows[i]));
      line.push_back(rows[i] ? rows[i]->value("reason", "") : "");
    }
    table.push_back(std::move(line));
  }
  return aligned(table);
}

}  // namespace gputwin
