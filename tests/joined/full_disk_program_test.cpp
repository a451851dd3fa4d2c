// What the program leaves where the disk is full. A limit on the size of files stands for it: a
// write beyond fails as on a full disk, with another number of the system's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";
const std::string kRun = "gpt_22b__a100_1x8__tp8_pp1_dp1_full";

/// Runs the program where no file may grow beyond `kilobytes`. Output comes through a pipe.
ProgramOutput full(int kilobytes, const std::string& arguments) {
  return run_command("bash -c \"ulimit -f " + std::to_string(kilobytes) + "; exec " +
                     kProgram + arguments + " 2>&1\"");
}

std::size_t files_in(const fs::path& folder) {
  std::size_t files = 0;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  return files;
}

void expect_refused(const ProgramOutput& out) {
  EXPECT_EQ(out.exit_code, 2) << out.text;
  EXPECT_THAT(out.text, HasSubstr("cannot be written"));
}

TEST(FullDisk, RunLeavesNoPartOfATrace) {
  const ScratchFolder folder("full_run");
  for (const char* name : {"a.gtr", "a.json", "a.json.gz"}) {
    const fs::path trace = folder.path() / name;
    expect_refused(full(4, "run " + kRun + " --trace '" + trace.string() + "'"));
    EXPECT_EQ(files_in(folder.path()), 0u) << name;
  }
  expect_refused(full(0, "run " + kRun + " --out '" + (folder.path() / "out").string() + "'"));
  EXPECT_EQ(files_in(folder.path()), 0u);
}

// What stood under the name before stays.
TEST(FullDisk, KeepsTheOldFile) {
  const ScratchFolder folder("full_old");
  const fs::path trace = folder.path() / "a.gtr";
  std::ofstream(trace) << "old";
  expect_refused(full(4, "run " + kRun + " --trace '" + trace.string() + "'"));
  EXPECT_EQ(read_file(trace), "old");
  EXPECT_EQ(files_in(folder.path()), 1u);
}

TEST(FullDisk, CompareLeavesNoPartOfAReport) {
  const ScratchFolder folder("full_compare");
  const std::string trace = "'" + (folder.path() / "a.gtr").string() + "'";
  ASSERT_EQ(run_command(kProgram + "run " + kRun + " --trace " + trace).exit_code, 0);
  const fs::path out = folder.path() / "out";
  expect_refused(full(1, "compare " + trace + " " + trace + " --out '" + out.string() + "'"));
  EXPECT_EQ(files_in(out), 0u);
}

// A twin: no half history, prediction or observation, and the same commands work once there is
// room.
TEST(FullDisk, TwinKeepsWhatItsHistoryNames) {
  const ScratchFolder folder("full_twin");
  const fs::path twin = folder.path() / "twin", log = folder.path() / "run.log";
  const std::string quoted = "'" + twin.string() + "' ";
  std::ofstream(log) << "iteration 1/ 2 | elapsed time per iteration (ms): 1500.0 | lm loss: 2 |\n";
  expect_refused(full(0, "twin init " + quoted + kRun));
  EXPECT_EQ(files_in(twin), 0u);
  ASSERT_EQ(run_command(kProgram + "twin init " + quoted + kRun).exit_code, 0);
  const std::size_t begun = files_in(twin);
  expect_refused(full(4, "twin predict " + quoted));
  EXPECT_EQ(files_in(twin), begun);
  ASSERT_EQ(run_command(kProgram + "twin predict " + quoted).exit_code, 0);
  const std::string history = read_file(twin / "history.jsonl");
  const std::size_t predicted = files_in(twin);
  expect_refused(full(0, "twin observe " + quoted + "'" + log.string() + "'"));
  EXPECT_EQ(files_in(twin), predicted);
  EXPECT_EQ(read_file(twin / "history.jsonl"), history);
  const ProgramOutput seen =
      run_command(kProgram + "twin observe " + quoted + "'" + log.string() + "' 2>&1");
  EXPECT_THAT(seen.text, HasSubstr("o1"));
}

TEST(FullDisk, HostRunLeavesNoPartOfATrace) {
  const ScratchFolder folder("full_host");
  const fs::path scenario = folder.path() / "small.json", out = folder.path() / "out";
  std::ofstream(scenario) << R"({"name": "small", "model": {"name": "small", "layers": 1,
      "hidden": 32, "heads": 4, "ffn": 128, "vocab": 64, "max_positions": 32, "activation": "gelu",
      "positions": "learned", "norm": "layernorm", "bias": true, "tied_embeddings": true},
      "cluster": "a100_pcie_1x8", "job": {"sequence": 32, "global_batch": 2,
      "precision": {"compute": "fp32", "params": "fp32", "grads": "fp32"}},
      "layout": {"tp": 1, "micro_batch": 2}})";
  const ProgramOutput run = full(
      0, "run '" + scenario.string() + "' --executor host --trace '" + out.string() + "/t.json'");
  expect_refused(run);
  EXPECT_EQ(files_in(out), 0u);
}

}  // namespace
}  // namespace gputwin
