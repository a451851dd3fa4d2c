// Files of published runs: what is read and what is refused.
#include "validation/runs/published_run.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "sim/core/error.h"

namespace gputwin {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PublishedRuns : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& text) const {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    const std::filesystem::path path =
        std::filesystem::path(testing::TempDir()) / (std::string(info->name()) + "_runs.json");
    std::ofstream(path) << text;
    return path;
  }

  // What reading a file with this text says; empty if it is read.
  std::string refusal(const std::string& text) const {
    try {
      read_published_runs(file(text));
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  }
};

TEST_F(PublishedRuns, KeepIdGroupKindConfigAndTarget) {
  const std::vector<PublishedRun> runs = read_published_runs(file(R"([
    {"id": "a-1", "group": "a", "kind": "dense-A100", "config": {"stack": "megatron-core"},
     "target": {"time_s": 1.5, "time_scope": "iteration", "memory_bytes": 2e9,
                "memory_kind": "allocated"}},
    {"id": "a-2", "config": {}, "scorable": false, "not_scorable_why": ["quality-c"],
     "target": {"time_s": 0.1, "time_scope": "layer-forward-backward"}}])"));
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].id, "a-1");
  EXPECT_EQ(runs[0].group, "a");
  EXPECT_EQ(runs[0].config["stack"], "megatron-core");
  EXPECT_EQ(runs[0].target.time_s, 1.5);
  EXPECT_EQ(runs[0].target.memory_bytes, 2e9);
  EXPECT_TRUE(runs[0].target.of_iteration);
  EXPECT_FALSE(runs[1].target.of_iteration);
  EXPECT_FALSE(runs[1].scorable);
  EXPECT_THAT(runs[1].not_scorable_why, testing::ElementsAre("quality-c"));
}

// The default batch is merged key by key; null in a row takes a default away.
TEST_F(PublishedRuns, RowsLeaveOutWhatEqualsTheDefaults) {
  const std::vector<PublishedRun> runs = read_published_runs(file(R"({
    "defaults": {"batch": {"micro": 1, "global": 64}, "recompute": "full"},
    "rows": [{"id": "a", "config": {"batch": {"global": 128}, "recompute": null}}]})"));
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].config["batch"]["micro"], 1);
  EXPECT_EQ(runs[0].config["batch"]["global"], 128);
  EXPECT_FALSE(runs[0].config.contains("recompute"));
}

TEST_F(PublishedRuns, NameFileAndPointerOfWhatIsMissing) {
  EXPECT_THAT(refusal(R"([{"id": "a"}])"),
              AllOf(HasSubstr("_runs.json: /0/config"), HasSubstr("missing")));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}}, {"config": {}}])"), HasSubstr("/1/id"));
  EXPECT_THAT(refusal(R"({"rows": [{"id": "a", "config": 3}]})"), HasSubstr("/rows/0/config"));
}

TEST_F(PublishedRuns, NameFileAndPointerOfWrongTypes) {
  EXPECT_THAT(refusal(R"([3])"), HasSubstr("/0"));
  EXPECT_THAT(refusal(R"([{"id": 7, "config": {}}])"), HasSubstr("/0/id"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "group": 1}])"), HasSubstr("/0/group"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "target": []}])"), HasSubstr("/0/target"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "target": {"time_s": "fast"}}])"),
              HasSubstr("/0/target/time_s"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "target": {"time_s": -1}}])"),
              HasSubstr("/0/target/time_s"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "scorable": "yes"}])"),
              HasSubstr("/0/scorable"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "not_scorable_why": "quality-c"}])"),
              HasSubstr("/0/not_scorable_why"));
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}, "not_scorable_why": [1]}])"),
              HasSubstr("/0/not_scorable_why/0"));
  EXPECT_THAT(refusal(R"({"defaults": 1, "rows": []})"), HasSubstr("/defaults"));
  EXPECT_THAT(refusal(R"({"rows": {}})"), HasSubstr("/rows"));
}

TEST_F(PublishedRuns, IdsAreUnique) {
  EXPECT_THAT(refusal(R"([{"id": "a", "config": {}}, {"id": "a", "config": {}}])"),
              AllOf(HasSubstr("/1/id"), HasSubstr("a names"), HasSubstr("earlier row")));
}

TEST_F(PublishedRuns, FilesMustBeJson) {
  EXPECT_THAT(refusal("[{"), HasSubstr("is no JSON"));
  EXPECT_THROW(read_published_runs("no/such/file.json"), InputError);
}

}  // namespace
}  // namespace gputwin
