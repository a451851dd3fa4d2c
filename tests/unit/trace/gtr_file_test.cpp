#include "sim/trace/gtr_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "sim/core/error.h"
#include "sim/trace/chrome_import.h"
#include "tests/unit/trace/trace_world.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

class GtrFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("gtr_file_test_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string bytes(const fs::path& path) const {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  fs::path write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  std::string problem_of(const fs::path& path) const {
    try {
      open_trace(path);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
};

Store rich_store() {
  StoreBuilder builder;
  const std::uint32_t p = builder.process({"rank 0", "stage0", 0, 2});
  const std::uint32_t a = builder.thread(p, "compute", 0), b = builder.thread(p, "tp", 1);
  const std::uint32_t d = builder.definition(framed("F/mb", "/L1/fc1", SliceKind::Gemm));
  builder.slice(a, 0, 5'000'000'000'000, d, 3, 1, R"({"own":1})");
  builder.slice(b, 4, 9, d);
  builder.flow(a, 5, b, 5);
  const std::uint32_t c = builder.counter(p, "gpu memory", "weights_bytes");
  builder.sample(c, 0, 1.5);
  builder.sample(c, 7, 2.5);
  Store store = builder.finish("title");
  store.result_json = "{\"mfu\":0.5}";
  return store;
}

TEST_F(GtrFile, ComesBackAsItWas) {
  const Store store = rich_store();
  write_gtr(store, folder_ / "a.gtr");
  const Store back = read_gtr(folder_ / "a.gtr");
  EXPECT_EQ(back.title, store.title);
  EXPECT_EQ(back.result_json, store.result_json);
  EXPECT_EQ(back.processes, store.processes);
  EXPECT_EQ(back.tracks, store.tracks);
  EXPECT_EQ(back.definitions, store.definitions);
  EXPECT_EQ(back.counters, store.counters);
  EXPECT_EQ(back.flows(), store.flows());
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back.duration(0), 5'000'000'000'000);
  EXPECT_EQ(back.name(0), "F/mb3/L1/fc1");
  EXPECT_EQ(back.arguments(0), R"({"own":1})");
  EXPECT_EQ(back.body(0), 1u);
  write_gtr(back, folder_ / "b.gtr");
  EXPECT_EQ(bytes(folder_ / "a.gtr"), bytes(folder_ / "b.gtr"));
}

// Cut anywhere, the stated length no longer holds.
TEST_F(GtrFile, CutOffFilesAreRefused) {
  write_gtr(rich_store(), folder_ / "a.gtr");
  const std::string whole = bytes(folder_ / "a.gtr");
  for (const std::size_t keep :
       {std::size_t{0}, std::size_t{7}, std::size_t{20}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_NE(problem_of(write("cut.gtr", whole.substr(0, keep))), "") << keep;
  }
}

// Every byte of a small file turned over, one at a time: an error or a store whose slices can all
// be asked for, never a crash or a read beyond an array.
TEST_F(GtrFile, HostileBytesNeverCrash) {
  write_gtr(rich_store(), folder_ / "a.gtr");
  const std::string whole = bytes(folder_ / "a.gtr");
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(~changed[at]);
    try {
      const Store store = open_trace(write("bad.gtr", changed));
      for (SliceId s = 0; s < store.size(); ++s) {
        EXPECT_GE(store.end(s), store.start(s));
        EXPECT_LT(store.track_of(s), store.tracks.size());
        (void)store.name(s).size();
        (void)store.arguments(s).size();
      }
    } catch (const InputError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(GtrFile, SaysWhatIsWrongWithOtherFiles) {
  EXPECT_NE(problem_of(folder_ / "none.gtr").find("cannot be read"), std::string::npos);
  EXPECT_NE(problem_of(folder_).find("is a folder"), std::string::npos);
  EXPECT_NE(problem_of(write("x.gtr", "GTRACE\r\n" + std::string(16, '\xff'))).find("version"),
            std::string::npos);
}

}  // namespace
}  // namespace gputwin
