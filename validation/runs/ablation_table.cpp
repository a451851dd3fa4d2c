#include "validation/runs/ablation_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/app/ablation.h"
#include "validation/runs/scoring.h"
#include "validation/runs/stack_origin.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

bool in_column(const AblationColumn& column, const PublishedRun& run) {
  const std::string kind = column.kind, group = column.group;
  return is_scored(run) && (kind.empty() || scored_kind(run) == kind) &&
         (group.empty() || run.group == group);
}

bool in_any_column(const PublishedRun& run) {
  const std::vector<AblationColumn> columns = ablation_columns();
  return std::any_of(columns.begin(), columns.end(),
                     [&](const AblationColumn& c) { return in_column(c, run); });
}

// Median of predicted / measured, by stack.
std::map<std::string, double> biases(const std::vector<PublishedRun>& runs,
                                     const std::vector<std::string>& stacks,
                                     const std::vector<Prediction>& predictions) {
  std::map<std::string, std::vector<double>> ratios;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!is_scored(runs[i]) || predictions[i].status != RowStatus::Ok) continue;
    ratios[stacks[i]].push_back(predictions[i].time_s / *runs[i].target.time_s);
  }
  std::map<std::string, double> medians;
  for (const auto& [stack, values] : ratios) medians[stack] = quantile(values, 0.5);
  return medians;
}

}  // namespace

std::vector<AblationColumn> ablation_columns() {
  return {{"dense-A100", "dense-A100", ""},
          {"dense-V100", "dense-V100", ""},
          {"dense-H100", "dense-H100", ""},
          {"dense-Blackwell", "dense-Blackwell", ""},
          {"fsdp-A100", "fsdp-A100", ""},
          {"fsdp-H100", "fsdp-H100", ""},
          {"amp", "slow-network", "amp-homogeneous"},
          {"ds3lab", "slow-network", "ds3lab-gpipe"},
          {"tau bigscience", "", "bigscience-a100", true},
          {"tau amp", "", "amp-homogeneous", true},
          {"tau zero-bubble", "", "zero-bubble-8gpu", true}};
}

AblationLine ablation_line(const std::string& mechanism, const std::vector<PublishedRun>& runs,
                           const std::vector<std::string>& stacks,
                           const std::vector<Prediction>& predictions) {
  const std::map<std::string, double> bias = biases(runs, stacks, predictions);
  AblationLine line{mechanism, {}};
  for (const AblationColumn& column : ablation_columns()) {
    double sum = 0;
    std::vector<std::pair<double, double>> pairs;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (!in_column(column, runs[i]) || predictions[i].status != RowStatus::Ok) continue;
      const double measured = *runs[i].target.time_s, predicted = predictions[i].time_s;
      pairs.emplace_back(measured, predicted);
      sum += std::abs(predicted / bias.at(stacks[i]) / measured - 1);
    }
    if (column.tau) {
      line.values.push_back(kendall_tau(pairs));
    } else if (pairs.empty()) {
      line.values.emplace_back();
    } else {
      line.values.emplace_back(sum / static_cast<double>(pairs.size()));
    }
  }
  return line;
}

double ablation_passes() { return 1.0 + static_cast<double>(kMechanisms); }

AblationTable ablate(const std::vector<PublishedRun>& runs, const std::filesystem::path& hardware,
                     WorkerPool& pool, const PredictOptions& options, PassProgress& passes) {
  std::vector<PublishedRun> shown;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(shown), in_any_column);
  std::vector<std::string> stacks;
  for (const StackOrigin& origin : stack_origins(shown, hardware)) {
    stacks.push_back((origin.family.empty() ? origin.stack : origin.family) + " on " +
                     (origin.architecture ? std::string(to_string(*origin.architecture)) : ""));
  }
  std::vector<std::string> words{""};
  for (const std::string_view w : mechanism_words()) words.emplace_back(w);
  AblationTable table;
  for (const std::string& word : words) {
    PredictOptions changed = options;
    changed.progress = passes.next(1);
    if (!word.empty()) changed.what_if["without"] = {word};
    table.push_back(ablation_line(word, shown, stacks, predict(shown, pool, changed)));
  }
  return table;
}

std::string ablation_text(const AblationTable& table) {
  const std::vector<AblationColumn> columns = ablation_columns();
  std::string out = fmt::format("{:15}", "without");
  for (const AblationColumn& c : columns) out += fmt::format("  {}", c.label);
  out += "\n";
  for (const AblationLine& line : table) {
    out += fmt::format("{:15}", line.mechanism.empty() ? "(none)" : line.mechanism);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const std::optional<double>& value = line.values[c];
      const std::string text = !value           ? "-"
                               : columns[c].tau ? fmt::format("{:.2f}", *value)
                                                : fmt::format("{:.1f}", 100 * *value);
      out += fmt::format("  {:>{}}", text, std::string(columns[c].label).size());
    }
    out += "\n";
  }
  return out + "Mean absolute error in % after each stack's median bias; tau of the times.\n";
}

Json ablation_json(const AblationTable& table) {
  const std::vector<AblationColumn> columns = ablation_columns();
  Json list = Json::array();
  for (const AblationLine& line : table) {
    Json json{{"without", line.mechanism.empty() ? Json(nullptr) : Json(line.mechanism)}};
    for (std::size_t c = 0; c < columns.size(); ++c) {
      json[columns[c].label] = line.values[c] ? Json(*line.values[c]) : Json(nullptr);
    }
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace gputwin
