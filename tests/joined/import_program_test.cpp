// gputwin import, as a person meets it: what it writes is input of the other commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

using ::testing::HasSubstr;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";

std::string quoted(const std::filesystem::path& path) { return "'" + path.string() + "'"; }

TEST(Import, GivesAClusterThatCollectiveTakes) {
  const ScratchFolder folder("import");
  const auto in = folder.path() / "topo.txt", out = folder.path() / "mine.json";
  std::ofstream(in) << "\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n";
  ProgramOutput ran = run_command(kProgram + "import nvidia-smi-topo " + quoted(in) +
                                  " --device a100-sxm-80gb --out " + quoted(out) + " 2>&1");
  ASSERT_EQ(ran.exit_code, 0) << ran.text;
  EXPECT_THAT(ran.text, HasSubstr("assumed: host memory"));
  ran =
      run_command(kProgram + "collective all_reduce --ranks 2 --sizes 1M --cluster " + quoted(out));
  EXPECT_EQ(ran.exit_code, 0) << ran.text;
}

TEST(Import, RefusesForeignFilesAndWritesNothing) {
  const ScratchFolder folder("import_foreign");
  const auto in = folder.path() / "f.txt", out = folder.path() / "out.json";
  std::ofstream(in) << "SwitchName=a Switches=b\n";
  for (const std::string kind : {"nvidia-smi-topo", "nccl-xml", "nccl-tests", "slurm"}) {
    const ProgramOutput ran = run_command(kProgram + "import " + kind + " " + quoted(in) +
                                          " --out " + quoted(out) + " 2>&1");
    EXPECT_EQ(ran.exit_code, 2) << kind << ran.text;
    EXPECT_THAT(ran.text, HasSubstr("line 1"));
    EXPECT_FALSE(std::filesystem::exists(out));
  }
}

}  // namespace
}  // namespace gputwin
