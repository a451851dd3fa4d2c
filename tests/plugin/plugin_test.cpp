// A plugin from the installed package to a simulated run, and libraries that are refused.
#include <gmock/gmock.h>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

ProgramOutput done(const std::string& command) {
  ProgramOutput out = run_command(command);
  EXPECT_EQ(out.exit_code, 0) << command << "\n" << out.text;
  return out;
}

ProgramOutput refused(const std::string& library) {
  return run_command(quoted(GPUTWIN_PROGRAM) + " run gpt3_13b__a100_4x8__tp4_pp4_dp2_gpipe " +
                     "--plugin '" + library + "' 2>&1");
}

// Installs this build under `prefix` and builds the example against it; returns the library.
fs::path built_example(const fs::path& folder, const fs::path& prefix) {
  done(quoted(GPUTWIN_CMAKE) + " --install " + quoted(GPUTWIN_BUILD) + " --prefix " +
       quoted(prefix));
  const fs::path source = fs::path(GPUTWIN_SOURCE_DIR) / "tests" / "plugin" / "example";
  done(quoted(GPUTWIN_CMAKE) + " -S " + quoted(source) + " -B " + quoted(folder / "build") +
       " -DCMAKE_PREFIX_PATH=" + quoted(prefix) +
       " -DCMAKE_CXX_COMPILER=" + quoted(GPUTWIN_COMPILER));
  done(quoted(GPUTWIN_CMAKE) + " --build " + quoted(folder / "build"));
  return folder / "build" / "eager_1f1b.so";
}

// Four stages: at their peaks stages 1, 2 and 3 hold 3, 2 and 1 micro-batches with 1F1B, and 5, 3
// and 1 eagerly: 2, 1 and 0 more of the same size. No pass is added, and messages may only come
// earlier relative to their use: the iteration takes the same time within a twentieth.
TEST(Plugin, BuildsFromTheInstalledPackageAndReordersThePipeline) {
  const ScratchFolder folder("plugin");
  const fs::path prefix = folder.path() / "prefix";
  const fs::path library = built_example(folder.path(), prefix);
  const auto result = [&](const std::string& more) {
    const std::string command = "env -u GPUTWIN_DATA " + quoted(prefix / "bin" / "gputwin") +
                                " run gpt3_13b__a100_4x8__tp4_pp4_dp2_gpipe --set "
                                "layout.schedule=1f1b --json " +
                                more;
    return json::parse(done(command + " 2>/dev/null").text);
  };
  const json plain = result(""), eager = result("--plugin " + quoted(library));
  const auto activations = [](const json& run, std::size_t stage) {
    return run["memory"]["by_role"][stage]["activations_bytes"].get<double>();
  };
  const auto more = [&](std::size_t stage) {
    return activations(eager, stage) - activations(plain, stage);
  };
  EXPECT_GT(more(2), 0);
  EXPECT_EQ(more(1), 2 * more(2));
  EXPECT_EQ(more(3), 0);
  EXPECT_NEAR(eager["iteration_time_s"].get<double>() / plain["iteration_time_s"].get<double>(),
              1.0, 0.05);
  EXPECT_NE(eager["iteration_time_s"], plain["iteration_time_s"]);
  EXPECT_THAT(eager["warnings"].dump(), HasSubstr("with plugin eager_1f1b: 1F1B with twice"));

  const ProgramOutput chunks =
      run_command(quoted(GPUTWIN_PROGRAM) +
                  " run gpt3_13b__a100_4x8__tp4_pp4_dp2_gpipe --set "
                  "layout.schedule=interleaved --set layout.vpp=2 --plugin " +
                  quoted(library) + " 2>&1");
  EXPECT_EQ(chunks.exit_code, 3);
  EXPECT_THAT(chunks.text, HasSubstr("knows one model chunk per stage"));

  const ProgramOutput sweep =
      done(quoted(GPUTWIN_PROGRAM) +
           " sweep gpt3_13b__a100_4x8__tp4_pp4_dp2_gpipe --set layout.schedule=1f1b --vary "
           "layout.micro_batch=1 --json --plugin " +
           quoted(library) + " 2>/dev/null");
  EXPECT_EQ(json::parse(sweep.text)["points"][0]["iteration_time_s"], eager["iteration_time_s"]);
}

TEST(Plugin, OfAnotherReleaseIsRefusedBeforeItRuns) {
  const ProgramOutput out = refused(GPUTWIN_OTHER_RELEASE);
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_THAT(out.text, HasSubstr("was built for another gputwin"));
  EXPECT_THAT(out.text, HasSubstr("the plugin: gputwin 0.0.1, plugin ABI 0"));
  EXPECT_THAT(out.text, HasSubstr("build it again"));
}

TEST(Plugin, OtherFilesAreRefused) {
  EXPECT_THAT(refused(GPUTWIN_NO_PLUGIN).text, HasSubstr("it has no gputwin_plugin_stamp"));
  EXPECT_THAT(refused("/no/such/file.so").text, HasSubstr("is no file"));
  const ScratchFolder folder("plugin_text");
  const fs::path text = folder.path() / "text.so";
  done("echo text > " + quoted(text));
  const ProgramOutput out = refused(text.string());
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_THAT(out.text, HasSubstr("cannot be loaded"));
}

}  // namespace
}  // namespace gputwin
