// gputwin compare: two runs of one job side by side; gputwin replay: how much of a profile its
// dependencies explain.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/app/comparison_report.h"
#include "sim/app/data_directory.h"
#include "sim/app/report.h"
#include "sim/app/run.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "sim/trace/chrome_export.h"
#include "sim/trace/chrome_import.h"
#include "sim/trace/gtr_file.h"
#include "sim/trace/replay.h"
#include "sim/trace/run_comparison.h"

namespace gputwin::cli {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string a, b, out;
  double max_error = std::numeric_limits<double>::infinity();  // %
  bool json = false;
};

bool is_trace(const std::string& name) {
  return name.ends_with(".gtr") || name.ends_with(".json.gz") || name.ends_with(".pt.trace.json");
}

/// A scratch file that is gone when this is.
struct Scratch {
  fs::path path =
      fs::temp_directory_path() / fmt::format("gputwin_compare_{}_{}.gtr", ::getpid(), next++);
  ~Scratch() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  static inline int next = 0;
};

Store simulated(const std::string& name) {
  const Scenario scenario = load_scenario(name, {}, {data_directory() / "scenarios"});
  const Scratch scratch;
  RunRequest request;
  request.trace = scratch.path;
  if (scenario.layout.ranks() <= 64) request.options.fold = Fold::Off;  // ranks are compared
  const RunOutcome outcome = run(scenario, request);
  if (const auto* no = std::get_if<Infeasible>(&outcome)) {
    throw InputError(name, "", "", "cannot be simulated: " + no->reason, no->fix);
  }
  if (!std::holds_alternative<RunResult>(outcome)) {
    throw InputError(name, "", "", "was not simulated to its end", "gputwin run " + name);
  }
  return open_trace(scratch.path);
}

/// A trace, or the timeline of a scenario, simulated now. A .json may be either: a scenario has a
/// model.
Store run_of(const std::string& name) {
  if (is_trace(name)) return open_trace(name);
  if (fs::path(name).extension() == ".json" && fs::exists(name)) {
    try {
      return open_trace(name);
    } catch (const InputError&) {
      return simulated(name);
    }
  }
  return simulated(name);
}

int compare(const Options& o) {
  const Store a = run_of(o.a), b = run_of(o.b);
  const RunComparison c = compare_runs(a, b);
  if (c.ranks.empty()) {
    throw InputError(o.b, "", "", "has no work to set against that of " + o.a,
                     "compare timelines of devices: kernels, collectives, copies");
  }
  if (!o.out.empty()) {
    const fs::path folder = o.out;
    write_file(folder / "comparison.json", comparison_json(c, o.a, o.b));
    write_file(folder / "comparison.html", comparison_page(c, o.a, o.b));
    const Store both = joint_store(a, b);
    write_gtr(both, folder / "both.gtr");
    write_chrome(both, folder / "both.json.gz");
  }
  fmt::print("{}", o.json ? comparison_json(c, o.a, o.b) : comparison_report(c, o.a, o.b));
  if (!o.out.empty() && !o.json) {
    fmt::print(
        "\n  {0}/comparison.html, {0}/comparison.json, {0}/both.gtr and .json.gz (both as one "
        "timeline)\n",
        o.out);
  }
  return kDone;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A file, what it unpacks to (0: it holds no text), and how long reading took.
struct Size {
  std::uintmax_t file, text;
  double seconds;
  double per_100_MB() const { return seconds * 1e8 / static_cast<double>(text > 0 ? text : file); }
};

nlohmann::ordered_json replay_json(const ReplayCheck& c, const Store& store, const Size& size) {
  const auto seconds = [](Ps time) { return to_seconds(time).value; };
  nlohmann::ordered_json gaps;
  for (std::size_t k = 0; k < kBefores; ++k) {
    const auto before = static_cast<Before>(k);
    if (c.gaps[k].count == 0 || before == Before::Host) continue;
    gaps.push_back({{"after", label(before)},
                    {"count", c.gaps[k].count},
                    {"median_s", seconds(c.gaps[k].median)}});
  }
  return {{"measured_s", seconds(c.exact.measured)},
          {"replayed_s", seconds(c.replayed)},
          {"error", c.error()},
          {"host_s", seconds(c.host)},
          {"own_gaps_replayed_s", seconds(c.exact.replayed)},
          {"own_gaps_error", c.exact.error()},
          {"gpu", c.exact.gpu},
          {"launched", c.exact.launched},
          {"without_launch", c.exact.gpu - c.exact.launched},
          {"calls", c.exact.calls},
          {"waits", c.exact.waits},
          {"waits_unresolved", c.exact.unresolved},
          {"waits_unrecorded", c.exact.unrecorded},
          {"contradicted", c.exact.contradicted},
          {"unexplained", c.unexplained},
          {"unexplained_s", seconds(c.unexplained_time)},
          {"unexplained_longest", c.example == kNoSlice
                                      ? nlohmann::ordered_json()
                                      : nlohmann::ordered_json{{"name", store.name(c.example)},
                                                               {"late_s", seconds(c.longest)}}},
          {"gpu_start_moved_p50_s", seconds(c.moved_p50)},
          {"gpu_start_moved_p95_s", seconds(c.moved_p95)},
          {"overlapping_s", seconds(c.exact.overlapping)},
          {"gaps", gaps},
          {"file_bytes", size.file},
          {"text_bytes", size.text},
          {"import_s", size.seconds},
          {"import_s_per_100_MB", size.per_100_MB()},
          {"warnings", store.warnings}};
}

void print_replay(const std::string& name, const ReplayCheck& c, const Store& store) {
  const auto time = [](Ps t) { return human_time(to_seconds(t).value); };
  fmt::print("{}\n  measured {:.6f} s, replayed with typical gaps {:.6f} s: {:+.3f} %\n", name,
             to_seconds(c.exact.measured).value, to_seconds(c.replayed).value, 100 * c.error());
  fmt::print(
      "  {} of it is the host's own work, taken as measured; GPU work begins {} off in the "
      "median, {} at p95\n",
      time(c.host), time(c.moved_p50), time(c.moved_p95));
  fmt::print("  with its own gaps {:+.3f} %: by construction, it says only that no time is lost\n",
             100 * c.exact.error());
  fmt::print("  {} kernels and copies, {} without their launch; {} calls of the host\n",
             c.exact.gpu, c.exact.gpu - c.exact.launched, c.exact.calls);
  fmt::print(
      "  {} waits for events; {} name streams or calls without work here, {} were not recorded; {} "
      "dependencies left out as the times contradict them\n",
      c.exact.waits, c.exact.unresolved, c.exact.unrecorded, c.exact.contradicted);
  if (c.unexplained > 0) {
    fmt::print(
        "  {} kernels and copies wait for something unknown, {} in all; the longest {}, {}\n",
        c.unexplained, time(c.unexplained_time), time(c.longest),
        store.name(c.example).substr(0, 60));
  }
  for (std::size_t k = 0; k < kBefores; ++k) {
    const auto before = static_cast<Before>(k);
    if (c.gaps[k].count == 0 || before == Before::Host) continue;
    fmt::print("  typical gap after {:<42} {:>10} ({} times)\n", label(before),
               time(c.gaps[k].median), c.gaps[k].count);
  }
}

void print_size(const Size& size) {
  const auto mega = [](std::uintmax_t bytes) { return 1e-6 * static_cast<double>(bytes); };
  if (size.text > 0) {
    fmt::print(
        "  {:.2f} MB of text ({:.2f} MB on disk) read in {:.3f} s: {:.2f} s per 100 MB of text\n",
        mega(size.text), mega(size.file), size.seconds, size.per_100_MB());
  } else {
    fmt::print("  {:.2f} MB read in {:.3f} s: {:.2f} s per 100 MB\n", mega(size.file), size.seconds,
               size.per_100_MB());
  }
}

int replay_trace(const Options& o) {
  const auto start = std::chrono::steady_clock::now();
  const Store store = open_trace(o.a);
  const double import_s = seconds_since(start);
  const ReplayCheck check = check_replay(store);
  const Size size{fs::file_size(o.a), store.text_bytes, import_s};
  if (o.json) {
    fmt::print("{}\n", replay_json(check, store, size).dump(2));
  } else {
    print_replay(o.a, check, store);
    print_size(size);
    for (const std::string& warning : store.warnings) fmt::print("  {}\n", warning);
  }
  const double unexplained = to_seconds(check.unexplained_time).value;
  const double share = unexplained / to_seconds(std::max<Ps>(1, check.exact.measured)).value;
  return 100 * std::max(std::abs(check.error()), share) > o.max_error ? kBoundBreached : kDone;
}

}  // namespace

Action add_compare(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "compare", "Two runs of one job, predicted or measured: where and why they differ");
  command->footer(
      "Example: gputwin compare gpt3_6_7b__a100_2x8__tp2_pp2_dp4_straggler measured.json.gz --out "
      "out/difference\n"
      "A run is a trace (.gtr, Chrome's or PyTorch's JSON, plain or gzip) or a scenario, which is "
      "simulated first. Work is aligned by rank, phase, micro-batch, layer, operation and "
      "occurrence. Exit codes: 0 done, 2 bad input.");
  auto o = std::make_shared<Options>();
  command->add_option("a", o->a, "The prediction, or the earlier run")->required();
  command->add_option("b", o->b, "The measurement, or the later run")->required();
  command->add_option("--out", o->out, "Folder for a page, the figures and a joint timeline");
  command->add_flag("--json", o->json, "Print the figures as JSON");
  return [o] { return compare(*o); };
}

Action add_replay(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "replay", "Replay a profile from its durations: how much of its waiting is understood");
  command->footer(
      "Example: gputwin replay rank0.pt.trace.json.gz\n"
      "Work begins after its stream's last, its launch and recorded events, with the gaps that are "
      "typical (the median of their kind in this trace); the host's own work between calls is "
      "taken "
      "as measured. What is off by then was waiting whose cause the trace does not tell. Exit "
      "codes: "
      "0 done, 1 beyond --max-error, 2 bad input.");
  auto o = std::make_shared<Options>();
  command->add_option("trace", o->a, "A profile of PyTorch (Kineto), plain or gzip, or a .gtr")
      ->required();
  command
      ->add_option("--max-error", o->max_error,
                   "Exit 1 if the replay is off by more, or more of the time is unexplained, in %")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", o->json, "Print the figures as JSON");
  return [o] { return replay_trace(*o); };
}

}  // namespace gputwin::cli
