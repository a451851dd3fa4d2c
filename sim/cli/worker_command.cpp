// gputwin worker: the child of commands that make many runs; not for people.
#include <iostream>

#include "sim/app/worker.h"
#include "sim/cli/commands.h"

namespace gputwin::cli {

Action add_worker(CLI::App& app) {
  CLI::App* command = app.add_subcommand("worker", "Serve runs on standard input (internal)");
  command->group("");
  return [] {
    serve(std::cin, std::cout);
    return kDone;
  };
}

}  // namespace gputwin::cli
