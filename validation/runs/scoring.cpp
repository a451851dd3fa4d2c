#include "validation/runs/scoring.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace gputwin {
namespace {

// Measured and predicted values of one line, and how often the interval held.
struct Sample {
  std::vector<std::pair<double, double>> pairs;
  std::int32_t scorable = 0, inside = 0;
};

ErrorSummary summary(const Sample& sample) {
  ErrorSummary s;
  s.n = static_cast<std::int32_t>(sample.pairs.size());
  if (s.n == 0) return s;
  std::vector<double> all, absolute;
  for (const auto& [measured, predicted] : sample.pairs) {
    all.push_back(predicted / measured - 1.0);
    absolute.push_back(std::abs(all.back()));
  }
  s.mean = std::accumulate(absolute.begin(), absolute.end(), 0.0) / s.n;
  s.median = quantile(absolute, 0.5);
  s.p95 = quantile(absolute, 0.95);
  s.bias = quantile(all, 0.5);
  s.tau = kendall_tau(sample.pairs);
  s.inside = static_cast<double>(sample.inside) / s.n;
  return s;
}

void add(Sample& sample, const PublishedRun& run, const Prediction& p) {
  ++sample.scorable;
  if (p.status != RowStatus::Ok) return;
  const double measured = *run.target.time_s;
  sample.pairs.emplace_back(measured, p.time_s);
  if (measured >= p.low_s && measured <= p.high_s) ++sample.inside;
}

ScoreLine line(const std::string& kind, const std::string& group, const std::string& device,
               const Sample& sample) {
  return {.kind = kind,
          .group = group,
          .device = device,
          .scorable = sample.scorable,
          .predicted = static_cast<std::int32_t>(sample.pairs.size()),
          .errors = summary(sample)};
}

std::string device_of(const PublishedRun& run) {
  const auto found = run.config.find("device_id");
  return found != run.config.end() && found->is_string() ? found->get<std::string>() : "mixed";
}

std::vector<MemoryLine> memory_lines(const std::vector<PublishedRun>& runs,
                                     const std::vector<Prediction>& predictions) {
  std::map<std::pair<std::string, std::string>, Sample> samples;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunTarget& target = runs[i].target;
    if (!runs[i].scorable || !target.memory_bytes || !predictions[i].memory_bytes) continue;
    for (const std::string& group : {std::string(), runs[i].group}) {
      samples[{target.memory_kind, group}].pairs.emplace_back(*target.memory_bytes,
                                                              *predictions[i].memory_bytes);
    }
  }
  std::vector<MemoryLine> lines;
  for (const auto& [key, sample] : samples) {
    lines.push_back({key.first, key.second, summary(sample)});
  }
  return lines;
}

}  // namespace

bool is_scored(const PublishedRun& run) {
  return run.scorable && run.target.time_s && run.target.of_iteration;
}

std::string scored_kind(const PublishedRun& run) {
  return run.group == "vtrain-single" ? run.kind + " (vtrain-single)" : run.kind;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

std::optional<double> kendall_tau(const std::vector<std::pair<double, double>>& pairs) {
  if (pairs.size() < 3) return std::nullopt;
  const auto sign = [](double x) { return static_cast<double>((x > 0) - (x < 0)); };
  double agree = 0, first = 0, second = 0;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    for (std::size_t j = i + 1; j < pairs.size(); ++j) {
      const double a = sign(pairs[i].first - pairs[j].first);
      const double b = sign(pairs[i].second - pairs[j].second);
      agree += a * b;
      first += a * a;
      second += b * b;
    }
  }
  if (first == 0 || second == 0) return std::nullopt;
  return agree / std::sqrt(first * second);
}

Scores score(const std::vector<PublishedRun>& runs, const std::vector<Prediction>& predictions) {
  std::map<std::string, Sample> kinds;
  std::map<std::tuple<std::string, std::string, std::string>, Sample> groups;
  Sample all;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const PublishedRun& run = runs[i];
    if (!is_scored(run)) continue;
    const std::string kind = scored_kind(run);
    add(kinds[kind], run, predictions[i]);
    add(groups[{kind, run.group, device_of(run)}], run, predictions[i]);
    if (kind == run.kind) add(all, run, predictions[i]);
  }
  Scores scores;
  for (const auto& [kind, sample] : kinds) scores.kinds.push_back(line(kind, "", "", sample));
  scores.kinds.push_back(line("all measured", "", "", all));
  for (const auto& [key, sample] : groups) {
    const auto& [kind, group, device] = key;
    scores.groups.push_back(line(kind, group, device, sample));
  }
  scores.memory = memory_lines(runs, predictions);
  return scores;
}

}  // namespace gputwin
