// gputwin: predicts training jobs on GPU clusters. The only place that prints errors and chooses
// exit codes.
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>

#include "sim/cli/commands.h"
#include "sim/core/check.h"
#include "sim/core/error.h"

namespace {

using namespace gputwin;

/// Plans and their compiled programs fill the heap once, front to back. Growing it in one piece of
/// huge pages, and never giving memory back in between, halves the time of a short run; where the
/// kernel has no huge pages, nothing changes.
void prepare_heap() {
  constexpr std::size_t kPiece = std::size_t{256} << 20, kHugePage = std::size_t{2} << 20;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
  void* const piece = std::malloc(kPiece);  // address space only: nothing is touched
  if (piece == nullptr) return;
  const auto first = (reinterpret_cast<std::uintptr_t>(piece) + kHugePage - 1) / kHugePage;
  madvise(reinterpret_cast<void*>(first * kHugePage), kPiece - kHugePage, MADV_HUGEPAGE);
  std::free(piece);
}

int dispatch(int argc, char** argv) {
  CLI::App app{
      "gputwin predicts how a training job runs on a GPU cluster: time, memory, and where it "
      "goes."};
  app.require_subcommand(1);
  app.set_version_flag("--version", GPUTWIN_VERSION);
  app.footer("Example: gputwin run gpt3_175b__a100_128x8__tp8_pp16_dp8 --set layout.sp=true");
  std::map<const CLI::App*, cli::Action> actions;
  for (const auto add : {cli::add_run, cli::add_search, cli::add_sweep, cli::add_plan,
                         cli::add_list, cli::add_collective, cli::add_explain, cli::add_validate,
                         cli::add_calibrate, cli::add_probes, cli::add_compare, cli::add_replay,
                         cli::add_twin, cli::add_import, cli::add_memory, cli::add_worker}) {
    cli::Action action = add(app);
    actions[app.get_subcommands(nullptr).back()] = std::move(action);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    fmt::print(stderr, "gputwin: {}\nTry: gputwin --help\n", e.what());
    return cli::kBadInput;
  }
  const int exit = actions.at(app.get_subcommands().front())();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw InputError("standard output", "", "", "cannot be written", "is the disk full?");
  }
  return exit;
}

}  // namespace

int main(int argc, char** argv) {
  prepare_heap();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a failed write, with our message
  try {
    return dispatch(argc, argv);
  } catch (const gputwin::InputError& e) {
    fmt::print(stderr, "gputwin: {}\n", e.what());
    return gputwin::cli::kBadInput;
  } catch (const std::exception& e) {
    fmt::print(stderr, "gputwin: this is a bug in gputwin, please report it: {}\n", e.what());
    return gputwin::cli::kOurBug;
  }
}
