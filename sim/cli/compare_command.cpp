// gputwin compare: two runs, simulated or recorded, and what explains their difference.
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "sim/app/data_directory.h"
#include "sim/app/report.h"
#include "sim/app/run.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "sim/trace/chrome_export.h"
#include "sim/trace/chrome_import.h"
#include "sim/trace/replay.h"
#include "sim/trace/run_comparison.h"

namespace gputwin::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  std::string a, b, out;
  bool json = false, replay = false;
};

bool is_trace(const std::string& name) {
  return name.ends_with(".gtr") || name.ends_with(".json.gz") || name.ends_with(".json");
}

/// A trace within the folder of a result.
fs::path trace_in(const fs::path& folder) {
  for (const char* name : {"trace.gtr", "trace.json.gz", "trace.json"}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  throw InputError(folder.string(), "", "", "holds no trace",
                   "give a folder with trace.gtr, trace.json.gz or trace.json, as gputwin run "
                   "--trace DIR/trace.gtr writes");
}

/// A scenario is simulated; its timeline passes through a file that is removed at once.
Store simulated(const std::string& name) {
  const Scenario scenario = load_scenario(name, {}, {data_directory() / "scenarios"});
  struct Scratch {
    fs::path path =
        fs::temp_directory_path() / ("gputwin_compare_" + std::to_string(::getpid()) + ".gtr");
    ~Scratch() {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  } scratch;
  RunRequest request;
  request.trace = scratch.path;
  const RunOutcome outcome = run(scenario, request);
  if (const auto* no = std::get_if<Infeasible>(&outcome)) {
    throw InputError(name, "", "", "cannot run: " + no->reason, "see gputwin run " + name);
  }
  if (!std::holds_alternative<RunResult>(outcome)) {
    throw InputError(name, "", "", "does not end: its ranks wait for each other",
                     "see gputwin run " + name);
  }
  Store store = open_trace(scratch.path);
  store.title = scenario.name;
  return store;
}

bool is_scenario(const fs::path& path) {
  if (path.extension() != ".json" || fs::file_size(path) > (1u << 20)) return false;
  std::string text;
  if (std::FILE* const in = std::fopen(path.c_str(), "rb")) {
    text.resize(fs::file_size(path));
    text.resize(std::fread(text.data(), 1, text.size(), in));
    std::fclose(in);
  }
  const Json json = Json::parse(text, nullptr, false);
  return json.is_object() && json.contains("model") && json.contains("layout");
}

Store opened(const std::string& name) {
  if (fs::is_directory(name)) return open_trace(trace_in(name));
  if (fs::exists(name) && !is_scenario(name)) return open_trace(name);
  if (is_trace(name) && !fs::exists(name)) {
    throw InputError(name, "", "", "is no file", "name a trace, a result folder or a run");
  }
  return simulated(name);
}

std::string signed_time(double s) { return (s < 0 ? "-" : "+") + human_time(std::abs(s)); }

std::vector<std::string> explanation(const RunComparison& c) {
  std::vector<std::string> out;
  const double delta = c.iteration_b - c.iteration_a;
  out.push_back(fmt::format("B takes {}, {} ({:+.1f} %) against A.", human_time(c.iteration_b),
                            signed_time(delta),
                            c.iteration_a > 0 ? 100 * delta / c.iteration_a : 0.0));
  std::vector<std::size_t> order(kTimeParts);
  double sizes = 0;
  for (std::size_t p = 0; p < kTimeParts; ++p) {
    order[p] = p;
    sizes += std::abs(c.b[p] - c.a[p]);
  }
  const auto size = [&c](std::size_t p) { return std::abs(c.b[p] - c.a[p]); };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t x, std::size_t y) { return size(x) > size(y); });
  for (const std::size_t p : order) {
    if (sizes <= 0 || size(p) < 0.05 * sizes) break;
    out.push_back(fmt::format("{} changes by {}: {} to {}.", label(static_cast<TimePart>(p)),
                              signed_time(c.b[p] - c.a[p]), human_time(c.a[p]),
                              human_time(c.b[p])));
  }
  for (const std::size_t r : c.stragglers_b) {
    out.push_back(fmt::format("Rank {} is a straggler in B: its operations take {}.",
                              c.ranks[r].rank, human_time(c.ranks[r].busy_b)));
  }
  return out;
}

Json unmatched_json(const std::vector<Unmatched>& rows) {
  Json out = Json::array();
  for (const Unmatched& u : rows) {
    out.push_back({{"op", u.op}, {"phase", u.phase}, {"count", u.count}, {"time_s", u.time_s}});
  }
  return out;
}

Json to_json(const RunComparison& c) {
  Json out{{"iteration_a_s", c.iteration_a}, {"iteration_b_s", c.iteration_b}};
  for (std::size_t p = 0; p < kTimeParts; ++p) {
    out["waterfall"].push_back(
        {{"part", label(static_cast<TimePart>(p))}, {"a_s", c.a[p]}, {"b_s", c.b[p]}});
  }
  out["kinds"] = Json::array();
  for (const KindErrors& k : c.kinds) {
    out["kinds"].push_back({{"kind", label(k.kind)},
                            {"pairs", k.pairs},
                            {"a_s", k.time_a},
                            {"b_s", k.time_b},
                            {"mean", k.mean},
                            {"mean_absolute", k.absolute},
                            {"p50", k.median},
                            {"p95", k.p95}});
  }
  out["explanation"] = explanation(c);
  out["only_a"] = unmatched_json(c.only_a);
  out["only_b"] = unmatched_json(c.only_b);
  out["pairs"] = c.pairs;
  return out;
}

void print_unmatched(const char* which, const std::vector<Unmatched>& rows) {
  constexpr std::size_t kShown = 8;
  if (rows.empty()) return;
  fmt::print("\n{} operations stand in {} alone\n", rows.size(), which);
  for (std::size_t i = 0; i < std::min(kShown, rows.size()); ++i) {
    fmt::print("  {:<60.60} {:>8} {:>12}\n", rows[i].op, rows[i].count, human_time(rows[i].time_s));
  }
  if (rows.size() > kShown) fmt::print("  and {} more\n", rows.size() - kShown);
}

void print_table(const RunComparison& c) {
  for (const std::string& sentence : explanation(c)) fmt::print("{}\n", sentence);
  fmt::print("\n{:<32}{:>12}{:>12}{:>12}\n", "per iteration, mean of ranks", "A", "B", "B - A");
  for (std::size_t p = 0; p < kTimeParts; ++p) {
    if (c.a[p] == 0 && c.b[p] == 0) continue;
    fmt::print("  {:<30}{:>12}{:>12}{:>12}\n", label(static_cast<TimePart>(p)), human_time(c.a[p]),
               human_time(c.b[p]), signed_time(c.b[p] - c.a[p]));
  }
  fmt::print("\n{:<24}{:>9}{:>10}{:>10}{:>10}{:>10}   of A / B - 1\n", "operations", "pairs",
             "mean", "|mean|", "p50", "p95");
  for (const KindErrors& k : c.kinds) {
    fmt::print("  {:<22}{:>9}{:>8.1f} %{:>8.1f} %{:>8.1f} %{:>8.1f} %\n", label(k.kind), k.pairs,
               100 * k.mean, 100 * k.absolute, 100 * k.median, 100 * k.p95);
  }
  if (c.wait_is_bound) fmt::print("Waiting is an upper bound: no flow links the communications.\n");
  print_unmatched("A", c.only_a);
  print_unmatched("B", c.only_b);
}

Json replayed(const std::string& name, const Store& store) {
  const Replay r = replay(store);
  return {{"trace", name},
          {"measured_s", static_cast<double>(r.measured) * 1e-12},
          {"replayed_s", static_cast<double>(r.replayed) * 1e-12},
          {"error", r.error()},
          {"gpu_slices", r.gpu},
          {"contradicted", r.contradicted}};
}

int compare_and_print(const Options& o) {
  const Store a = opened(o.a);
  const Store b = opened(o.b);
  const RunComparison found = compare_runs(a, b);
  Json json = to_json(found);
  if (o.replay) json["replay"] = {replayed(o.a, a), replayed(o.b, b)};
  if (!o.out.empty()) {
    write_chrome(joint_store(a, b), fs::path(o.out) / "joint.json.gz");
    AtomicFile file(fs::path(o.out) / "comparison.json");
    file.write(json.dump(2) + "\n");
    file.commit();
  }
  if (o.json) {
    fmt::print("{}\n", json.dump(2));
    return kDone;
  }
  print_table(found);
  if (!o.replay) return kDone;
  fmt::print("\nreplayed from their own durations\n");
  for (const Json& row : json["replay"]) {
    fmt::print("  {:<40} {} measured, {} replayed, {:+.3f} %\n", row["trace"].get<std::string>(),
               human_time(row["measured_s"]), human_time(row["replayed_s"]),
               100 * row["error"].get<double>());
  }
  return kDone;
}

}  // namespace

Action add_compare(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("compare", "Two runs or traces: what explains their difference");
  command->footer(
      "Example: gputwin compare gpt3_6_7b__a100_2x8__tp2_pp2_dp4_straggler out/run1 --out out/cmp\n"
      "A is usually the prediction, B the measurement. Each is a scenario or shipped run (it is\n"
      "simulated), a .gtr file, a folder with one, or a trace of Perfetto or PyTorch's profiler\n"
      "(.json, .json.gz). Exit codes: 0 done, 2 bad input.");
  auto o = std::make_shared<Options>();
  command->add_option("A", o->a, "Run or trace")->required();
  command->add_option("B", o->b, "Run or trace against it")->required();
  command->add_option("--out", o->out, "Folder for comparison.json and joint.json.gz, both runs");
  command->add_flag("--replay", o->replay,
                    "Also replay each from its own durations: a check of the import");
  command->add_flag("--json", o->json, "Print JSON");
  return [o] { return compare_and_print(*o); };
}

}  // namespace gputwin::cli
