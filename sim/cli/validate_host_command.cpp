// gputwin validate host: predicts plans for this computer, runs them, and says how wrong it was.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>

#include "sim/app/terminal_progress.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "validation/probes/host_validation.h"

namespace gputwin::cli {
namespace {

struct Options {
  probes::ValidationOptions of;
  double max_error = 0;
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;

void on_interrupt(int) { interrupted = 1; }

int validate_host(Options o) {
  if (std::filesystem::path(o.of.device).extension() == ".json") {
    o.of.device = std::filesystem::absolute(o.of.device).string();
  }
  std::signal(SIGINT, on_interrupt);
  TerminalProgress bar("running plans", stderr, [] { return interrupted != 0; });
  const probes::HostValidation v =
      probes::validate_host(o.of, [&](double share) { return bar.progress(share); });
  fmt::print("{}", o.json ? probes::validation_json(v) : probes::validation_table(v));
  if (interrupted != 0) return kBoundBreached;
  return o.max_error > 0 && v.worst_error > o.max_error ? kBoundBreached : kDone;
}

}  // namespace

Action add_validate_host(CLI::App& validate) {
  CLI::App* command =
      validate.add_subcommand("host", "Plans run on this computer against their predictions");
  command->footer(
      "Example: gputwin probes run --out out/host && gputwin calibrate out/host/*.csv --device "
      "host-cpu --out out/host.json && gputwin validate host --device out/host.json\n"
      "Let nothing else run meanwhile. Exit codes: 0 done, 1 --max-error breached or cancelled, 2 "
      "bad input.");
  auto o = std::make_shared<Options>();
  command->add_option("--device", o->of.device, "A device file of gputwin calibrate, or a device")
      ->capture_default_str();
  command->add_option("--repeats", o->of.repeats, "Runs of each plan")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--bodies", o->of.bodies, "Iterations of a run; the first is not counted")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str();
  command->add_option("--only", o->of.only, "Only these plans: tp, pp, offload")
      ->delimiter(',')
      ->check(CLI::IsMember({"tp", "pp", "offload"}));
  command->add_flag("--quick", o->of.quick, "Smaller plans");
  command
      ->add_option("--max-error", o->max_error,
                   "Exit with 1 if an iteration is off by more than this (0.1 is 10 %)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json", o->json, "Print figures as JSON");
  return [o] { return validate_host(*o); };
}

}  // namespace gputwin::cli
