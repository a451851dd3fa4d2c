// gputwin twin: predictions kept before runs, runs held against them, alerts.
#include <fmt/format.h>

#include "sim/app/data_directory.h"
#include "sim/app/report.h"
#include "sim/app/scenario.h"
#include "sim/app/twin.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"

namespace gputwin::cli {
namespace {

using Json = Twin::Json;

struct Options {
  std::string folder, scenario, file, prediction;
  std::vector<std::string> sets;
  bool learn = false, json = false;
};

void print_prediction(const Json& line) {
  fmt::print("  {:<4} {}  predicted {:>10}   80 % interval {} to {}{}\n",
             line["id"].get<std::string>(), line["at"].get<std::string>(),
             human_time(line["iteration_s"]), human_time(line["interval_s"][0]),
             human_time(line["interval_s"][1]),
             line["factors"].empty() ? "" : "   with what was learned");
}

void print_observation(const Json& line, bool whole) {
  fmt::print("  {:<4} {}  {} {:>10}   of {}: predicted is {:+.1f} % off, {} iterations\n",
             line["id"].get<std::string>(), line["at"].get<std::string>(),
             line["kind"] == "log" ? "log      " : "trace    ", human_time(line["iteration_s"]),
             line["prediction"].get<std::string>(), 100 * line["error"].get<double>(),
             line["iterations"].get<std::size_t>());
  for (const Json& alert : line["alerts"]) fmt::print("       ! {}\n", alert.get<std::string>());
  if (!whole || !line.contains("explanation")) return;
  for (const Json& sentence : line["explanation"]) {
    fmt::print("         {}\n", sentence.get<std::string>());
  }
}

void print_line(const Json& line, bool whole) {
  const std::string event = line.value("event", "");
  if (event == "prediction") print_prediction(line);
  if (event == "observation") print_observation(line, whole);
}

int init(const Options& o) {
  const Scenario scenario = load_scenario(o.scenario, o.sets, {data_directory() / "scenarios"});
  const Json line = Twin::init(o.folder, scenario);
  if (o.json) {
    fmt::print("{}\n", line.dump(2));
    return kDone;
  }
  fmt::print("{0}: twin of {1}; next: gputwin twin predict {0}\n", o.folder, scenario.name);
  return kDone;
}

int say(const Options& o, const Json& line) {
  if (o.json) {
    fmt::print("{}\n", line.dump(2));
  } else {
    print_line(line, true);
  }
  const bool alarm = line.contains("alerts") && !line["alerts"].empty();
  return alarm ? kBoundBreached : kDone;
}

int status(const Options& o) {
  const Twin twin(o.folder);
  const std::vector<std::string> alerts = twin.standing_alerts();
  const int exit = alerts.empty() ? kDone : kBoundBreached;
  if (o.json) {
    fmt::print("{}\n", Json(twin.history()).dump(2));
    return exit;
  }
  const Json& first = twin.history().front();
  fmt::print("{}: twin of {} since {}\n", o.folder, first["job"].get<std::string>(),
             first["at"].get<std::string>());
  for (const Json& line : twin.history()) print_line(line, false);
  for (const std::string& alert : alerts) fmt::print("  stands: {}\n", alert);
  return exit;
}

}  // namespace

Action add_twin(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "twin", "One cluster over time: predict before runs, observe them, see drift");
  command->require_subcommand(1);
  command->footer(
      "Example: gputwin twin init out/twin llama3_8b__h100_4x8__tp2_pp1_dp4_cp4 && gputwin twin "
      "predict out/twin\n"
      "         gputwin twin observe out/twin rank0.pt.trace.json.gz --learn && gputwin twin "
      "status out/twin\n"
      "The folder holds plain files (sim/app/twin.h). An alert stands until a later run shows "
      "otherwise. Exit codes: 0 done, 1 an alert was raised (observe) or stands (status), 2 bad "
      "input.");
  auto o = std::make_shared<Options>();
  const auto sub = [&](const char* name, const char* what) {
    CLI::App* c = command->add_subcommand(name, what);
    c->add_option("folder", o->folder, "Folder of the twin")->required();
    return c;
  };
  CLI::App* start = sub("init", "Make the folder for a cluster and its job");
  start->add_option("scenario", o->scenario, "Scenario file, or a shipped run")->required();
  start->add_option("--set", o->sets, "Override path=value; repeatable");
  start->add_flag("--json", o->json, "Print the line of the history as JSON");
  CLI::App* predict = sub("predict", "Predict the next run, and keep it");
  predict->add_option("--set", o->sets, "Override path=value for this run; repeatable");
  predict->add_flag("--json", o->json, "Print the line of the history as JSON");
  CLI::App* observe = sub("observe", "Hold a run against its prediction");
  observe
      ->add_option(
          "file", o->file,
          "A trace (.gtr, .json, .json.gz), or a log of Megatron-LM, torchtitan or DeepSpeed")
      ->required();
  observe->add_option("--prediction", o->prediction, "Which one, as p3; default: the latest");
  observe->add_flag("--learn", o->learn,
                    "Later predictions use the factors by which this trace's kernels and "
                    "collectives differ");
  observe->add_flag("--json", o->json, "Print the line of the history as JSON");
  CLI::App* list = sub("status", "What was predicted, what was seen, and alerts");
  list->add_flag("--json", o->json, "Print the history as JSON");
  return [o, start, predict, observe] {
    if (start->parsed()) return init(*o);
    if (predict->parsed()) return say(*o, Twin(o->folder).predict(o->sets));
    if (observe->parsed())
      return say(*o, Twin(o->folder).observe(o->file, o->prediction, o->learn));
    return status(*o);
  };
}

}  // namespace gputwin::cli
