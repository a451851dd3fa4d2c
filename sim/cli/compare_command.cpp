// gputwin compare: two runs of one job side by side; gputwin replay: an import run again.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sim/app/comparison_report.h"
#include "sim/app/data_directory.h"
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

int replay_trace(const Options& o) {
  const auto start = std::chrono::steady_clock::now();
  const Store store = open_trace(o.a);
  const double import_s = seconds_since(start);
  const Replay r = replay(store);
  const double file_MB = static_cast<double>(fs::file_size(o.a)) * 1e-6;
  const double text_MB =
      store.text_bytes > 0 ? static_cast<double>(store.text_bytes) * 1e-6 : file_MB;
  const double measured = to_seconds(r.measured).value, again = to_seconds(r.replayed).value;
  if (o.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"measured_s", measured},
                                              {"replayed_s", again},
                                              {"error", r.error()},
                                              {"explained_s", to_seconds(r.explained).value},
                                              {"explained_error", r.explained_error()},
                                              {"gpu", r.gpu},
                                              {"calls", r.calls},
                                              {"launched", r.launched},
                                              {"waits", r.waits},
                                              {"contradicted", r.contradicted},
                                              {"overlapping_s", to_seconds(r.overlapping).value},
                                              {"late", r.late},
                                              {"late_by_s", to_seconds(r.late_by).value},
                                              {"file_MB", file_MB},
                                              {"text_MB", text_MB},
                                              {"import_s", import_s}}
                           .dump(2));
    return kDone;
  }
  fmt::print(
      "{}\n  measured {:.6f} s, replayed with its own durations and gaps {:.6f} s: {:+.3f} %\n",
      o.a, measured, again, 100 * r.error());
  fmt::print(
      "  with typical gaps on the GPU {:.6f} s: {:+.3f} %; {} pieces of work began 10 us or "
      "more after what they depend on, {:.6f} s in all\n",
      to_seconds(r.explained).value, 100 * r.explained_error(), r.late,
      to_seconds(r.late_by).value);
  fmt::print(
      "  {} kernels and copies, {} with their launch; {} calls of the host; {} waits for "
      "events; {} dependencies left out as the times contradict them\n",
      r.gpu, r.launched, r.calls, r.waits, r.contradicted);
  fmt::print("  {:.1f} MB, {:.1f} MB unpacked, read in {:.2f} s ({:.2f} s per 100 MB unpacked)\n",
             file_MB, text_MB, import_s, 100 * import_s / text_MB);
  for (const std::string& warning : store.warnings) fmt::print("  {}\n", warning);
  return kDone;
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
      "replay", "Replay a profile from its own durations: do its dependencies explain its time?");
  command->footer(
      "Example: gputwin replay rank0.pt.trace.json.gz\n"
      "With its own gaps the time comes back by construction. With typical gaps (medians of this "
      "trace) on the GPU it does where the recorded dependencies explain when work began: a lost "
      "one makes it shorter. Exit codes: 0 done, 2 bad input.");
  auto o = std::make_shared<Options>();
  command->add_option("trace", o->a, "A profile of PyTorch (Kineto), plain or gzip, or a .gtr")
      ->required();
  command->add_flag("--json", o->json, "Print the figures as JSON");
  return [o] { return replay_trace(*o); };
}

}  // namespace gputwin::cli
