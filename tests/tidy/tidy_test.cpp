// Rules of style that a machine can check: who may include whom, sizes, names, words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>

#include "tests/tidy/functions.h"
#include "tests/tidy/source_files.h"

namespace gputwin::tidy {
namespace {

using ::testing::IsEmpty;

constexpr std::size_t kMaxColumns = 100;
constexpr std::size_t kMaxFunctionLines = 70;
constexpr std::size_t kMaxReadmeLines = 80;
constexpr std::size_t kMaxTopReadmeLines = 120;

std::string at(const SourceFile& file, std::size_t line, const std::string& what) {
  return file.path + ":" + std::to_string(line) + ": " + what;
}

/// The layer a path belongs to: "sim/core", "hwmodels", …; "" for files of no layer.
std::string layer_of(const std::string& path) {
  const std::size_t first = path.find('/');
  if (first == std::string::npos) return "";
  const std::string top = path.substr(0, first);
  if (top != "sim") return top;
  const std::size_t second = path.find('/', first + 1);
  return second == std::string::npos ? "" : path.substr(0, second);
}

/// DESIGN 3: core ◄ siblings ◄ app ◄ validation, gui ◄ cli. A layer may include itself and these.
const std::map<std::string, std::set<std::string>>& allowed_layers() {
  static const std::set<std::string> kSiblings{"sim/core", "hwmodels", "strategies", "sim/engine",
                                               "sim/trace"};
  static const auto with = [](std::set<std::string> base, std::initializer_list<const char*> more) {
    for (const char* layer : more) base.insert(layer);
    return base;
  };
  static const std::map<std::string, std::set<std::string>> kAllowed{
      {"sim/core", {}},
      {"hwmodels", {"sim/core"}},
      {"strategies", {"sim/core"}},
      {"sim/engine", {"sim/core"}},
      {"sim/trace", {"sim/core"}},
      {"sim/app", kSiblings},
      {"validation", with(kSiblings, {"sim/app"})},
      {"gui", with(kSiblings, {"sim/app"})},
      {"sim/cli", with(kSiblings, {"sim/app", "validation", "gui"})},
  };
  return kAllowed;
}

TEST(Tidy, LayersIncludeOnlyWhatLiesBelowThem) {
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    const std::string layer = layer_of(file.path);
    const auto allowed = allowed_layers().find(layer);
    if (!file.is_cpp() || allowed == allowed_layers().end()) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string name = included(file.lines[i]);
      if (name.empty() || name[0] != '"') continue;
      const std::string other = layer_of(name.substr(1));
      if (other != layer && allowed->second.count(other) == 0) {
        wrong.push_back(at(file, i + 1, layer + " includes " + name));
      }
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
}

/// A library, and the paths (by their beginning) that may include it.
struct Library {
  std::regex header;
  std::vector<std::string> users;
};

const std::vector<Library>& libraries() {
  static const std::vector<Library> kLibraries{
      {std::regex("<(simgrid|xbt)/.*>"), {"sim/engine/simgrid_", "tests/support/"}},
      {std::regex("<(nlohmann|valijson)/.*>"),
       {"sim/app/", "sim/cli/", "hwmodels/", "validation/", "gui/", "tests/"}},
      {std::regex("<simdjson.h>"), {"sim/trace/chrome_import"}},
      {std::regex("<CLI/.*>"), {"sim/cli/"}},
      {std::regex("<(boost/dll/.*|dlfcn.h)>"),
       {"sim/app/plugin_library", "validation/executors/cuda/"}},
      {std::regex("<ceres/.*>"), {"hwmodels/calibrate", "validation/runs/stack_solver"}},
      {std::regex("<Q[A-Za-z/]*>"), {"gui/", "tests/unit/gui/", "tests/bench/timeline_"}},
      {std::regex("<(cuda.*|cublas.*|cudnn.*|nccl.*)>"),
       {"validation/executors/cuda", "validation/codecs/cuda", "validation/probes",
        "tests/support/cuda_double/"}},
      {std::regex("<(cblas.h|openblas.*)>"),
       {"validation/executors/host", "validation/codecs", "validation/nn"}},
      {std::regex("<(mpi.h|boost/mpi.*)>"), {"validation/executors/host", "sim/app/sweep"}},
      {std::regex("<(gtest|gmock|rapidcheck|benchmark)/.*>"), {"tests/"}},
      {std::regex("<rapidcheck.h>"), {"tests/"}},
  };
  return kLibraries;
}

TEST(Tidy, LibrariesAreSeenOnlyWhereTheyBelong) {
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp()) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string name = included(file.lines[i]);
      for (const Library& library : libraries()) {
        if (!std::regex_match(name, library.header)) continue;
        const bool allowed =
            std::any_of(library.users.begin(), library.users.end(),
                        [&](const std::string& user) { return starts_with(file.path, user); });
        if (!allowed) wrong.push_back(at(file, i + 1, "includes " + name));
      }
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
}

// Headers of the standard library have neither a folder nor an ending.
TEST(Tidy, CoreNeedsOnlyTheStandardLibrary) {
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() || layer_of(file.path) != "sim/core") continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string name = included(file.lines[i]);
      if (!name.empty() && name[0] == '<' && name.find_first_of("/.") != std::string::npos) {
        wrong.push_back(at(file, i + 1, "includes " + name));
      }
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
}

TEST(Tidy, LinesFitIn100Columns) {
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    const bool code = file.is_cpp() || ends_with(file.path, ".cu") || ends_with(file.path, ".sh");
    if (!code) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      if (columns(file.lines[i]) > kMaxColumns) {
        wrong.push_back(at(file, i + 1, std::to_string(columns(file.lines[i])) + " columns"));
      }
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
}

TEST(Tidy, FunctionsFitIn70Lines) {
  std::vector<std::string> wrong;
  std::size_t seen = 0;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp()) continue;
    for (const Function& function : functions(file.lines)) {
      ++seen;
      if (function.lines > kMaxFunctionLines) {
        wrong.push_back(
            at(file, function.line, std::to_string(function.lines) + " lines: " + function.head));
      }
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
  EXPECT_GT(seen, 100u) << "the search for functions finds too few to be trusted";
}

// The words are put together here, so that this file does not find itself.
TEST(Tidy, NothingIsLeftForLaterAndNoMachineIsNamed) {
  const std::regex unfinished(std::string("\\b(TO") + "DO|FIX" + "ME|XX" + "X|HA" + "CK)\\b");
  const std::regex machine(std::string("(^|[^A-Za-z0-9_.~\\]}>)-])/(wo") + "rk|ro" + "ot|ho" +
                           "me|t" + "mp)(/|\\b)");
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      if (std::regex_search(file.lines[i], unfinished))
        wrong.push_back(at(file, i + 1, "unfinished"));
      if (std::regex_search(file.lines[i], machine))
        wrong.push_back(at(file, i + 1, "a machine's path"));
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
}

TEST(Tidy, FilesAreNamedAfterWhatTheyHold) {
  const std::regex forbidden("(^|_)(util|utils|common|manager|helper|helpers|misc)(_|\\.|$)");
  const std::regex snake("[a-z0-9_]+(\\.[a-z0-9_]+)*");
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    const std::string path = "/" + file.path;
    for (std::size_t from = 1; from < path.size();) {
      const std::size_t to = std::min(path.find('/', from), path.size());
      if (std::regex_search(path.substr(from, to - from), forbidden)) wrong.push_back(file.path);
      from = to + 1;
    }
    if (file.is_cpp() && !std::regex_match(file.name(), snake)) wrong.push_back(file.path);
  }
  EXPECT_THAT(wrong, IsEmpty());
}

TEST(Tidy, HeadersAreIncludedOnce) {
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    const bool guarded =
        std::find(file.lines.begin(), file.lines.end(), "#pragma once") != file.lines.end();
    if (file.is_header() && !guarded) wrong.push_back(file.path + ": no #pragma once");
  }
  EXPECT_THAT(wrong, IsEmpty());
}

// Every layer and every folder at the top has a README; it explains its sub-folders too. The one of
// scenarios is the reference of every key and may be as long as the schema asks.
TEST(Tidy, FoldersExplainThemselvesBriefly) {
  std::set<std::string> expected{"", "sim", "hwmodels", "strategies", "scenarios", "tests"};
  std::set<std::string> found;
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    if (file.is_cpp()) expected.insert(layer_of(file.path));
    if (file.name() != "README.md") continue;
    found.insert(file.folder());
    const std::size_t limit = file.folder().empty() ? kMaxTopReadmeLines : kMaxReadmeLines;
    if (file.lines.size() > limit && file.folder() != "scenarios") {
      wrong.push_back(file.path + ": " + std::to_string(file.lines.size()) + " lines");
    }
  }
  for (const std::string& folder : expected) {
    if (found.count(folder) == 0) wrong.push_back(folder + "/README.md is missing");
  }
  EXPECT_THAT(wrong, IsEmpty());
}

TEST(Tidy, BuildFilesNameTheirSourcesAndFetchNothing) {
  const std::regex globbing("file\\s*\\(\\s*GLOB|aux_source_directory");
  const std::regex fetching(
      "FetchContent|ExternalProject|file\\s*\\(\\s*DOWNLOAD|march=|ffast-math");
  std::vector<std::string> wrong;
  for (const SourceFile& file : source_files()) {
    const bool build = file.name() == "CMakeLists.txt" || ends_with(file.path, ".cmake");
    if (!build && file.name() != "CMakePresets.json") continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string code = file.lines[i].substr(0, file.lines[i].find('#'));
      if (std::regex_search(code, globbing) || std::regex_search(code, fetching)) {
        wrong.push_back(at(file, i + 1, code));
      }
    }
  }
  EXPECT_THAT(wrong, IsEmpty());
}

}  // namespace
}  // namespace gputwin::tidy
