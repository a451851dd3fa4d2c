// gputwin sweep as a person meets it: the same bytes however it is spread, nothing lost when it is
// killed, and rows for points that cannot be.
#include <gmock/gmock.h>

#include <fstream>
#include <set>

#include "tests/golden/program.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";

// The tiny job of the loader's tests: 3 is no divisor of its heads, and nothing has 100,000 layers'
// worth of memory.
class SweepProgram : public ::testing::Test {
 protected:
  SweepProgram() { std::ofstream(folder_.path() / "tiny.json") << test::kTinyScenario; }

  std::string scenario() const { return "'" + (folder_.path() / "tiny.json").string() + "'"; }
  fs::path out(const std::string& name) const { return folder_.path() / name; }
  std::string sweep(const std::string& name, const std::string& more,
                    const std::string& before = "") const {
    return before + kProgram + "sweep " + scenario() + " --out '" + out(name).string() + "' " +
           more + " 2>&1";
  }
  std::vector<std::string> written(const std::string& name) const {
    std::vector<std::string> files;
    for (const char* file : {"sweep.csv", "sweep.json", "sweep.html"}) {
      files.push_back(read_file(out(name) / file));
    }
    return files;
  }

  ScratchFolder folder_{"sweep"};
};

constexpr const char* kGrid =
    " --vary layout.tp=1,2,3,4 --vary job.global_batch=16,32 --vary layout.micro_batch=1,2 ";

TEST_F(SweepProgram, GivesTheSameBytesHoweverManyWork) {
  for (const char* jobs : {"1", "2", "5"}) {
    const ProgramOutput done = run_command(sweep(jobs, kGrid + std::string("-j ") + jobs));
    ASSERT_EQ(done.exit_code, 0) << done.text;
  }
  const json points = read_json(out("1") / "sweep.json")["points"];
  ASSERT_EQ(points.size(), 16u);
  for (const json& point : points) {
    EXPECT_EQ(point["status"], point["settings"]["layout.tp"] == "3" ? "invalid" : "ok");
  }
  EXPECT_THAT(points[8]["reason"].get<std::string>(), HasSubstr("3 does not divide heads"));
  EXPECT_EQ(written("1"), written("2"));
  EXPECT_EQ(written("1"), written("5"));
  // A point is the run it stands for.
  const ProgramOutput run = run_command(kProgram + "run " + scenario() +
                                        " --set layout.tp=2 --set job.global_batch=32 --set "
                                        "layout.micro_batch=2 --json 2>/dev/null");
  EXPECT_EQ(json::parse(run.text)["iteration_time_s"], points[7]["iteration_time_s"]);
}

TEST_F(SweepProgram, GivesTheSameBytesUnderMpirun) {
  if (run_command("mpirun --version 2>&1").exit_code != 0) GTEST_SKIP() << "mpirun is absent";
  ASSERT_EQ(run_command(sweep("alone", kGrid + std::string("-j 1"))).exit_code, 0);
  const std::string mpirun =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe ";
  for (const char* ranks : {"2", "3"}) {
    const ProgramOutput spread = run_command(sweep(ranks, kGrid, mpirun + "-n " + ranks + " "));
    if (spread.text.find("built without Boost.MPI") != std::string::npos) {
      GTEST_SKIP() << "built without Boost.MPI";
    }
    ASSERT_EQ(spread.exit_code, 0) << spread.text;
    EXPECT_EQ(written("alone"), written(ranks));
  }
  // Bad input is said once, by rank 0, and nobody waits forever.
  const ProgramOutput wrong = run_command(sweep("x", "--vary layout.tq=1", mpirun + "-n 2 "));
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_THAT(wrong.text, HasSubstr("names an unknown key \"tq\""));
  EXPECT_EQ(wrong.text.find("gputwin: --vary"), wrong.text.rfind("gputwin: --vary"));
}

std::vector<json> lines_of(const fs::path& journal) {
  std::vector<json> lines;
  std::ifstream in(journal);
  for (std::string line; std::getline(in, line);) {
    json value = json::parse(line, nullptr, false);
    if (!value.is_discarded()) lines.push_back(std::move(value));
  }
  return lines;
}

// Killed with -9 after 3, 9 and 15 points, each time with half a line more, as a kill within a
// write would leave it; then let finish. 24 points, each done once.
TEST_F(SweepProgram, LosesAndRepeatsNothingWhenItIsKilled) {
  const std::string grid =
      "--vary layout.tp=1,2,4 --vary job.global_batch=256,512 --vary layout.micro_batch=1,2,4,8 ";
  ASSERT_EQ(run_command(sweep("whole", grid)).exit_code, 0);
  const std::string journal = (out("killed") / "journal.jsonl").string();
  std::size_t before = 0;
  for (const char* points : {"3", "9", "15"}) {
    run_command("{ " + sweep("killed", grid + "-j 2") +
                " & } > /dev/null; pid=$!; "
                "while [ \"$(cat '" +
                journal + "' 2>/dev/null | wc -l)\" -le " + points +
                " ] && kill -0 $pid 2>/dev/null; do sleep 0.01; done; kill -9 $pid; wait $pid; "
                "printf '{\"point\":2,\"ro' >> '" +
                journal + "'");
    const std::size_t now = lines_of(journal).size();
    EXPECT_GT(now, before);
    before = now;
  }
  ASSERT_LT(before, 25u) << "was done before it could be killed";
  const ProgramOutput resumed = run_command(sweep("killed", grid + "-j 2"));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.text;
  EXPECT_THAT(resumed.text, HasSubstr(" of 24 points are in "));
  const std::vector<json> lines = lines_of(journal);
  ASSERT_EQ(lines.size(), 25u);  // one of them the head
  std::set<int> done;
  for (std::size_t i = 1; i < lines.size(); ++i) done.insert(lines[i]["point"].get<int>());
  EXPECT_EQ(done.size(), 24u);
  EXPECT_EQ(written("killed"), written("whole"));
}

TEST_F(SweepProgram, StopsAtTheTimeLimitAndGoesOn) {
  const std::string grid = "--vary layout.tp=1,2,4 --vary job.global_batch=512,1024 -j 1 ";
  const ProgramOutput stopped = run_command(sweep("limited", grid + "--time-limit 0.001"));
  EXPECT_EQ(stopped.exit_code, 1);
  EXPECT_THAT(stopped.text, HasSubstr("of 6 points done; the same command goes on"));
  EXPECT_THAT(written("limited")[0], HasSubstr("not run"));
  EXPECT_EQ(run_command(sweep("limited", grid)).exit_code, 0);
}

TEST_F(SweepProgram, RefusesTheJournalOfAnotherSweep) {
  ASSERT_EQ(run_command(sweep("one", "--vary layout.tp=1,2")).exit_code, 0);
  const ProgramOutput other = run_command(sweep("one", "--vary layout.tp=1,2,4"));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.text, HasSubstr("is the journal of another sweep: different points"));
}

// A model too large for one GPU is a row; where no point has a result the exit code says why.
TEST_F(SweepProgram, HasARowForWhatCannotBe) {
  const std::string large = "--set model.hidden=16384 --set model.ffn=65536 ";
  const ProgramOutput some =
      run_command(sweep("some", large + "--vary model.layers=4,400 --vary layout.tp=8 --json"));
  EXPECT_EQ(some.exit_code, 0) << some.text;
  const json points = read_json(out("some") / "sweep.json")["points"];
  EXPECT_EQ(points[0]["status"], "ok");
  EXPECT_EQ(points[1]["status"], "infeasible");
  EXPECT_FALSE(points[1]["reason"].get<std::string>().empty());
  EXPECT_EQ(run_command(sweep("none", large + "--vary model.layers=400")).exit_code, 3);
  EXPECT_EQ(run_command(sweep("odd", "--vary layout.tp=3,5")).exit_code, 2);
}

}  // namespace
}  // namespace gputwin
