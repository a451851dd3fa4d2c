// Points of a sweep, its journal, and what is written of it.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "sim/app/sweep_journal.h"
#include "sim/app/sweep_page.h"
#include "sim/app/sweep_run.h"
#include "sim/app/sweep_table.h"
#include "sim/core/error.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using test::data_dirs;
using test::kFlagship;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SweepFiles : public ::testing::Test {
 protected:
  SweepFiles()
      : folder_(fs::temp_directory_path() / ("gputwin-sweep-" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~SweepFiles() override { fs::remove_all(folder_); }

  fs::path written(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  std::string text_of(const fs::path& file) const {
    std::ostringstream text;
    text << std::ifstream(file, std::ios::binary).rdbuf();
    return text.str();
  }
  fs::path journal() const { return folder_ / "journal.jsonl"; }

  fs::path folder_;
};

Sweep planned(const std::vector<std::string>& vary, const fs::path& list = {}) {
  SweepRequest request;
  request.scenario = kFlagship;
  request.vary = vary;
  request.list = list;
  return plan_sweep(request, data_dirs());
}

std::vector<std::string> texts(const Sweep& sweep) {
  std::vector<std::string> texts;
  for (const auto& point : sweep.points) {
    std::string text;
    for (const Setting& s : point) text += (text.empty() ? "" : " ") + s.path + "=" + s.value;
    texts.push_back(text);
  }
  return texts;
}

InputError refusal(const std::vector<std::string>& vary, const fs::path& list = {}) {
  try {
    planned(vary, list);
  } catch (const InputError& e) {
    return e;
  }
  ADD_FAILURE() << "was accepted";
  return {"", "", "", "", ""};
}

TEST(SweepPoints, AreTheGridWithTheFirstPathSlowest) {
  const Sweep sweep = planned({"layout.tp=4,8", "job.global_batch=512,1024,2048"});
  EXPECT_THAT(
      texts(sweep),
      ElementsAre("layout.tp=4 job.global_batch=512", "layout.tp=4 job.global_batch=1024",
                  "layout.tp=4 job.global_batch=2048", "layout.tp=8 job.global_batch=512",
                  "layout.tp=8 job.global_batch=1024", "layout.tp=8 job.global_batch=2048"));
  EXPECT_THAT(sweep.columns, ElementsAre("layout.tp", "job.global_batch"));
}

TEST(SweepPoints, VaryTogetherWhatASemicolonJoins) {
  EXPECT_THAT(texts(planned({"layout.tp=8,4;layout.dp=8,16"})),
              ElementsAre("layout.tp=8 layout.dp=8", "layout.tp=4 layout.dp=16"));
  EXPECT_THAT(refusal({"layout.tp=8,4;layout.dp=8"}).problem, HasSubstr("2 and 1 values"));
}

TEST(SweepPoints, KeepCommasInsideBracketsTogether) {
  const Sweep sweep = planned({"layout.stage_layers=[1, 2],[2, 1]"});
  EXPECT_THAT(texts(sweep),
              ElementsAre("layout.stage_layers=[1, 2]", "layout.stage_layers=[2, 1]"));
}

using SweepList = SweepFiles;

TEST_F(SweepList, HasOnePointALineTimesTheGrid) {
  const fs::path list = written("points.txt",
                                "# degrees\nlayout.tp=8 layout.dp=8\n\n"
                                "layout.tp=4\tlayout.dp=16  # half\n");
  const Sweep sweep = planned({"layout.zero=0,1"}, list);
  EXPECT_THAT(texts(sweep), ElementsAre("layout.tp=8 layout.dp=8 layout.zero=0",
                                        "layout.tp=8 layout.dp=8 layout.zero=1",
                                        "layout.tp=4 layout.dp=16 layout.zero=0",
                                        "layout.tp=4 layout.dp=16 layout.zero=1"));
  const fs::path wrong = written("wrong.txt", "layout.tp=8\nlayout.tq=8\n");
  EXPECT_EQ(refusal({}, wrong).file, wrong.string());
  EXPECT_EQ(refusal({}, wrong).pointer, "line 2: /layout/tq");
  EXPECT_THAT(refusal({}, written("empty.txt", "# none\n")).problem, HasSubstr("no points"));
}

// A wrong path or type stops the sweep before it begins; a rule broken by one point does not.
TEST(SweepPoints, AreCheckedBeforeTheFirstRuns) {
  const InputError path = refusal({"cluster.fabric.nic_Gbps=100,200"});
  EXPECT_EQ(path.file, "--vary");
  EXPECT_THAT(path.fix, HasSubstr("cluster.groups.0.type.nics.each_Gbps"));
  EXPECT_THAT(refusal({"layout.tp=4,x"}).problem, HasSubstr("is not a number"));
  EXPECT_THAT(refusal({"layout.tp=4,4"}).problem, HasSubstr("holds 4 twice"));
  EXPECT_THAT(refusal({"layout.tp="}).problem, HasSubstr("path=v1,v2"));
  EXPECT_THAT(refusal({"layout.tp=4", "layout.tp=8"}).problem, HasSubstr("varied twice"));
  EXPECT_THAT(refusal({"layout.tp=4;layout.tp=8"}).problem, HasSubstr("varied twice"));
  EXPECT_THAT(refusal({}).problem, HasSubstr("nothing to vary"));
  EXPECT_EQ(planned({"layout.tp=5,7"}).points.size(), 2u);
}

TEST(SweepIdentity, ChangesWithEverythingThatFiguresFollowFrom) {
  const Json one = sweep_identity(planned({"layout.tp=4,8"}), "1");
  EXPECT_EQ(one, sweep_identity(planned({"layout.tp=4,8"}), "1"));
  EXPECT_NE(one["points"], sweep_identity(planned({"layout.tp=8,4"}), "1")["points"]);
  EXPECT_NE(one["program"], sweep_identity(planned({"layout.tp=4,8"}), "2")["program"]);
  Sweep other = planned({"layout.tp=4,8"});
  other.sets = {"layout.zero=1"};
  EXPECT_NE(one["scenario"], sweep_identity(other, "1")["scenario"]);
}

using Journal = SweepFiles;
const Json kIdentity{{"scenario", "abc"}, {"points", "3"}};

TEST_F(Journal, GivesBackWhatWasAppended) {
  {
    SweepJournal journal(this->journal(), kIdentity, 3);
    EXPECT_TRUE(journal.rows().empty());
    journal.append(2, {{"status", "ok"}});
    journal.append(0, {{"status", "invalid"}});
  }
  const SweepJournal again(this->journal(), kIdentity, 3);
  ASSERT_EQ(again.rows().size(), 2u);
  EXPECT_EQ(again.rows().at(2)["status"], "ok");
  EXPECT_EQ(again.rows().at(0)["status"], "invalid");
}

// Whatever part of the last line reached the disk: the lines before it stay, and the next one
// begins where the torn one did.
TEST_F(Journal, CutsOffATornLastLine) {
  { SweepJournal(this->journal(), kIdentity, 3).append(1, {{"status", "ok"}}); }
  const std::string whole = text_of(this->journal());
  const std::string next = R"({"point":2,"row":{"status":"ok"}})";
  for (std::size_t length = 1; length <= next.size(); ++length) {
    written("journal.jsonl", whole + next.substr(0, length));
    SweepJournal journal(this->journal(), kIdentity, 3);
    EXPECT_EQ(journal.rows().size(), 1u) << length;
    EXPECT_EQ(text_of(this->journal()), whole);
    journal.append(2, {{"status", "ok"}});
    EXPECT_EQ(text_of(this->journal()), whole + next + "\n");
  }
  // Torn in the first line: as if there were none.
  written("journal.jsonl", whole.substr(0, 10));
  EXPECT_TRUE(SweepJournal(this->journal(), kIdentity, 3).rows().empty());
}

std::string refused(const fs::path& path, const Json& identity) {
  try {
    SweepJournal(path, identity, 3);
  } catch (const InputError& e) {
    return e.what();
  }
  return "was accepted";
}

TEST_F(Journal, OfAnotherSweepIsRefusedAndKept) {
  { SweepJournal(this->journal(), kIdentity, 3).append(1, {{"status", "ok"}}); }
  const std::string before = text_of(this->journal());
  EXPECT_THAT(refused(this->journal(), {{"scenario", "abd"}, {"points", "3"}}),
              HasSubstr("is the journal of another sweep: different scenario (name another"));
  EXPECT_EQ(text_of(this->journal()), before);
  written("journal.jsonl", "{\"something\": \"else\"}\n");
  EXPECT_THAT(refused(this->journal(), kIdentity), HasSubstr("not the beginning of a sweep"));
  written("journal.jsonl", "something else\n");
  EXPECT_THAT(refused(this->journal(), kIdentity), HasSubstr("line 1: is no line of a journal"));
}

TEST_F(Journal, DamagedBeforeItsEndIsRefused) {
  { SweepJournal(this->journal(), kIdentity, 3).append(1, {{"status", "ok"}}); }
  const std::string before = text_of(this->journal());
  for (const char* line : {"{\"point\":1,\"row\":{}}", "{\"point\":3,\"row\":{}}", "{", "5"}) {
    written("journal.jsonl", before + line + "\n");
    EXPECT_THAT(refused(this->journal(), kIdentity), HasSubstr("line 3: is ")) << line;
  }
}

TEST_F(Journal, IsOfOneProcessAtATime) {
  const SweepJournal first(this->journal(), kIdentity, 3);
  EXPECT_THAT(refused(this->journal(), kIdentity),
              HasSubstr("is being written by another process"));
}

// Rows as a worker answers: one result, one layout that cannot be, one not run.
SweepRows three_rows() {
  const Json answer{{"status", "ok"},
                    {"result",
                     {{"schema", 1},
                      {"iteration_time_s", 2.5},
                      {"interval_s", {2.0, 3.0}},
                      {"tokens_per_s", 4000.0},
                      {"samples_per_s", 4.0},
                      {"mfu", 0.5},
                      {"breakdown_s", {{"compute", 2.0}, {"bubble", 0.5}}},
                      {"memory", {{"peak_device_bytes", 1 << 30}, {"by_role", Json::array()}}},
                      {"engine", {{"wall_s", 0.1}}}}}};
  const Json no{{"status", "input"}, {"reason", "--set: /layout/tp: 3, \"odd\" <b>"}};
  return {sweep_row(answer), sweep_row(no), std::nullopt};
}

TEST(SweepOutput, HasARowForEveryPoint) {
  const Sweep sweep = planned({"layout.tp=8,3,4"});
  const SweepRows rows = three_rows();
  const std::string csv = sweep_csv(sweep, rows);
  EXPECT_THAT(csv, HasSubstr("point,layout.tp,status,reason,iteration_time_s,interval_low_s"));
  EXPECT_THAT(csv, HasSubstr("\r\n0,8,ok,,2.5,2.0,3.0,4000.0,4.0,"));
  EXPECT_THAT(csv, HasSubstr("\r\n1,3,invalid,\"/layout/tp: 3, \"\"odd\"\" <b>\",,,"));
  EXPECT_THAT(csv, HasSubstr("\r\n2,4,not run,,,"));
  const Json json = Json::parse(sweep_json(sweep, rows));
  EXPECT_EQ(json["points"][0]["settings"]["layout.tp"], "8");
  EXPECT_EQ(json["points"][0]["memory"]["peak_device_bytes"], 1 << 30);
  EXPECT_FALSE(json["points"][0].contains("engine"));
  EXPECT_EQ(json["points"][1]["status"], "invalid");
  EXPECT_EQ(json["points"][2]["status"], "not run");
  EXPECT_EQ(best_point(rows), 0u);
}

// No network: nothing the browser would fetch, no script, and text from outside is escaped.
TEST(SweepOutput, PageStandsAlone) {
  const std::string page = sweep_page(planned({"layout.tp=8,3,4"}), three_rows());
  for (const char* fetched : {"http", "src=", "@import", "url(", "<script", "<link"}) {
    EXPECT_THAT(page, Not(HasSubstr(fetched)));
  }
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("&quot;odd&quot; &lt;b&gt;"));
  EXPECT_THAT(page, HasSubstr("not run"));
}

// Nothing has a result: still a page, without plots.
TEST(SweepOutput, PageWithoutResultsIsATable) {
  const std::string page = sweep_page(planned({"layout.tp=8,3"}), {std::nullopt, std::nullopt});
  EXPECT_THAT(page, Not(HasSubstr("<svg")));
  EXPECT_THAT(page, HasSubstr("<table>"));
}

}  // namespace
}  // namespace gputwin
