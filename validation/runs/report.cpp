#include "validation/runs/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

std::string tau_text(const ErrorSummary& e) {
  return e.tau ? fmt::format("{:.2f}", *e.tau) : std::string("-");
}

std::string error_columns(const ErrorSummary& e) {
  if (e.n == 0)
    return fmt::format("{:>6} {:>6} {:>6} {:>6} {:>5} {:>6}", "-", "-", "-", "-", "-", "-");
  return fmt::format("{:>6} {:>6} {:>6} {:>+6.1f} {:>5} {:>6.0f}", percent(e.mean),
                     percent(e.median), percent(e.p95), 100 * e.bias, tau_text(e), 100 * e.inside);
}

constexpr const char* kColumns = "mean %  med %  p95 % bias %   tau in80 %";

std::string score_table(const std::vector<ScoreLine>& lines, bool by_group) {
  const auto label = [&](const ScoreLine& l) {
    return by_group ? l.group + " on " + l.device : l.kind;
  };
  std::size_t width = 12;
  for (const ScoreLine& l : lines) width = std::max(width, label(l).size());
  std::string out = fmt::format("{:{}} {:>9}  {}\n", "", width, "predicted", kColumns);
  std::string kind;
  for (const ScoreLine& l : lines) {
    if (by_group && l.kind != kind) out += l.kind + "\n";
    kind = l.kind;
    out += fmt::format("{:{}} {:>4}/{:<4}  {}\n", label(l), width, l.predicted, l.scorable,
                       error_columns(l.errors));
  }
  return out;
}

std::string memory_table(const std::vector<MemoryLine>& lines) {
  std::string out = fmt::format("{:34} {:>4}  {}\n", "", "n", "mean %  med %  p95 % bias %");
  for (const MemoryLine& l : lines) {
    const std::string label = l.group.empty() ? l.memory_kind : "  " + l.group;
    out += fmt::format("{:34} {:>4}  {:>6} {:>6} {:>6} {:>+6.1f}\n", label, l.errors.n,
                       percent(l.errors.mean), percent(l.errors.median), percent(l.errors.p95),
                       100 * l.errors.bias);
  }
  return out;
}

std::string reason_of(const PublishedRun& run, const Prediction& p) {
  if (p.status != RowStatus::Ok) return p.reason;
  std::string text;
  for (const std::string& why : run.not_scorable_why) text += (text.empty() ? "" : ", ") + why;
  return run.scorable ? text : "not scorable: " + text;
}

// What was not predicted: count by kind of row, status and reason.
std::string refusals(const std::vector<PublishedRun>& runs,
                     const std::vector<Prediction>& predictions) {
  std::map<std::string, std::int32_t> counts;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (predictions[i].status == RowStatus::Ok) continue;
    const std::string reason = predictions[i].reason.substr(0, 120);
    ++counts[fmt::format("{:11} {}: {}", to_string(predictions[i].status), runs[i].kind, reason)];
  }
  std::string out;
  for (const auto& [what, n] : counts) out += fmt::format("{:>5}  {}\n", n, what);
  return out;
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json errors_json(const ErrorSummary& e) {
  return {{"n", e.n},       {"mean", e.mean},        {"median", e.median},  {"p95", e.p95},
          {"bias", e.bias}, {"tau", or_null(e.tau)}, {"inside80", e.inside}};
}

Json row_json(const PublishedRun& run, const Prediction& p) {
  const bool ok = p.status == RowStatus::Ok;
  const RunTarget& t = run.target;
  Json row{{"id", run.id}, {"status", to_string(p.status)}, {"reason", reason_of(run, p)}};
  row["kind"] = run.kind;
  row["group"] = run.group;
  row["scorable"] = run.scorable;
  row["measured_s"] = or_null(t.time_s);
  row["predicted_s"] = ok ? Json(p.time_s) : Json(nullptr);
  row["interval_s"] = ok ? Json{p.low_s, p.high_s} : Json(nullptr);
  row["error"] = ok && t.time_s ? Json(p.time_s / *t.time_s - 1) : Json(nullptr);
  row["measured_bytes"] = or_null(t.memory_bytes);
  row["predicted_bytes"] = or_null(p.memory_bytes);
  row["memory_error"] = t.memory_bytes && p.memory_bytes
                            ? Json(*p.memory_bytes / *t.memory_bytes - 1)
                            : Json(nullptr);
  return row;
}

Json line_json(const ScoreLine& l) {
  Json json{{"kind", l.kind}};
  if (!l.group.empty()) json["group"] = l.group;
  if (!l.device.empty()) json["device"] = l.device;
  json["scorable"] = l.scorable;
  json["predicted"] = l.predicted;
  json.update(errors_json(l.errors));
  return json;
}

}  // namespace

std::string runs_report(const std::vector<PublishedRun>& runs,
                        const std::vector<Prediction>& predictions, const Scores& scores) {
  std::string out = "Iteration time, scorable rows\n\n" + score_table(scores.kinds, false);
  out += "\nBy group and device\n\n" + score_table(scores.groups, true);
  if (!scores.memory.empty()) {
    out += "\nMemory of the fullest device\n\n" + memory_table(scores.memory);
  }
  const std::string refused = refusals(runs, predictions);
  if (!refused.empty()) out += "\nNot predicted\n\n" + refused;
  return out;
}

std::string runs_listing(const std::vector<PublishedRun>& runs,
                         const std::vector<Prediction>& predictions) {
  std::size_t width = 12;
  for (const PublishedRun& r : runs) width = std::max(width, r.id.size());
  const auto figure = [](const std::optional<double>& value, double unit) {
    return value ? fmt::format("{:.4g}", *value / unit) : std::string("-");
  };
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::string out =
      fmt::format("{:{}}  {:>10} {:>10} {:>7}  {:>9} {:>9} {:>7}\n", "", width, "measured s",
                  "predicted", "error", "meas. GiB", "predicted", "error");
  const auto error = [](const std::optional<double>& measured, const std::optional<double>& ours) {
    return measured && ours ? fmt::format("{:+.1f} %", 100 * (*ours / *measured - 1)) : "-";
  };
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Prediction& p = predictions[i];
    const RunTarget& t = runs[i].target;
    const auto ours = p.status == RowStatus::Ok ? std::optional(p.time_s) : std::nullopt;
    out += fmt::format("{:{}}  {:>10} {:>10} {:>7}  {:>9} {:>9} {:>7}  {}\n", runs[i].id, width,
                       figure(t.time_s, 1), figure(ours, 1), error(t.time_s, ours),
                       figure(t.memory_bytes, kGiB), figure(p.memory_bytes, kGiB),
                       error(t.memory_bytes, p.memory_bytes), reason_of(runs[i], p));
  }
  return out;
}

std::string runs_json(const std::vector<PublishedRun>& runs,
                      const std::vector<Prediction>& predictions, const Scores& scores) {
  Json out{{"rows", Json::array()}, {"summary", Json::object()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out["rows"].push_back(row_json(runs[i], predictions[i]));
  }
  Json& summary = out["summary"];
  summary["kinds"] = Json::array();
  summary["groups"] = Json::array();
  summary["memory"] = Json::array();
  for (const ScoreLine& l : scores.kinds) summary["kinds"].push_back(line_json(l));
  for (const ScoreLine& l : scores.groups) summary["groups"].push_back(line_json(l));
  for (const MemoryLine& l : scores.memory) {
    Json json{{"memory_kind", l.memory_kind}, {"group", l.group}};
    json.update(errors_json(l.errors));
    summary["memory"].push_back(std::move(json));
  }
  return out.dump(1) + "\n";
}

}  // namespace gputwin
