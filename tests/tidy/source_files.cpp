#include "tests/tidy/source_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace gputwin::tidy {

namespace fs = std::filesystem;

std::string SourceFile::folder() const {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

std::string SourceFile::name() const { return path.substr(path.rfind('/') + 1); }

bool SourceFile::is_header() const { return ends_with(path, ".h"); }

bool SourceFile::is_cpp() const { return is_header() || ends_with(path, ".cpp"); }

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::size_t columns(std::string_view line) {
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;  // not a continuation byte of UTF-8
  }));
}

std::string included(const std::string& line) {
  if (!starts_with(line, "#include ")) return "";
  const std::string rest = line.substr(9);
  if (rest.size() < 3) return "";
  const char end = rest[0] == '<' ? '>' : '"';
  const std::size_t stop = rest.find(end, 1);
  return stop == std::string::npos ? "" : rest.substr(0, stop + 1);
}

namespace {

bool is_text(const fs::path& path) {
  static const std::set<std::string> kEndings{".h",  ".cpp",  ".cu", ".cuh", ".txt", ".cmake",
                                              ".md", ".json", ".sh", ".in",  ".yml", ".py"};
  static const std::set<std::string> kNames{"run", ".clang-format", ".clang-tidy", ".gitignore"};
  return kEndings.count(path.extension().string()) > 0 ||
         kNames.count(path.filename().string()) > 0;
}

SourceFile read(const fs::path& root, const fs::path& path) {
  SourceFile file{path.lexically_relative(root).generic_string(), {}};
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) file.lines.push_back(line);
  return file;
}

std::vector<SourceFile> read_all() {
  const fs::path root = GPUTWIN_SOURCE_DIR;
  std::vector<SourceFile> files;
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file() && is_text(entry.path())) files.push_back(read(root, entry.path()));
  }
  for (const char* top :
       {".ci", "sim", "hwmodels", "strategies", "validation", "gui", "scenarios", "tests"}) {
    if (!fs::exists(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top)) {
      if (!entry.is_regular_file() || !is_text(entry.path())) continue;
      SourceFile file = read(root, entry.path());
      const bool generated =
          starts_with(file.path, "tests/golden/") && ends_with(file.path, ".json");
      if (!generated) files.push_back(std::move(file));
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

const std::vector<SourceFile>& source_files() {
  static const std::vector<SourceFile> files = read_all();
  return files;
}

}  // namespace gputwin::tidy
