#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tidy/functions.h"
#include "tests/tidy/source_files.h"

namespace gputwin::tidy {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::pair<std::string, std::size_t>> heads_and_lines(const std::string& text) {
  std::vector<std::pair<std::string, std::size_t>> out;
  for (const Function& f : functions(lines_of(text))) out.emplace_back(f.head, f.lines);
  return out;
}

using Pairs = std::vector<std::pair<std::string, std::size_t>>;

TEST(TidyFunctions, FindsFreeAndMemberFunctions) {
  EXPECT_EQ(heads_and_lines(R"(
namespace a {
int f(int x) {
  return x;
}
struct S : Base {
  int g() const noexcept { return 1; }
  int value = 3;
};
template <class T> auto h(T t) -> int
{
  if (t) { return 1; }
  return 2;
}
}  // namespace a
)"),
            (Pairs{{"int f(int x)", 3},
                   {"int g() const noexcept", 1},
                   {"template <class T> auto h(T t) -> int", 4}}));
}

// The braces of initialisers are not the body.
TEST(TidyFunctions, ReadsConstructorsWithInitialiserLists) {
  const auto found = functions(lines_of("A::A(int x)\n    : a_{x}, b_(x), c_{1} {\n  go();\n}\n"));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].line, 2u);
  EXPECT_EQ(found[0].lines, 3u);
}

TEST(TidyFunctions, IgnoresTablesLambdasCommentsAndLiterals) {
  EXPECT_EQ(heads_and_lines(R"x(
// void comment() {
constexpr int kTable[] = {1, 2};
const std::vector<int> v = make({1, 2});
const char* text = "void f() {";
const char* raw = R"(void g() {)";
const auto lambda = [](int x) {
  return x;
};
enum class E { A, B };
void real() { char c = '{'; }
)x"),
            (Pairs{{"void real()", 1}}));
}

TEST(TidyFunctions, CountsLambdasWithTheirFunction) {
  EXPECT_EQ(heads_and_lines("TEST(A, B) {\n  auto f = [] {\n    return 1;\n  };\n}\n"),
            (Pairs{{"TEST(A, B)", 5}}));
}

TEST(TidyFunctions, CountsColumnsAsCharacters) { EXPECT_EQ(columns("a·b█"), 4u); }

TEST(TidyFunctions, ReadsIncludes) {
  EXPECT_EQ(included("#include \"sim/core/ids.h\""), "\"sim/core/ids.h\"");
  EXPECT_EQ(included("#include <vector>  // why"), "<vector>");
  EXPECT_EQ(included("int include = 1;"), "");
}

}  // namespace
}  // namespace gputwin::tidy
