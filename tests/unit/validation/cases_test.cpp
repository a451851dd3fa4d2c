// Questions with checked answers: which commands they need, and what counts as held.
#include "validation/cases/cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "sim/core/error.h"

namespace gputwin::cases {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path written(const std::string& text) {
  static int files = 0;
  const fs::path path = fs::path(::testing::TempDir()) / ("case" + std::to_string(::getpid()) +
                                                          "_" + std::to_string(++files) + ".json");
  std::ofstream(path) << text;
  return path;
}

// A case with one check that a run named "r" answers, which ended with `exit` and printed `out`.
struct World {
  std::string check = R"({"metric": "t", "op": "approx", "value": 100, "tol_rel": 0.1})";
  std::string answer = R"({"value": {"run": "r", "at": "/time"}})";
  Ran ran{0, R"({"time": 95, "tables": [{"x": 2}]})", ""};

  Scored scored() const {
    const auto cases = read_cases(
        written(R"({"cases": [{"id": "A", "category": "memory", "answer": {"checks": [)" + check +
                "]}}]}"));
    const auto mapping = read_mapping(
        written(R"({"cases": {"A": {"runs": {"r": ["run", "x", "--json"]}, "checks": {"t": )" +
                answer + "}}}}"));
    const auto commands = commands_of(cases, mapping);
    EXPECT_EQ(commands.size(), 1u);
    return score(cases, mapping, commands, {ran}).at(0);
  }

  std::string refusal() const {
    try {
      scored();
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }
};

Verdict verdict(const std::string& op, double value, double tolerance, double predicted) {
  World w;
  w.check = R"({"metric": "t", "op": ")" + op + R"(", "value": )" + std::to_string(value) +
            R"(, "tol_rel": )" + std::to_string(tolerance) + "}";
  w.ran.out = R"({"time": )" + std::to_string(predicted) + "}";
  return w.scored().verdict;
}

// 100 +- 10 %: 90 and 110 hold, 89.9 does not; bounds may be missed by the tolerance, strict ones
// not.
TEST(Cases, ANumberHoldsWithinItsTolerance) {
  EXPECT_EQ(verdict("approx", 100, 0.1, 90), Verdict::Held);
  EXPECT_EQ(verdict("approx", 100, 0.1, 110), Verdict::Held);
  EXPECT_EQ(verdict("approx", 100, 0.1, 89.9), Verdict::Failed);
  EXPECT_EQ(verdict("eq", 100, 0.1, 101), Verdict::Failed);
  EXPECT_EQ(verdict("ge", 100, 0.1, 91), Verdict::Held);
  EXPECT_EQ(verdict("ge", 100, 0, 99), Verdict::Failed);
  EXPECT_EQ(verdict("le", 100, 0.1, 109), Verdict::Held);
  EXPECT_EQ(verdict("gt", 100, 0.1, 100), Verdict::Failed);
  EXPECT_EQ(verdict("lt", 100, 0.1, 99), Verdict::Held);
}

// (95 - 2 x 2.5) x 2 / 4 = 45.
TEST(Cases, AnswersAreComputedFromOutputs) {
  World w;
  w.answer = R"({"value": {"ratio": [{"difference": [{"run": "r", "at": "/time"},
      {"product": [{"run": "r", "at": "/tables/0/x"}, 2.5]}], "scale": 2}, 4]}})";
  w.check = R"({"metric": "t", "op": "eq", "value": 45})";
  EXPECT_EQ(w.scored().verdict, Verdict::Held);
  EXPECT_EQ(w.scored().predicted, "45");
}

TEST(Cases, AnOrderHoldsIfEveryStepFalls) {
  World w;
  w.check = R"({"metric": "t", "op": "order", "value": "a > b"})";
  w.answer = R"({"order": [{"run": "r", "at": "/time"}, {"run": "r", "at": "/tables/0/x"}]})";
  EXPECT_EQ(w.scored().verdict, Verdict::Held);
  w.answer = R"({"order": [{"run": "r", "at": "/time"}, {"run": "r", "at": "/time"}]})";
  EXPECT_EQ(w.scored().verdict, Verdict::Failed);
}

TEST(Cases, WhetherAJobFitsIsItsExitCode) {
  World w;
  w.check = R"({"metric": "t", "op": "eq", "value": false})";
  w.answer = R"({"value": {"fits": "r"}})";
  EXPECT_EQ(w.scored().verdict, Verdict::Failed);
  w.ran = {3, "", "does not fit"};
  EXPECT_EQ(w.scored().verdict, Verdict::Held);
}

TEST(Cases, ARefusalMustSayWhatTheAnswerNames) {
  World w;
  w.check = R"({"metric": "t", "op": "error_or_warning", "value": "heads"})";
  w.answer = R"({"fails": "r", "mentions": ["heads"]})";
  w.ran = {2, "", "tp 3 does not divide 16 heads"};
  EXPECT_EQ(w.scored().verdict, Verdict::Held);
  w.ran = {2, "", "no"};
  EXPECT_EQ(w.scored().verdict, Verdict::Failed);
  w.ran = {0, "{}", "heads"};
  EXPECT_EQ(w.scored().verdict, Verdict::Failed);
}

TEST(Cases, AnInfeasibleRunFailsItsCheckWithTheReason) {
  World w;
  w.ran = {3, "", "12 GiB too little\nmore"};
  EXPECT_EQ(w.scored().verdict, Verdict::Failed);
  EXPECT_THAT(w.scored().reason, HasSubstr("12 GiB too little"));
}

TEST(Cases, WhatIsNotScoredSaysWhy) {
  World w;
  w.answer = R"({"not_scorable": "a text answer"})";
  EXPECT_EQ(w.scored().verdict, Verdict::NotScorable);
  EXPECT_EQ(w.scored().reason, "a text answer");
  EXPECT_EQ(failed_share({w.scored()}), 0);
}

// A mapping that cannot be meant is refused with its place; it must not count as a failed answer.
TEST(Cases, ABrokenMappingIsRefusedWithItsPlace) {
  World w;
  w.answer = R"({"value": {"run": "other", "at": "/time"}})";
  EXPECT_THAT(w.refusal(), HasSubstr("/cases/A/checks/t/value/run"));
  w.answer = R"({"value": {"run": "r", "at": "/speed"}})";
  EXPECT_THAT(w.refusal(), HasSubstr("stands not in the output"));
  w.answer = R"({"value": 100})";
  EXPECT_THAT(w.refusal(), HasSubstr("predicts nothing"));
  w.answer = R"({"not_scorable": ""})";
  EXPECT_THAT(w.refusal(), HasSubstr("is no reason"));
  w.answer = R"({"value": {"ratio": [1]}})";
  EXPECT_THAT(w.refusal(), HasSubstr("write two expressions"));
  World bad_command;
  bad_command.ran = {2, "", "x: no such scenario"};
  EXPECT_THAT(bad_command.refusal(), HasSubstr("no such scenario"));
  EXPECT_THROW(read_mapping(written("{")), InputError);
  EXPECT_THROW(read_cases(written(R"({"cases": [{"id": 1}]})")), InputError);
}

// Every shipped mapping reads, and each case that is mapped has commands or says why it is not
// scored.
TEST(Cases, TheShippedMappingsRead) {
  const auto mapping = read_mapping(fs::path(GPUTWIN_SOURCE_DIR) / "validation/cases/mapping");
  EXPECT_GT(mapping.size(), 20u);
  for (const auto& [id, mapped] : mapping) {
    EXPECT_TRUE(mapped.node.contains("runs") || mapped.node.contains("not_scorable")) << id;
  }
}

}  // namespace
}  // namespace gputwin::cases
