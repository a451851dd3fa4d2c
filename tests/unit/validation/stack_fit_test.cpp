// Factors that find their way into files of stacks, and the families runs belong to.
#include "validation/runs/stack_fit.h"

#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "validation/runs/stack_origin.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

Json constant(double value) {
  return {{"value", value}, {"source", "a test"}, {"kind", "assumed"}};
}

Json stack_json(const std::string& name) {
  return {{"name", name},
          {"nccl", {{"nvls", constant(1)}}},
          {"host",
           {{"launch_us", constant(4)},
            {"collective_launch_us", constant(12)},
            {"queue_depth", constant(1024)}}}};
}

class StackFiles : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("stacks_") + info->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write("known", stack_json("known"));
    write("default", stack_json("default"));
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const Json& json) const {
    std::ofstream(folder_ / (name + ".json")) << json.dump(1) << "\n";
  }
  Json read(const std::string& name) const {
    std::ifstream in(folder_ / (name + ".json"));
    return Json::parse(in);
  }
  Stack load(const std::string& name) const { return load_stack(folder_ / (name + ".json")); }

  fs::path folder_;
};

FittedStack fitted(double gemm, std::optional<Architecture> architecture) {
  FittedStack stack;
  stack.family = "known";
  stack.architecture = architecture;
  stack.groups = {"g", "h"};
  stack.runs = 20;
  stack.factors[static_cast<std::size_t>(Factor::Gemm)] = gemm;
  return stack;
}

TEST_F(StackFiles, GetFactorsByArchitectureAndKeepTheRest) {
  Json before = stack_json("known");
  before["factors"] = {{"attention_time", constant(1.5)}};
  write("known", before);
  StackFit fit;
  fit.stacks = {fitted(1.1, std::nullopt), fitted(1.3, Architecture::Hopper)};
  write_stack_factors(fit, folder_);
  const Stack stack = load("known");
  EXPECT_EQ(stack.on(Architecture::Ampere).factor(Factor::Gemm), 1.1);
  EXPECT_EQ(stack.on(Architecture::Hopper).factor(Factor::Gemm), 1.3);
  EXPECT_EQ(stack.factor(Factor::Attention), 1.0);  // of the fit before
  EXPECT_TRUE(stack.nvls);
  EXPECT_DOUBLE_EQ(stack.host.launch.value, 4e-6);
  const Json gemm = read("known")["factors"]["gemm_time"];
  EXPECT_EQ(gemm["source"],
            "fitted on 20 runs (groups g, h) by gputwin validate runs --fit-stacks");
  EXPECT_EQ(gemm["kind"], "fitted");
  EXPECT_FALSE(read("known")["factors"].contains("attention_time"));
}

TEST_F(StackFiles, OfOtherFamiliesStayAsTheyAre) {
  const Json before = read("default");
  StackFit fit;
  fit.stacks = {fitted(1.1, std::nullopt)};
  write_stack_factors(fit, folder_);
  EXPECT_EQ(read("default"), before);
}

// Writing twice gives the same bytes.
TEST_F(StackFiles, AreStable) {
  StackFit fit;
  fit.stacks = {fitted(1.1, std::nullopt), fitted(1.3, Architecture::Hopper)};
  write_stack_factors(fit, folder_);
  const std::string once = read("known").dump();
  write_stack_factors(fit, folder_);
  EXPECT_EQ(read("known").dump(), once);
}

// The deviation of unknown stacks is written where five stacks or more show it, and an unknown
// stack then says how wide its interval is; known ones do not.
TEST_F(StackFiles, HoldTheDeviationOfUnknownStacks) {
  StackFit fit;
  fit.unknown_deviation = 0.25;
  fit.deviation_stacks = 4;
  write_stack_factors(fit, folder_);
  EXPECT_EQ(choose_stack(folder_, "other").deviation, 0);
  fit.deviation_stacks = 5;
  write_stack_factors(fit, folder_);
  EXPECT_EQ(choose_stack(folder_, "other").deviation, 0.25);
  EXPECT_EQ(choose_stack(folder_, "known-2").deviation, 0);
}

PublishedRun run_on(const char* stack, const char* device) {
  PublishedRun run;
  run.config = {{"stack", stack}, {"device_id", device}};
  return run;
}

TEST(StackOrigins, AreFamilyAndArchitecture) {
  const fs::path hardware = fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels";
  const std::vector<StackOrigin> origins = stack_origins(
      {run_on("megatron-lm-2021-05", "v100-sxm2-16gb"), run_on("nemo-24.07", "h100-sxm-80gb"),
       run_on("nobody-knows", "no-such-device")},
      hardware);
  EXPECT_EQ(origins[0].family, "megatron-lm-2021");
  EXPECT_EQ(origins[0].architecture, Architecture::Volta);
  EXPECT_THAT(origins[0].other_family, testing::HasSubstr("megatron-lm-202"));
  EXPECT_NE(origins[0].other_family, "megatron-lm-2021");
  EXPECT_EQ(origins[1].family, "nemo");
  EXPECT_EQ(origins[1].other_family, "default");
  EXPECT_EQ(origins[2].family, "");
  EXPECT_EQ(origins[2].architecture, std::nullopt);
}

TEST(PassProgress, GoesOnFromPassToPass) {
  std::vector<double> told;
  PassProgress passes([&](double share) { return told.push_back(share), true; }, 4);
  passes.next(1)(0.5);
  passes.next(3)(0.5);
  EXPECT_THAT(told, testing::ElementsAre(0.125, 0.625));
}

TEST(PassProgress, PassesTheWishToStopOn) {
  PassProgress passes([](double) { return false; }, 1);
  EXPECT_FALSE(passes.next(1)(0.1));
}

}  // namespace
}  // namespace gputwin
