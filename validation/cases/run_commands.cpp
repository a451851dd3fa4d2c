// Commands of the mapped cases, run as children of the program.
#include <fmt/format.h>

#include <atomic>
#include <boost/process.hpp>
#include <fstream>
#include <mutex>
#include <random>
#include <thread>

#include "sim/app/json_text.h"
#include "sim/core/error.h"
#include "validation/cases/cases.h"

namespace gputwin::cases {
namespace {

namespace fs = std::filesystem;
namespace bp = boost::process;

// A folder of our own below the system's temporary one; removed at the end.
class Scratch {
 public:
  Scratch() {
    std::random_device random;
    for (int tries = 0; tries < 100; ++tries) {
      path_ = fs::temp_directory_path() / fmt::format("gputwin-cases-{:08x}", random());
      if (fs::create_directory(path_)) return;
    }
    throw InputError(path_.string(), "", "", "cannot be made", "is the disk full?");
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// True if an answer below `node` asks whether the command fails ("fits" and "fails").
bool asks_for_failure(const Json& node, const std::string& name) {
  if (node.is_object()) {
    for (const auto& [key, value] : node.items()) {
      if ((key == "fits" || key == "fails") && value == name) return true;
      if (asks_for_failure(value, name)) return true;
    }
  }
  if (node.is_array()) {
    for (const Json& value : node) {
      if (asks_for_failure(value, name)) return true;
    }
  }
  return false;
}

Command command_of(const std::string& id, const MappedCase& mapped, const std::string& name,
                   const Json& arguments) {
  Command command{id, name, {}, mapped.file, mapped.pointer + child_pointer("/runs", name), false};
  if (!arguments.is_array() || arguments.empty()) {
    throw InputError(mapped.file, command.pointer, arguments.dump().substr(0, 60), "is no command",
                     "write a list of words, the first one a command of gputwin");
  }
  for (const Json& word : arguments) {
    if (!word.is_string()) {
      throw InputError(mapped.file, command.pointer, word.dump(), "is no text", "quote it");
    }
    command.arguments.push_back(word.get<std::string>());
  }
  command.may_fail = asks_for_failure(mapped.node, name);
  return command;
}

// Documents of a case as files; {NAME} in an argument becomes the path.
std::vector<std::string> with_documents(const Command& command, const MappedCase& mapped,
                                        const fs::path& folder) {
  std::vector<std::string> arguments = command.arguments;
  const auto documents = mapped.node.find("documents");
  if (documents == mapped.node.end()) return arguments;
  for (const auto& [name, content] : documents->items()) {
    const fs::path path = folder / fmt::format("{}-{}.json", command.case_id, name);
    for (std::string& argument : arguments) {
      const std::string hole = "{" + name + "}";
      if (const std::size_t at = argument.find(hole); at != std::string::npos) {
        argument.replace(at, hole.size(), path.string());
      }
    }
    if (!fs::exists(path)) std::ofstream(path) << content.dump(1) << "\n";
  }
  return arguments;
}

Ran run_one(const fs::path& program, const std::vector<std::string>& arguments,
            const fs::path& folder, std::size_t number) {
  const std::string out = (folder / fmt::format("{}.out", number)).string();
  const std::string err = (folder / fmt::format("{}.err", number)).string();
  static std::mutex starting;
  bp::child child;
  {
    const std::lock_guard lock(starting);
    child = bp::child(program.string(), bp::args(arguments), bp::std_in<bp::null, bp::std_out> out,
                      bp::std_err > err);
  }
  child.wait();
  const auto all = [](const std::string& path) {
    std::ifstream stream(path);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  return {child.exit_code(), all(out), all(err)};
}

}  // namespace

std::vector<Command> commands_of(const std::vector<Case>& cases,
                                 const std::map<std::string, MappedCase>& mapping) {
  std::vector<Command> commands;
  for (const Case& c : cases) {
    const auto mapped = mapping.find(c.id);
    if (mapped == mapping.end()) continue;
    const auto runs = mapped->second.node.find("runs");
    if (runs == mapped->second.node.end()) continue;
    for (const auto& [name, arguments] : runs->items()) {
      commands.push_back(command_of(c.id, mapped->second, name, arguments));
    }
  }
  return commands;
}

std::vector<Ran> run_commands(const fs::path& program, const std::vector<Command>& commands,
                              const std::map<std::string, MappedCase>& mapping, int jobs,
                              const std::function<bool(double)>& progress) {
  const Scratch scratch;
  std::vector<std::vector<std::string>> arguments;
  for (const Command& c : commands) {
    arguments.push_back(with_documents(c, mapping.at(c.case_id), scratch.path()));
  }
  std::vector<Ran> ran(commands.size());
  std::atomic<std::size_t> next{0};
  std::atomic<bool> stopped{false};
  std::size_t done = 0;
  std::mutex telling;
  const auto work = [&] {
    while (!stopped) {
      const std::size_t i = next++;
      if (i >= commands.size()) return;
      ran[i] = run_one(program, arguments[i], scratch.path(), i);
      const std::lock_guard lock(telling);
      ++done;
      const double share = static_cast<double>(done) / static_cast<double>(commands.size());
      if (progress && !progress(share)) stopped = true;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < jobs; ++t) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  return ran;
}

}  // namespace gputwin::cases
