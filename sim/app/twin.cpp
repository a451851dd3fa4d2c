#include "sim/app/twin.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <map>

#include "sim/app/comparison_report.h"
#include "sim/app/data_directory.h"
#include "sim/app/describe.h"
#include "sim/app/result_json.h"
#include "sim/app/run.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "sim/trace/chrome_import.h"
#include "sim/trace/run_comparison.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using Json = Journal::Json;

constexpr std::int64_t kEvidence = 20;  // operations of a class before its factor is learned

std::string now() {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", seconds);
}

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "name a trace or a log");
  return {std::istreambuf_iterator<char>(in), {}};
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// The factor of what_if.times that scales operations of this kind; null: none does.
const char* factor_of(SliceKind kind) {
  switch (kind) {
    case SliceKind::Gemm: return "gemm_time";
    case SliceKind::Attention: return "attention_time";
    case SliceKind::Pointwise: return "memory_bound_time";
    case SliceKind::TpComm: return "collective_in_node_time";
    case SliceKind::DpComm: return "collective_across_nodes_time";
    case SliceKind::PpComm:
    case SliceKind::OtherComm:
    case SliceKind::Optimizer:
    case SliceKind::Copy:
    case SliceKind::Host:
    case SliceKind::Other: break;
  }
  return nullptr;
}

bool is_trace(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.ends_with(".gtr") || name.ends_with(".json") || name.ends_with(".json.gz");
}

InputError no_twin(const fs::path& folder) {
  return InputError(folder.string(), "", "", "holds no twin",
                    "gputwin twin init " + folder.string() + " SCENARIO");
}

const fs::path& checked(const fs::path& folder) {
  if (fs::exists(folder / "history.jsonl")) return folder;
  throw no_twin(folder);
}

/// A folder or file that is removed unless the history came to name it.
struct Unnamed {
  fs::path path;
  bool named = false;
  ~Unnamed() {
    std::error_code ignored;
    if (!named) fs::remove_all(path, ignored);
  }
};

/// Links slower than predicted, and ranks slower than the others.
Json alerts_of(const RunComparison& c) {
  Json alerts = Json::array();
  for (const KindErrors& k : c.kinds) {
    const bool transfer = k.kind == SliceKind::TpComm || k.kind == SliceKind::DpComm ||
                          k.kind == SliceKind::PpComm || k.kind == SliceKind::OtherComm;
    if (!transfer || k.pairs < kEvidence || k.time_b <= 0) continue;
    const double rate = k.time_a / k.time_b;
    if (rate >= kSlowLinks) continue;
    alerts.push_back(fmt::format("slow links: {} reaches {:.0f} % of the predicted rate",
                                 label(k.kind), 100 * rate));
  }
  for (const std::size_t i : c.stragglers_b) {
    alerts.push_back(fmt::format(
        "straggler: rank {} works more than 10 % and one standard deviation beyond the mean",
        c.ranks[i].rank));
  }
  return alerts;
}

/// Time seen over time predicted, of classes with enough operations.
Json learned(const RunComparison& c) {
  std::map<std::string, std::pair<double, double>> times;
  for (const KindErrors& k : c.kinds) {
    const char* factor = factor_of(k.kind);
    if (factor == nullptr || k.pairs < kEvidence || k.time_a <= 0) continue;
    times[factor].first += k.time_a;
    times[factor].second += k.time_b;
  }
  Json factors = Json::object();
  for (const auto& [factor, ab] : times) factors[factor] = ab.second / ab.first;
  return factors;
}

}  // namespace

std::vector<double> windows_of(const std::vector<LoggedIterations>& lines) {
  std::vector<double> windows;
  for (std::size_t i = lines.size() > 1 ? 1 : 0; i < lines.size();) {
    std::vector<double> seconds;
    std::int64_t iterations = 0;
    for (; i < lines.size() && iterations < kIterationsOfWindow; ++i) {
      seconds.push_back(lines[i].seconds);
      iterations += lines[i].iterations;
    }
    if (iterations < 3 && !windows.empty()) break;
    windows.push_back(median(std::move(seconds)));
  }
  return windows;
}

bool drifted(const std::vector<double>& windows, double low, double high) {
  if (windows.size() < kDriftWindows) return false;
  const auto last = windows.end() - kDriftWindows;
  return std::all_of(last, windows.end(), [&](double w) { return w > high; }) ||
         std::all_of(last, windows.end(), [&](double w) { return w < low; });
}

Json Twin::init(const fs::path& folder, const Scenario& scenario) {
  Journal history(folder / "history.jsonl");  // empty until all else is there
  if (!history.lines().empty()) {
    throw InputError(folder.string(), "", "", "holds a twin already",
                     "gputwin twin status " + folder.string() + ", or name another folder");
  }
  const Json line{{"event", "init"}, {"gputwin_twin", 1}, {"at", now()}, {"job", scenario.name}};
  Unnamed begun{history.path()};
  write_file(folder / "scenario.json", Json::parse(scenario.resolved).dump(2) + "\n");
  history.append(line);
  begun.named = true;
  return line;
}

Twin::Twin(fs::path folder) : folder_(checked(folder)), history_(folder_ / "history.jsonl") {
  if (history().empty()) throw no_twin(folder_);
  const bool ours = history().front().value("gputwin_twin", 0) == 1;
  if (!ours) history_.fail("line 1", "is not the beginning of a twin's history", "restore it");
}

std::string Twin::next_id(const char* event, char letter) const {
  const auto count = std::count_if(history().begin(), history().end(),
                                   [&](const Json& l) { return l.value("event", "") == event; });
  return fmt::format("{}{}", letter, count + 1);
}

Json Twin::factors() const {
  Json factors = Json::object();
  for (const Json& line : history()) {
    if (line.contains("factors_learned")) factors = line["factors_learned"];
  }
  return factors;
}

Json Twin::predict(const std::vector<std::string>& sets) {
  std::vector<std::string> all = sets;
  const Json known = factors();
  for (const auto& [factor, value] : known.items()) {
    all.push_back(fmt::format("what_if.times.{}={}", factor, value.get<double>()));
  }
  const Scenario scenario =
      load_scenario((folder_ / "scenario.json").string(), all, {data_directory() / "scenarios"});
  const std::string id = next_id("prediction", 'p');
  const fs::path into = folder_ / "predictions" / id;
  Unnamed made{into};
  RunRequest request;
  request.trace = into / "timeline.gtr";
  if (scenario.layout.ranks() <= 64) request.options.fold = Fold::Off;  // ranks are compared
  const RunOutcome outcome = run(scenario, request);
  if (const auto* no = std::get_if<Infeasible>(&outcome)) {
    throw InputError((folder_ / "scenario.json").string(), "", "", "is infeasible: " + no->reason,
                     no->fix);
  }
  const RunResult& result = std::get<RunResult>(outcome);
  write_file(into / "scenario.json", Json::parse(scenario.resolved).dump(2) + "\n");
  write_result_json(into / "result.json", result, describe(scenario).flops_convention);
  Json line{{"event", "prediction"},
            {"id", id},
            {"at", now()},
            {"set", sets},
            {"iteration_s", to_seconds(result.execution.iteration).value},
            {"interval_s", {result.low.value, result.high.value}},
            {"factors", known}};
  history_.append(line);
  made.named = true;
  return line;
}

const Json& Twin::prediction_line(const std::string& id) const {
  const Json* found = nullptr;
  for (const Json& line : history()) {
    if (line.value("event", "") != "prediction") continue;
    if (id.empty() || line.value("id", "") == id) found = &line;
  }
  if (found != nullptr) return *found;
  throw InputError(folder_.string(), "", id,
                   id.empty() ? "holds no prediction" : "is no prediction of this twin",
                   "gputwin twin predict " + folder_.string() + " before the run");
}

std::vector<double> Twin::earlier_windows(const std::string& prediction) const {
  std::vector<double> windows;
  for (const Json& line : history()) {
    if (line.value("event", "") != "observation" || line["prediction"] != prediction) continue;
    for (const Json& w : line["windows_s"]) windows.push_back(w.get<double>());
  }
  return windows;
}

Json Twin::observe_log(const fs::path& file, const Json& prediction, const fs::path& into) {
  const std::string id = prediction["id"];
  const Scenario scenario = load_scenario((folder_ / "predictions" / id / "scenario.json").string(),
                                          {}, {data_directory() / "scenarios"});
  const double tokens = static_cast<double>(scenario.job.global_batch) *
                        static_cast<double>(scenario.job.sequence) / scenario.layout.ranks();
  const std::vector<LoggedIterations> lines = iterations_of_log(text_of(file), tokens);
  if (lines.empty()) {
    throw InputError(
        file.string(), "", "", "tells no iteration",
        "name a log of Megatron-LM (\"elapsed time per iteration (ms): …\"), torchtitan "
        "(\"tps: …\") or DeepSpeed (\"iter time (s): …\"), or a trace");
  }
  Json kept = Json::array();
  std::int64_t iterations = 0;
  for (const LoggedIterations& line : lines) {
    kept.push_back({{"iterations", line.iterations}, {"seconds", line.seconds}});
    iterations += line.iterations;
  }
  write_file(into / "iterations.json", kept.dump() + "\n");
  const std::vector<double> windows = windows_of(lines);
  return {{"kind", "log"},
          {"iterations", iterations},
          {"iteration_s", median(windows)},
          {"windows_s", windows},
          {"alerts", Json::array()}};
}

std::vector<std::string> Twin::standing_alerts() const {
  std::vector<std::string> out;
  bool latest = true;
  for (auto line = history().rbegin(); line != history().rend(); ++line) {
    if (line->value("event", "") != "observation") continue;
    const bool trace = (*line)["kind"] == "trace";
    for (const Json& alert : (*line)["alerts"]) {
      const std::string text = alert;
      if (latest || (trace && !text.starts_with("drift"))) out.push_back(text);
    }
    if (trace) break;
    latest = false;
  }
  return out;
}

Json Twin::observe_trace(const fs::path& file, const Json& prediction, const fs::path& into) {
  const std::string id = prediction["id"];
  const Store predicted = open_trace(folder_ / "predictions" / id / "timeline.gtr");
  const Store seen = open_trace(file);
  const RunComparison c = compare_runs(predicted, seen);
  if (c.ranks.empty()) {
    throw InputError(file.string(), "", "", "holds no work of a device to compare",
                     "name a profile with kernels");
  }
  write_file(into / "comparison.json", comparison_json(c, "prediction " + id, file.string()));
  write_file(into / "comparison.html", comparison_page(c, "prediction " + id, file.string()));
  return {{"kind", "trace"},
          {"iterations", c.iterations_b},
          {"iteration_s", c.iteration_b},
          {"windows_s", {c.iteration_b}},
          {"operations_off", c.all.absolute},
          {"factors_seen", learned(c)},
          {"explanation", explanation(c)},
          {"alerts", alerts_of(c)}};
}

Json Twin::observe(const fs::path& file, const std::string& of, bool learn) {
  const Json prediction = prediction_line(of);
  const std::string id = next_id("observation", 'o');
  const fs::path into = folder_ / "observations" / id;
  Unnamed made{into};
  const Json seen =
      is_trace(file) ? observe_trace(file, prediction, into) : observe_log(file, prediction, into);
  Json line{{"event", "observation"},
            {"id", id},
            {"at", now()},
            {"prediction", prediction["id"]},
            {"file", file.string()}};
  line.update(seen);
  const double predicted = prediction["iteration_s"], measured = line["iteration_s"];
  line["error"] = predicted / measured - 1;
  std::vector<double> windows = earlier_windows(prediction["id"]);
  for (const Json& w : line["windows_s"]) windows.push_back(w.get<double>());
  if (drifted(windows, prediction["interval_s"][0], prediction["interval_s"][1])) {
    line["alerts"].push_back(fmt::format("drift: the last {} windows lie {} the predicted interval",
                                         kDriftWindows,
                                         windows.back() > predicted ? "above" : "below"));
  }
  if (learn && line.contains("factors_seen")) {
    Json all = prediction["factors"];
    for (const auto& [factor, value] : line["factors_seen"].items()) {
      all[factor] = all.value(factor, 1.0) * value.get<double>();
    }
    line["factors_learned"] = all;
  }
  history_.append(line);
  made.named = true;
  return line;
}

}  // namespace gputwin
