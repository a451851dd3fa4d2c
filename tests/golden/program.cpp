#include "tests/golden/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace gputwin {

namespace fs = std::filesystem;

std::vector<fs::path> shipped_runs() {
  std::vector<fs::path> runs;
  const fs::path folder = fs::path(GPUTWIN_SOURCE_DIR) / "scenarios" / "runs";
  if (!fs::exists(folder)) return runs;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".json") runs.push_back(entry.path());
  }
  std::sort(runs.begin(), runs.end());
  return runs;
}

std::string name_of_run(const ::testing::TestParamInfo<fs::path>& run) {
  std::string name = run.param.stem().string();
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

ScratchFolder::ScratchFolder(const std::string& name)
    : path_(fs::temp_directory_path() / ("gputwin-" + name + "-" + std::to_string(::getpid()))) {
  fs::create_directories(path_);
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

ProgramOutput run_command(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start " + command);
  ProgramOutput output;
  std::array<char, 4096> buffer{};
  while (const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe)) {
    output.text.append(buffer.data(), got);
  }
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) output.exit_code = WEXITSTATUS(status);
  return output;
}

ProgramOutput run_scenario(const std::string& program, const fs::path& scenario,
                           const fs::path& folder, const std::string& more) {
  const std::string command = "'" + program + "' run '" + scenario.string() + "' --out '" +
                              folder.string() + "' " + more + " 2>&1";
  return run_command(command);
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

nlohmann::json read_json(const fs::path& path) { return nlohmann::json::parse(read_file(path)); }

}  // namespace gputwin
