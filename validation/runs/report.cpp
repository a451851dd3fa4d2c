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
constexpr const char* kUnseenColumns = "  no factors %  cross-fitted %  other stack %";

// Scores of the three predictions of unseen runs; their lines are those of the scores beside them.
struct Unseen {
  Scores no_factors, cross_fitted, other_stack;
};

std::optional<Unseen> unseen_scores(const std::vector<PublishedRun>& runs,
                                    const RunsExtras& extras) {
  if (extras.unseen == nullptr) return std::nullopt;
  return Unseen{score(runs, extras.unseen->no_factors), score(runs, extras.unseen->cross_fitted),
                score(runs, extras.unseen->other_stack)};
}

using Lines = std::vector<ScoreLine> Scores::*;

std::string unseen_columns(const Unseen& unseen, Lines lines, std::size_t line) {
  const auto mean = [&](const Scores& scores) {
    const ErrorSummary& e = (scores.*lines)[line].errors;
    return e.n == 0 ? std::string("-") : percent(e.mean);
  };
  return fmt::format("  {:>12}  {:>14}  {:>13}", mean(unseen.no_factors), mean(unseen.cross_fitted),
                     mean(unseen.other_stack));
}

std::string score_table(const Scores& scores, Lines which, const std::optional<Unseen>& unseen) {
  const bool by_group = which == &Scores::groups;
  const std::vector<ScoreLine>& lines = scores.*which;
  const auto label = [&](const ScoreLine& l) {
    return by_group ? l.group + " on " + l.device : l.kind;
  };
  std::size_t width = 12;
  for (const ScoreLine& l : lines) width = std::max(width, label(l).size());
  std::string out = fmt::format("{:{}} {:>9}  {}{}\n", "", width, "predicted", kColumns,
                                unseen ? kUnseenColumns : "");
  std::string kind;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const ScoreLine& l = lines[i];
    if (by_group && l.kind != kind) out += l.kind + "\n";
    kind = l.kind;
    out += fmt::format("{:{}} {:>4}/{:<4}  {}{}\n", label(l), width, l.predicted, l.scorable,
                       error_columns(l.errors), unseen ? unseen_columns(*unseen, which, i) : "");
  }
  return out;
}

// One line per set of factors, those of 1 left out.
std::string factor_table(const StackFit& fit) {
  std::string out = fmt::format("{:32} {:10} {:>4} {:>10} {:>8} {:>13}  {}\n", "", "on", "runs",
                                "no factors", "fitted", "cross-fitted", "mean error %; factors");
  for (const FittedStack& s : fit.stacks) {
    std::string factors;
    for (std::size_t k = 0; k < kFactors; ++k) {
      if (s.factors[k] != 1.0) factors += fmt::format(" {} {:.3f}", factor_keys()[k], s.factors[k]);
    }
    out += fmt::format("{:32} {:10} {:>4} {:>10} {:>8} {:>13} {}\n", s.family,
                       s.architecture ? to_string(*s.architecture) : "all", s.runs,
                       percent(s.error_without), percent(s.error_fitted),
                       percent(s.error_cross_fitted), factors);
  }
  return out + fmt::format(
                   "\n80 % of runs are within {:.0f} % with the factors of the nearest "
                   "other stack ({} runs of {} stacks)\n",
                   100 * fit.unknown_deviation, fit.deviation_runs, fit.deviation_stacks);
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

Json factors_json(const StackFit& fit) {
  Json list = Json::array();
  for (const FittedStack& s : fit.stacks) {
    Json json{{"family", s.family}};
    json["architecture"] = s.architecture ? Json(to_string(*s.architecture)) : Json(nullptr);
    json["runs"] = s.runs;
    json["groups"] = s.groups;
    for (std::size_t k = 0; k < kFactors; ++k) {
      json["factors"][std::string(factor_keys()[k])] = s.factors[k];
    }
    json["no_factors"] = s.error_without;
    json["fitted"] = s.error_fitted;
    json["cross_fitted"] = s.error_cross_fitted;
    list.push_back(std::move(json));
  }
  return {{"stacks", std::move(list)},
          {"unknown_stack",
           {{"time_deviation", fit.unknown_deviation},
            {"runs", fit.deviation_runs},
            {"stacks", fit.deviation_stacks}}}};
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

Json lines_json(const Scores& scores, Lines which, const std::optional<Unseen>& unseen) {
  Json list = Json::array();
  const std::vector<ScoreLine>& lines = scores.*which;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    list.push_back(line_json(lines[i]));
    if (!unseen) continue;
    const auto mean = [&](const Scores& s) {
      const ErrorSummary& e = (s.*which)[i].errors;
      return e.n == 0 ? Json(nullptr) : Json(e.mean);
    };
    list.back()["no_factors"] = mean(unseen->no_factors);
    list.back()["cross_fitted"] = mean(unseen->cross_fitted);
    list.back()["other_stack"] = mean(unseen->other_stack);
  }
  return list;
}

}  // namespace

std::string runs_report(const std::vector<PublishedRun>& runs,
                        const std::vector<Prediction>& predictions, const RunsExtras& extras) {
  const Scores scores = score(runs, predictions);
  const std::optional<Unseen> unseen = unseen_scores(runs, extras);
  std::string out;
  if (extras.fit != nullptr)
    out += "Factors of software stacks\n\n" + factor_table(*extras.fit) + "\n";
  out += "Iteration time, scorable rows\n\n" + score_table(scores, &Scores::kinds, unseen);
  out += "\nBy group and device\n\n" + score_table(scores, &Scores::groups, unseen);
  if (!scores.memory.empty()) {
    out += "\nMemory of the fullest device\n\n" + memory_table(scores.memory);
  }
  if (extras.ablation != nullptr) {
    out += "\nWithout one mechanism\n\n" + ablation_text(*extras.ablation);
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
                      const std::vector<Prediction>& predictions, const RunsExtras& extras) {
  const Scores scores = score(runs, predictions);
  const std::optional<Unseen> unseen = unseen_scores(runs, extras);
  Json out{{"rows", Json::array()}, {"summary", Json::object()}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out["rows"].push_back(row_json(runs[i], predictions[i]));
  }
  Json& summary = out["summary"];
  summary["kinds"] = lines_json(scores, &Scores::kinds, unseen);
  summary["groups"] = lines_json(scores, &Scores::groups, unseen);
  summary["memory"] = Json::array();
  for (const MemoryLine& l : scores.memory) {
    Json json{{"memory_kind", l.memory_kind}, {"group", l.group}};
    json.update(errors_json(l.errors));
    summary["memory"].push_back(std::move(json));
  }
  if (extras.ablation != nullptr) summary["ablation"] = ablation_json(*extras.ablation);
  if (extras.fit != nullptr) summary["stack_factors"] = factors_json(*extras.fit);
  return out.dump(1) + "\n";
}

}  // namespace gputwin
