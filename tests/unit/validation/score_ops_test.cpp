// Errors of operations by table, device, group and band.
#include <gtest/gtest.h>

#include "validation/ops/ops.h"

namespace gputwin {
namespace {

OpPrediction row(const std::string& device, const std::string& group, double measured_us,
                 double error, double low = 0.9, double high = 1.1) {
  OpPrediction out;
  out.sample.device = device;
  out.sample.group = group;
  out.sample.time = Seconds(measured_us * 1e-6);
  out.predicted_s = measured_us * 1e-6 * (1 + error);
  out.low_s = out.predicted_s * low;
  out.high_s = out.predicted_s * high;
  return out;
}

const OpErrors& line(const std::vector<OpErrors>& lines, const std::string& device,
                     const std::string& part) {
  for (const OpErrors& e : lines) {
    if (e.device == device && e.part == part) return e;
  }
  ADD_FAILURE() << device << " " << part;
  return lines.front();
}

// World: four rows of a, errors +10, -20, +30 % and one that could not be predicted; one row of b,
// exact.
TEST(ScoreOps, CountsErrorsByDeviceGroupAndBand) {
  OpPrediction refused = row("a", "fp8", 5, 0);
  refused.predicted_s = 0;
  refused.reason = "no such format";
  const std::vector<OpTable> tables{
      {"t.csv",
       "gemm",
       {row("a", "bf16", 5, 0.1), row("a", "bf16", 50, -0.2), row("a", "fp8", 500, 0.3, 0.5, 2.0),
        refused, row("b", "bf16", 5, 0.0)}}};
  const std::vector<OpErrors> lines = score_ops(tables);
  const OpErrors& a = line(lines, "a", "");
  EXPECT_EQ(a.rows, 4u);
  EXPECT_EQ(a.predicted, 3u);
  EXPECT_NEAR(a.mean, 0.2, 1e-12);
  EXPECT_NEAR(a.median, 0.2, 1e-12);
  EXPECT_NEAR(a.bias, 0.1, 1e-12);
  // 5.5 us is 4.95 to 6.05: 5 is inside. 40 us is 36 to 44: 50 is not. 650 us is 325 to 1,300.
  EXPECT_NEAR(a.coverage, 2.0 / 3.0, 1e-12);
  EXPECT_NEAR(line(lines, "a", "bf16").mean, 0.15, 1e-12);
  EXPECT_EQ(line(lines, "a", "< 10 us").rows, 2u);
  EXPECT_EQ(line(lines, "", "").predicted, 4u);
  EXPECT_NE(ops_report(tables).find("t.csv: 1 rows not predicted: no such format"),
            std::string::npos);
}

}  // namespace
}  // namespace gputwin
