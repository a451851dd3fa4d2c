// Least squares on log errors, and device files written from them.
#include "hwmodels/calibrate/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hwmodels/calibrate/device_file.h"

namespace gputwin {
namespace {

// World: t = a + b x exactly, but every tenth row is ten times too long. a = 3, b = 0.5.
TEST(LeastSquares, FindsTheLineThroughRowsOfWhichSomeAreOdd) {
  std::vector<double> x, t;
  for (int i = 1; i <= 100; ++i) {
    x.push_back(i);
    t.push_back((3.0 + 0.5 * i) * (i % 10 == 0 ? 10.0 : 1.0));
  }
  const auto errors = [&](std::span<const double> p, std::span<double> out) {
    for (std::size_t i = 0; i < x.size(); ++i) out[i] = std::log((p[0] + p[1] * x[i]) / t[i]);
  };
  const std::vector<FreeConstant> parameters{{1.0, 0.01, 100.0}, {1.0, 0.01, 100.0}};
  const std::vector<double> found = least_squares(parameters, x.size(), errors, 0.01);
  // SoftLOne pulls each of the 10 odd rows with weight 0.01 against 90 exact ones: a few permille.
  EXPECT_NEAR(found[0], 3.0, 0.06);
  EXPECT_NEAR(found[1], 0.5, 0.01);
  EXPECT_EQ(found, least_squares(parameters, x.size(), errors, 0.01)) << "to the last digit";
  for (const double value : found) EXPECT_EQ(value, rounded(value));
}

TEST(LeastSquares, KeepsToItsBounds) {
  const auto errors = [](std::span<const double> p, std::span<double> out) {
    for (double& e : out) e = std::log(p[0] / 9.0);
  };
  const std::vector<FreeConstant> parameters{{1.0, 0.5, 4.0}};
  EXPECT_NEAR(least_squares(parameters, 5, errors)[0], 4.0, 1e-5);
}

TEST(FitErrors, AreThoseOfTheTimesNotOfTheirLogarithms) {
  // Predictions 2 x and 0.5 x the measured time: errors +100 % and -50 %.
  const FitErrors errors = fit_errors(std::vector<double>{std::log(2.0), std::log(0.5)});
  EXPECT_NEAR(errors.mean, 0.75, 1e-12);
  EXPECT_EQ(errors.rows, 2u);
}

TEST(CalibratedDevice, KeepsWhatWasNotFittedAndSaysWhatWas) {
  const std::filesystem::path start =
      std::filesystem::path(GPUTWIN_SOURCE_DIR) / "hwmodels" / "devices" / "a100-sxm-80gb.json";
  FamilyFit fit{.family = "gemm",
                .numbers = {{"/gemm/start_up_us", {2.25}, false}},
                .texts = {},
                .inside = {100, 0.041, 0.1},
                .outside = {25, 0.052, 0.12},
                .range = "m 1-100",
                .tables = "mine.csv"};
  const auto before = nlohmann::json::parse(std::ifstream(start));
  const auto after = nlohmann::json::parse(calibrated_device(start, {fit}));
  EXPECT_EQ(after["gemm"]["start_up_us"]["value"], 2.25);
  EXPECT_EQ(after["gemm"]["start_up_us"]["kind"], "fitted");
  EXPECT_EQ(after["gemm"]["start_up_us"]["source"],
            "gputwin calibrate, mine.csv: 100 rows, mean error 4.1 %; kept out 25 rows, 5.2 %");
  EXPECT_EQ(after["hbm"], before["hbm"]);
  EXPECT_EQ(after.size(), before.size());
}

}  // namespace
}  // namespace gputwin
