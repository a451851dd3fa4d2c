// gputwin validate convergence: trains a small GPT for real, its exchanges compressed.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>

#include "sim/app/terminal_progress.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "validation/convergence/report.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::vector<std::string> codecs;
  std::string out;
  std::int64_t steps = 0, sequences = 0;
  std::int32_t seeds = 0;
  double time_limit = 3600;
  bool brief = false, json = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

convergence::Experiment experiment_of(const Options& o) {
  convergence::Experiment e = o.brief ? convergence::short_experiment() : convergence::Experiment{};
  if (o.steps > 0) {
    e.steps = o.steps;
    e.plain_steps = o.steps / 10;
  }
  if (o.seeds > 0) e.seeds = o.seeds;
  if (o.sequences > 0) e.sequences = o.sequences;
  if (o.codecs.empty()) return e;
  std::string known;
  for (const convergence::NamedCodec& c : e.codecs) known += (known.empty() ? "" : ", ") + c.name;
  std::vector<convergence::NamedCodec> chosen{e.codecs.front()};
  for (const std::string& name : o.codecs) {
    const auto at = std::find_if(e.codecs.begin(), e.codecs.end(),
                                 [&](const auto& c) { return c.name == name; });
    if (at == e.codecs.end()) {
      throw InputError("--codec", "", name, "is not compared", "one of: " + known);
    }
    if (at != e.codecs.begin()) chosen.push_back(*at);
  }
  e.codecs = std::move(chosen);
  return e;
}

int validate_convergence(const Options& o) {
  const convergence::Experiment e = experiment_of(o);
  std::signal(SIGINT, on_interrupt);
  const auto start = std::chrono::steady_clock::now();
  const auto late = [&] {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    return taken.count() > o.time_limit;
  };
  const double runs = static_cast<double>(e.codecs.size()) * e.seeds;
  TerminalProgress progress(fmt::format("training {:.0f} times", runs), stderr,
                            [] { return interrupted != 0; });
  const std::vector<convergence::Curve> curves =
      convergence::run_experiment(e, [&](const std::vector<convergence::Curve>& done) {
        return progress.progress(static_cast<double>(done.size()) / runs) && !late();
      });
  const bool complete = static_cast<double>(curves.size()) == runs;
  if (!o.out.empty() && !curves.empty()) {
    std::filesystem::create_directories(o.out);
    write_file(std::filesystem::path(o.out) / "convergence.json", convergence_json(e, curves));
    write_file(std::filesystem::path(o.out) / "convergence.svg", convergence_svg(e, curves));
  }
  if (!curves.empty()) {
    fmt::print("{}", o.json ? convergence_json(e, curves) : convergence_table(e, curves));
  }
  if (complete) return kDone;
  fmt::print(stderr, "gputwin: stopped after {} of {:.0f} runs\n", curves.size(), runs);
  return kBoundBreached;
}

}  // namespace

Action add_validate_convergence(CLI::App& validate) {
  CLI::App* command = validate.add_subcommand(
      "convergence", "Train a small GPT with compressed tensor-parallel exchanges");
  command->footer(
      "Example: gputwin validate convergence --short --codec int4 --codec \"topk 0.1 x pwq8\"\n"
      "Trains on two ranks (threads) with each codec and seed; losses are comparable within a "
      "machine. Exit codes: 0 done, 1 cancelled or out of time (complete runs are reported), 2 "
      "bad input.");
  auto o = std::make_shared<Options>();
  command->add_flag("--short", o->brief, "A narrower model, fewer steps, one seed: about a minute");
  command->add_flag("--json", o->json, "Print figures and curves as JSON");
  command->add_option("--out", o->out, "Folder for convergence.json and convergence.svg");
  command->add_option("--codec", o->codecs, "Only this codec, and none; repeatable");
  command->add_option("--steps", o->steps, "Steps of each run")->check(CLI::Range(10, 1000000));
  command->add_option("--sequences", o->sequences, "Sequences in a step")
      ->check(CLI::Range(1, 1024));
  command->add_option("--seeds", o->seeds, "Runs of each codec")->check(CLI::Range(1, 100));
  command->add_option("--time-limit", o->time_limit, "Seconds after which no further run starts")
      ->check(CLI::PositiveNumber);
  return [o] { return validate_convergence(*o); };
}

}  // namespace gputwin::cli
