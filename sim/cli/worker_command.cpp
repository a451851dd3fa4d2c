// gputwin worker: the child of commands that make many runs; not for people.
#include <sys/prctl.h>

#include <csignal>
#include <iostream>

#include "sim/app/worker.h"
#include "sim/cli/commands.h"

namespace gputwin::cli {

Action add_worker(CLI::App& app) {
  CLI::App* command = app.add_subcommand("worker", "Serve runs on standard input (internal)");
  command->group("");
  return [] {
    // Ctrl-C reaches the whole process group: what becomes of a child is for its parent to say,
    // and a parent that dies takes it along.
    std::signal(SIGINT, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    serve(std::cin, std::cout);
    return kDone;
  };
}

}  // namespace gputwin::cli
