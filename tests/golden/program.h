// Runs the built program the way a person does, and reads what it leaves.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gputwin {

/// Every file in scenarios/runs, sorted by name.
std::vector<std::filesystem::path> shipped_runs();

/// The file's name as the name of a test.
std::string name_of_run(const ::testing::TestParamInfo<std::filesystem::path>& run);

/// A folder under the system's temporary one that exists while this object does.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& name);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

struct ProgramOutput {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

/// Runs a shell command to its end.
ProgramOutput run_command(const std::string& command);

/// `program run scenario --out folder`, with more arguments behind it.
ProgramOutput run_scenario(const std::string& program, const std::filesystem::path& scenario,
                           const std::filesystem::path& folder, const std::string& more = "");

std::string read_file(const std::filesystem::path& path);
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace gputwin
