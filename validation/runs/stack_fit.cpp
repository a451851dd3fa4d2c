#include "validation/runs/stack_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "validation/runs/scoring.h"
#include "validation/runs/stack_origin.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;
using Where = std::optional<Architecture>;   // none: every architecture
using Unit = std::pair<std::string, Where>;  // runs that share factors: family, architecture

constexpr double kStep = 1.2;      // of a factor, where shares are taken
constexpr double kStartStep = 10;  // added to that of CollectiveStart
constexpr auto kStart = static_cast<std::size_t>(Factor::CollectiveStart);
constexpr std::int32_t kLeastStacks = 5;  // fewer do not tell how wrong unknown stacks are

double rounded(double value, double steps) { return std::round(value * steps) / steps; }

StackFactors factors_of(const LogFactors& x) {
  StackFactors factors;
  std::transform(x.begin(), x.end(), factors.begin(),
                 [](double v) { return rounded(std::exp(v), 1000); });
  return factors;
}

LogFactors logarithms(const StackFactors& factors) {
  LogFactors x;
  std::transform(factors.begin(), factors.end(), x.begin(), [](double v) { return std::log(v); });
  return x;
}

Json what_if(const StackFactors& times) {
  Json json{{"without", {"stack_factors"}}, {"times", Json::object()}};
  for (std::size_t k = 0; k < kFactors; ++k) {
    json["times"][std::string(factor_keys()[k])] = times[k];
  }
  return json;
}

// The passes and what they led to. Indices are those of runs.
class Fit {
 public:
  Fit(const std::vector<PublishedRun>& runs, const std::filesystem::path& hardware,
      WorkerPool& pool, const PredictOptions& options, PassProgress& passes)
      : runs_(runs),
        stacks_(hardware / "stacks"),
        origins_(stack_origins(runs, hardware)),
        pool_(pool),
        options_(options),
        passes_(passes) {
    options_.what_if = Json::object();
  }

  StackFit result() {
    predict_without_factors();
    find_units();
    for (const Round round : {Round::Shares, Round::Start, Round::AroundStart}) {
      linearise(round);
      fit_units(round);
    }
    StackFit fit;
    fit.unseen.no_factors = without_;
    fit.unseen.cross_fitted = without_;
    add_stacks(fit);
    predict_other_stacks(fit);
    add_deviation(fit);
    return fit;
  }

 private:
  // A start and the factor on in-node collectives multiply each other, so far from the answer no
  // first order holds of both: the other factors come first, and where there is a start, all are
  // fitted again around it.
  enum class Round { Shares, Start, AroundStart };

  bool takes_part(const Unit& unit, Round round) const {
    return round != Round::AroundStart || fitted_.at(unit)[kStart] > 0;
  }

  std::vector<Prediction> ask(const std::vector<PredictionRequest>& requests, double weight) {
    options_.progress = passes_.next(weight);
    return predict(requests, pool_, options_);
  }

  void predict_without_factors() {
    std::vector<PredictionRequest> requests;
    for (const std::size_t i : scored()) requests.push_back({&runs_[i], what_if(kNoFactors)});
    const std::vector<Prediction> answers = ask(requests, 1);
    Prediction none;
    none.reason = "not scored";
    without_.assign(runs_.size(), none);
    std::size_t next = 0;
    for (const std::size_t i : scored()) without_[i] = answers[next++];
  }

  std::vector<std::size_t> scored() const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (is_scored(runs_[i])) list.push_back(i);
    }
    return list;
  }

  bool predicted(std::size_t i) const {
    return is_scored(runs_[i]) && without_[i].status == RowStatus::Ok;
  }

  // A family as a whole, and each of its architectures, if it has several with enough runs.
  void find_units() {
    std::map<std::string, std::map<Architecture, std::vector<std::size_t>>> families;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      const StackOrigin& origin = origins_[i];
      if (!predicted(i) || origin.family.empty() || !origin.architecture) continue;
      families[origin.family][*origin.architecture].push_back(i);
    }
    for (const auto& [family, architectures] : families) {
      std::vector<std::size_t> all;
      for (const auto& [a, list] : architectures) all.insert(all.end(), list.begin(), list.end());
      std::sort(all.begin(), all.end());
      if (all.size() < kLeastRuns) continue;
      units_[{family, std::nullopt}] = all;
      for (const auto& [a, list] : architectures) {
        if (architectures.size() > 1 && list.size() >= kLeastRuns) units_[{family, a}] = list;
      }
    }
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!predicted(i) || !unit_of(origins_[i].family, origins_[i].architecture)) continue;
      lines_[i] = {.id = runs_[i].id,
                   .group = runs_[i].group,
                   .measured_s = *runs_[i].target.time_s,
                   .predicted_s = without_[i].time_s};
    }
  }

  // The unit whose factors hold for a family on an architecture.
  std::optional<Unit> unit_of(const std::string& family, const Where& architecture) const {
    for (const Where& where : {architecture, Where{}}) {
      if (units_.contains({family, where})) return Unit{family, where};
    }
    return std::nullopt;
  }

  // Predicts each fitted run with the factors of its unit, and with each of them a step higher.
  void linearise(Round round) {
    std::vector<PredictionRequest> requests;
    std::vector<std::pair<std::size_t, LinearRun*>> asked;
    for (auto& [i, line] : lines_) {
      const Unit unit = *unit_of(origins_[i].family, origins_[i].architecture);
      if (!takes_part(unit, round)) continue;
      asked.emplace_back(i, &line);
      const auto found = fitted_.find(unit);
      const StackFactors at = found == fitted_.end() ? kNoFactors : factors_of(found->second);
      line.at = logarithms(at);
      requests.push_back({&runs_[i], what_if(at)});
      for (std::size_t k = 0; k < kFactors; ++k) {
        StackFactors higher = at;
        higher[k] = k == kStart ? at[k] + kStartStep : at[k] * kStep;
        requests.push_back({&runs_[i], what_if(higher)});
      }
    }
    const std::vector<Prediction> answers = ask(requests, kFactors + 1);
    const Prediction* next = answers.data();
    for (const auto& [i, asked_line] : asked) {
      LinearRun& line = *asked_line;
      const Prediction* mine = next;
      next += kFactors + 1;
      if (std::any_of(mine, next, [](const auto& p) { return p.status != RowStatus::Ok; }))
        continue;
      line.predicted_s = mine->time_s;
      for (std::size_t k = 0; k < kFactors; ++k) {
        if (k == kStart) continue;
        line.share[k] = std::log(mine[k + 1].time_s / mine->time_s) / std::log(kStep);
      }
      line.start_s = (mine[kStart + 1].time_s - mine->time_s) / kStartStep;
    }
  }

  std::vector<LinearRun> runs_of(const Unit& unit) const {
    std::vector<LinearRun> list;
    for (const std::size_t i : units_.at(unit)) list.push_back(lines_.at(i));
    return list;
  }

  void fit_units(Round round) {
    for (const auto& [unit, list] : units_) {
      if (!takes_part(unit, round)) continue;
      const std::vector<LinearRun> runs = runs_of(unit);
      fitted_[unit] = round == Round::Shares ? fit_without_start(runs) : fit_factors(runs);
    }
  }

  void add_stacks(StackFit& fit) const {
    for (const auto& [unit, list] : units_) {
      const std::vector<LinearRun> lines = runs_of(unit);
      const std::vector<double> cross = cross_fitted(lines);
      FittedStack stack;
      std::tie(stack.family, stack.architecture) = unit;
      stack.runs = static_cast<std::int32_t>(list.size());
      stack.factors = factors_of(fitted_.at(unit));
      const LogFactors x = logarithms(stack.factors);
      std::set<std::string> groups;
      for (std::size_t n = 0; n < list.size(); ++n) {
        const std::size_t i = list[n];
        groups.insert(runs_[i].group);
        const auto error = [&](double time) { return std::abs(time / lines[n].measured_s - 1); };
        stack.error_without += error(without_[i].time_s) / stack.runs;
        stack.error_fitted += error(lines[n].predicted(x)) / stack.runs;
        stack.error_cross_fitted += error(cross[n]) / stack.runs;
        if (unit_of(origins_[i].family, origins_[i].architecture) == unit) {
          set_time(fit.unseen.cross_fitted[i], cross[n]);
        }
      }
      stack.groups.assign(groups.begin(), groups.end());
      fit.stacks.push_back(std::move(stack));
    }
  }

  static void set_time(Prediction& p, double time_s) {
    p.low_s *= time_s / p.time_s;
    p.high_s *= time_s / p.time_s;
    p.time_s = time_s;
  }

  StackFactors factors_of_family(const std::string& family, const Where& architecture) const {
    const std::optional<Unit> unit = unit_of(family, architecture);
    if (unit) return factors_of(fitted_.at(*unit));
    const Stack shipped = load_stack(stacks_ / (family + ".json"));
    return architecture ? shipped.on(*architecture).factors : shipped.factors;
  }

  void predict_other_stacks(StackFit& fit) {
    fit.unseen.other_stack = without_;
    std::vector<PredictionRequest> requests;
    std::vector<std::size_t> asked;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (!predicted(i)) continue;
      const StackFactors other =
          factors_of_family(origins_[i].other_family, origins_[i].architecture);
      if (other == kNoFactors) continue;
      requests.push_back({&runs_[i], what_if(other)});
      asked.push_back(i);
    }
    const std::vector<Prediction> answers = ask(requests, 1);
    for (std::size_t n = 0; n < asked.size(); ++n) {
      const std::size_t i = asked[n];
      fit.unseen.other_stack[i] = answers[n];
      // A stack without a family gets those factors anyway.
      if (origins_[i].family.empty()) fit.unseen.cross_fitted[i] = answers[n];
    }
  }

  // The 80 % quantile of the error with another stack's factors, every family weighing the same.
  void add_deviation(StackFit& fit) const {
    std::vector<std::pair<double, double>> weighted;  // error, weight
    for (const auto& [unit, list] : units_) {
      if (unit.second) continue;
      std::vector<double> errors;
      for (const std::size_t i : list) {
        const Prediction& p = fit.unseen.other_stack[i];
        if (scored_kind(runs_[i]) != runs_[i].kind || p.status != RowStatus::Ok) continue;
        errors.push_back(std::abs(*runs_[i].target.time_s / p.time_s - 1));
      }
      for (const double e : errors)
        weighted.emplace_back(e, 1.0 / static_cast<double>(errors.size()));
      fit.deviation_runs += static_cast<std::int32_t>(errors.size());
      fit.deviation_stacks += errors.empty() ? 0 : 1;
    }
    std::sort(weighted.begin(), weighted.end());
    double sum = 0;
    for (const auto& [error, weight] : weighted) {
      sum += weight;
      fit.unknown_deviation = error;
      if (sum >= 0.8 * fit.deviation_stacks) break;
    }
    fit.unknown_deviation = rounded(fit.unknown_deviation, 100);
  }

  const std::vector<PublishedRun>& runs_;
  const std::filesystem::path stacks_;
  const std::vector<StackOrigin> origins_;
  WorkerPool& pool_;
  PredictOptions options_;
  PassProgress& passes_;
  std::vector<Prediction> without_;
  std::map<Unit, std::vector<std::size_t>> units_;  // the runs of each
  std::map<std::size_t, LinearRun> lines_;          // of runs in units
  std::map<Unit, LogFactors> fitted_;
};

Json constant(double value, const std::string& source) {
  return {{"value", value}, {"source", source}, {"kind", "fitted"}};
}

Json factors_json(const FittedStack& stack) {
  const std::string source =
      fmt::format("fitted on {} runs (groups {}) by gputwin validate runs --fit-stacks", stack.runs,
                  fmt::join(stack.groups, ", "));
  Json json = Json::object();
  for (std::size_t k = 0; k < kFactors; ++k) {
    if (stack.factors[k] == 1.0) continue;
    json[std::string(factor_keys()[k])] = constant(stack.factors[k], source);
  }
  return json;
}

Json read_stack(const std::filesystem::path& path) {
  load_stack(path);  // refuses what is no stack file
  std::ifstream in(path);
  return Json::parse(in);
}

void write_json(const std::filesystem::path& path, const Json& json) {
  write_file(path, json.dump(1) + "\n");
}

}  // namespace

StackFit fit_stacks(const std::vector<PublishedRun>& runs, const std::filesystem::path& hardware,
                    WorkerPool& pool, const PredictOptions& options, PassProgress& passes) {
  return Fit(runs, hardware, pool, options, passes).result();
}

void write_stack_factors(const StackFit& fit, const std::filesystem::path& directory) {
  std::map<std::string, Json> factors, factors_on;
  for (const FittedStack& stack : fit.stacks) {
    const Json json = factors_json(stack);
    if (!stack.architecture) {
      factors[stack.family] = json;
    } else {
      factors_on[stack.family][std::string(to_string(*stack.architecture))] = json;
    }
  }
  for (const auto& [family, general] : factors) {
    const std::filesystem::path path = directory / (family + ".json");
    Json out{{"name", family}};
    if (!general.empty()) out["factors"] = general;
    if (factors_on.contains(family)) out["factors_on"] = factors_on[family];
    const Json before = read_stack(path);
    for (const auto& [key, value] : before.items()) {
      if (key != "name" && key != "factors" && key != "factors_on") out[key] = value;
    }
    write_json(path, out);
  }
  if (fit.deviation_stacks < kLeastStacks) return;
  Json standard = read_stack(directory / "default.json");
  standard["unknown_stack"]["time_deviation"] = constant(
      fit.unknown_deviation,
      fmt::format("80 % of runs lie within it when predicted with the factors of the nearest other "
                  "stack, every stack weighing the same: {} runs of {} stacks, by gputwin validate "
                  "runs --fit-stacks",
                  fit.deviation_runs, fit.deviation_stacks));
  write_json(directory / "default.json", standard);
}

}  // namespace gputwin
