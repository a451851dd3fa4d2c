// gputwin validate ops and calibrate, as a person meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

using ::testing::HasSubstr;

const std::string kProgram = std::string("'") + GPUTWIN_PROGRAM + "' ";

std::string table(const ScratchFolder& folder, const std::string& text) {
  const auto path = folder.path() / "mine.csv";
  std::ofstream(path) << text;
  return "'" + path.string() + "'";
}

TEST(ValidateOps, PrintsTheContractOfTheDesignAndWhatItDidNotPredict) {
  const ScratchFolder folder("validate_ops");
  const std::string file = table(folder,
                                 "gpu,dtype,m,n,k,time_us,note\n"
                                 "a100_sxm,bfloat16,4096,4096,4096,600,x\n"
                                 "a100_sxm,nvfp4,4096,4096,4096,600,x\n"
                                 "h100-turbo,bfloat16,4096,4096,4096,600,x\n");
  const ProgramOutput out = run_command(kProgram + "validate ops " + file + " --json");
  ASSERT_EQ(out.exit_code, 0) << out.text;
  const auto json = nlohmann::json::parse(out.text);
  const auto& a100 = json["tables"][0];
  EXPECT_EQ(a100["table"], "gemm_aiconfigurator");
  EXPECT_EQ(a100["device"], "a100-sxm-80gb");
  EXPECT_EQ(a100["rows"], 2);
  EXPECT_EQ(a100["predicted"], 1);
  for (const char* key : {"median", "mean", "p90", "bias", "coverage80"}) {
    EXPECT_TRUE(a100[key].is_number()) << key;
  }
  EXPECT_EQ(json["not_predicted"].size(), 2u);
  // 4096^3 takes 137 GFLOP: at least 440 us at the peak of 312 TFLOP/s, so 600 us is 10 x 60.
  const std::string slow = table(folder,
                                 "gpu,dtype,m,n,k,time_us\n"
                                 "a100_sxm,bfloat16,4096,4096,4096,6000\n");
  EXPECT_EQ(run_command(kProgram + "validate ops " + slow + " --max-error 0.2").exit_code, 1);
}

TEST(ValidateOps, RefusesForeignTables) {
  const ScratchFolder folder("validate_ops_foreign");
  const ProgramOutput out =
      run_command(kProgram + "validate ops " + table(folder, "a,b\n1,2\n") + " 2>&1");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_THAT(out.text, HasSubstr("is the header of no known table"));
}

// The shipped constants come out of the tables that the repository keeps, to the byte.
TEST(Calibrate, RefittingGivesTheShippedFiles) {
  const ScratchFolder folder("refit");
  const auto shipped = std::filesystem::path(GPUTWIN_SOURCE_DIR) / "hwmodels";
  const auto fresh = folder.path() / "hwmodels";
  std::filesystem::copy(shipped, fresh, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(fresh / "residuals");
  std::filesystem::remove_all(fresh / "collectives" / "curves");
  const ProgramOutput out =
      run_command(kProgram + "calibrate '" + shipped.string() + "'/measurements/*.csv.gz --all '" +
                  fresh.string() + "' 2>&1");
  ASSERT_EQ(out.exit_code, 0) << out.text;
  const ProgramOutput difference =
      run_command("diff -rq '" + shipped.string() + "' '" + fresh.string() + "'");
  EXPECT_EQ(difference.text, "");
}

TEST(Calibrate, RefusesATableWithoutTheDeviceAndLeavesNoFile) {
  const ScratchFolder folder("calibrate");
  const std::string file = table(folder, "gpu,dtype,m,n,k,time_us\na100_sxm,bfloat16,64,64,64,6\n");
  const auto out_file = folder.path() / "out.json";
  const ProgramOutput out = run_command(kProgram + "calibrate " + file + " --device l4 --out '" +
                                        out_file.string() + "' 2>&1");
  EXPECT_EQ(out.exit_code, 2);
  EXPECT_THAT(out.text, HasSubstr("too few rows of l4"));
  EXPECT_FALSE(std::filesystem::exists(out_file));
  EXPECT_EQ(run_command(kProgram + "calibrate " + file + " --device l4x").exit_code, 2);
}

}  // namespace
}  // namespace gputwin
