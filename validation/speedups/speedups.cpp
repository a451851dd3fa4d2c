#include "validation/speedups/speedups.h"

#include <algorithm>
#include <map>
#include <set>

#include "sim/app/data_directory.h"
#include "sim/app/json_text.h"
#include "sim/app/run.h"
#include "sim/app/scenario.h"
#include "sim/core/error.h"
#include "sim/engine/simgrid_executor.h"

namespace gputwin {
namespace {

class RowReader {
 public:
  RowReader(std::string file, std::string at, const Json& row)
      : file_(std::move(file)), at_(std::move(at)), row_(row) {
    if (!row.is_object()) fail("", "is no object", "see validation/speedups/README.md");
    const std::set<std::string> known{"id",      "group", "source",    "note",   "scenario",
                                      "variant", "free",  "operation", "target", "set"};
    for (const auto& [key, value] : row.items()) {
      if (!known.contains(key)) fail("/" + key, "is an unknown key", "remove it");
    }
  }

  SpeedupRow read(const Json& defaults) const {
    SpeedupRow out;
    out.id = text("id"), out.group = text("group"), out.source = text("source");
    out.note = row_.contains("note") ? text("note") : "";
    out.set = row_.contains("set") ? text("set") : out.id;
    out.operation = row_.contains("operation") ? text("operation") : "";
    Json scenario = defaults;
    const auto own = row_.find("scenario");
    if (own == row_.end() || !own->is_object()) fail("/scenario", "is no object", "give the job");
    scenario.merge_patch(*own);
    scenario["name"] = out.id;
    out.scenario = scenario.dump();
    out.variant = overrides("variant", true), out.free = overrides("free", false);
    const Json target = row_.value("target", Json::object());
    for (const auto& [key, value] : target.items()) {
      const bool known = key == "speedup" || key == "hidden";
      const double most = key == "hidden" ? 1.0 : 1e6;
      if (!known || !value.is_number() || value.get<double>() <= 0 || value.get<double>() > most) {
        fail("/target/" + key, "is no such figure", "give speedup, hidden (0 to 1) or both");
      }
      (key == "hidden" ? out.hidden : out.speedup) = value.get<double>();
    }
    if (!out.speedup && !out.hidden) fail("/target", "is missing", "give speedup, hidden or both");
    if (out.hidden && out.free.empty() && out.operation.empty()) {
      fail("/free", "is missing", "say what a job without it is, as overrides");
    }
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& where, const char* what, const char* way_out) const {
    throw InputError(file_, at_ + where, "", what, way_out);
  }
  std::string text(const char* key) const {
    const auto found = row_.find(key);
    if (found == row_.end() || !found->is_string()) {
      fail(std::string("/") + key, "is no text", "see validation/speedups/README.md");
    }
    return found->get<std::string>();
  }
  std::vector<std::string> overrides(const char* key, bool needed) const {
    const Json list = row_.value(key, Json::array());
    const bool texts = list.is_array() && std::all_of(list.begin(), list.end(),
                                                      [](const Json& j) { return j.is_string(); });
    if (!texts || (needed && list.empty())) {
      fail(std::string("/") + key, "is no list of overrides", "give \"path=value\", ...");
    }
    return list.get<std::vector<std::string>>();
  }

  std::string file_, at_;
  const Json& row_;
};

// Begin and end, and the kernels' time, of an operation of the first layer forward on rank 0.
class Operation final : public EventSink {
 public:
  Operation(const Plan& plan, std::string name) : plan_(plan), name_(std::move(name)) {}

  void op(const OpEvent& e) override {
    const Name& name = plan_.names[e.instruction->name];
    const bool counts = e.rank.value == 0 && name.phase == Phase::Forward && name.layer == 0 &&
                        name.op.starts_with(name_);
    if (!counts) return;
    begin_ = seen_ ? std::min(begin_, e.start) : e.start;
    end_ = seen_ ? std::max(end_, e.end) : e.end;
    seen_ = true;
    if (e.instruction->kind == Kind::Kernel) kernels_ += e.end - e.start;
  }
  void flow(RankId, RankId, Bytes, const Route&, Ps, Ps) override {}
  bool progress(double) override { return true; }

  double span_s() const { return to_seconds(end_ - begin_).value; }
  bool seen() const { return seen_; }
  double kernels_s() const { return to_seconds(kernels_).value; }

 private:
  const Plan& plan_;
  std::string name_;
  bool seen_ = false;
  Ps begin_ = 0, end_ = 0, kernels_ = 0;
};

struct Timed {
  double time_s = 0, kernels_s = 0;
  double samples = 1;  // of an iteration
};

// Why a row's job gives no figure: the row is wrong, in the words of what refused it.
[[noreturn]] void refuse(const SpeedupRow& row, const char* where, const std::string& why,
                         const std::string& fix) {
  throw InputError(row.id, where, "", "gives no time: " + why, fix);
}

Scenario scenario_of(const SpeedupRow& row, const std::vector<std::string>& sets) {
  try {
    return parse_scenario(row.scenario, row.id, sets, {data_directory() / "scenarios"});
  } catch (const InputError& e) {
    if (e.file == row.id) throw;
    refuse(row, "", e.what(), "correct the row's variant or free");
  }
}

Timed simulate(const SpeedupRow& row, const std::vector<std::string>& sets) {
  const Scenario scenario = scenario_of(row, sets);
  if (row.operation.empty()) {
    const RunOutcome outcome = run(scenario, {});
    if (const auto* no = std::get_if<Infeasible>(&outcome)) {
      refuse(row, "/scenario", no->reason, no->fix.empty() ? "choose a smaller job" : no->fix);
    }
    const auto* result = std::get_if<RunResult>(&outcome);
    if (result == nullptr)
      refuse(row, "/scenario", "it does not end", "explain it with gputwin run");
    return {to_seconds(result->execution.iteration).value, 0.0,
            static_cast<double>(scenario.job.global_batch)};
  }
  const Topology topology(scenario.cluster);
  const HardwareModel costs(topology, scenario.job, data_directory() / "hwmodels");
  Outcome<PreparedRun> prepared = prepare(scenario, costs, topology);
  if (const auto* no = std::get_if<Infeasible>(&prepared)) {
    refuse(row, "/scenario", no->reason, no->fix.empty() ? "choose a smaller job" : no->fix);
  }
  const Plan& plan = std::get<PreparedRun>(prepared).plan;
  Operation operation(plan, row.operation);
  SimgridExecutor().run(plan, costs, topology, {}, &operation);
  if (!operation.seen()) {
    refuse(row, "/operation", "no task of the first layer starts with " + row.operation,
           "name one of a trace, such as fc1, fc2, qkv or proj");
  }
  return {operation.span_s(), operation.kernels_s()};
}

// Rows of a set are held against the same job.
void check_set(const std::string& file, const std::string& at, const SpeedupRow& first,
               const SpeedupRow& row) {
  const auto job = [](const SpeedupRow& r) {
    Json scenario = Json::parse(r.scenario);
    scenario.erase("name");
    return std::pair(scenario, r.operation);
  };
  if (job(first) == job(row)) return;
  throw InputError(file, at + "/scenario", "", "is another job than that of " + first.id,
                   "give rows of one set the same scenario and operation, or other sets");
}

}  // namespace

std::vector<SpeedupRow> read_speedups(const std::filesystem::path& file) {
  const Json document = parse_json(read_text_file(file), file.string());
  const bool wrapped = document.is_object() && document.contains("rows");
  if (!wrapped || !document["rows"].is_array()) {
    throw InputError(file.string(), "/rows", "", "is no array",
                     "see validation/speedups/README.md");
  }
  for (const auto& [key, value] : document.items()) {
    if (key != "rows" && (key != "defaults" || !value.is_object())) {
      throw InputError(file.string(), "/" + key, "", "is not known here, or no object",
                       "see validation/speedups/README.md");
    }
  }
  const Json defaults = document.value("defaults", Json::object());
  std::vector<SpeedupRow> rows;
  std::set<std::string> seen;
  std::map<std::pair<std::string, std::string>, std::size_t> first_of_set;
  for (std::size_t i = 0; i < document["rows"].size(); ++i) {
    const std::string at = "/rows/" + std::to_string(i);
    rows.push_back(RowReader(file.string(), at, document["rows"][i]).read(defaults));
    if (!seen.insert(rows.back().id).second) {
      throw InputError(file.string(), at + "/id", rows.back().id, "names an earlier row too",
                       "give every row its own id");
    }
    const auto set = std::pair(rows.back().group, rows.back().set);
    check_set(file.string(), at, rows[first_of_set.emplace(set, i).first->second], rows.back());
  }
  return rows;
}

std::vector<ScoredSpeedup> score_speedups(const std::vector<SpeedupRow>& rows,
                                          const std::function<bool(double)>& progress) {
  std::vector<ScoredSpeedup> scored;
  std::map<std::pair<std::string, std::string>, Timed> plain_of_set;
  for (const SpeedupRow& row : rows) {
    if (!progress(static_cast<double>(scored.size()) / static_cast<double>(rows.size()))) break;
    const auto set = std::pair(row.group, row.set);
    if (!plain_of_set.contains(set)) plain_of_set[set] = simulate(row, {});
    const Timed plain = plain_of_set[set];
    const Timed variant = simulate(row, row.variant);
    SpeedupTimes times{plain.time_s, variant.time_s, plain.kernels_s,
                       variant.samples / plain.samples};
    if (row.hidden && times.samples_ratio != 1) {
      refuse(row, "/variant", "it has another batch, of which no share is hidden",
             "give it the batch of the scenario, or leave hidden out");
    }
    if (row.operation.empty()) {
      times.free_s = row.free.empty() ? times.plain_s : simulate(row, row.free).time_s;
    }
    scored.push_back({row, times});
  }
  return scored;
}

}  // namespace gputwin
