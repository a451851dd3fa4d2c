// A computer's description from the tables of its probes.
#include "hwmodels/calibrate/processor_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "hwmodels/calibrate/device_file.h"
#include "hwmodels/device.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;

class ProcessorFit : public testing::Test {
 protected:
  ProcessorFit() : folder_(fs::temp_directory_path() / ("probes_" + std::to_string(getpid()))) {
    fs::create_directories(folder_);
  }
  ~ProcessorFit() override { fs::remove_all(folder_); }

  CsvTable table(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return CsvTable::read(folder_ / name);
  }
  fs::path folder_;
};

// World: t = 2 us + flops / 50 GFLOP/s + operand bytes / 5 GB/s + result bytes / 8 GB/s, to the
// digits of the table.
std::string products() {
  ProductModel truth{
      Seconds(2e-6), FlopsPerSecond(50e9), BytesPerSecond(5e9), BytesPerSecond(8e9), {}};
  std::string text = "gpu,op,batch,m,n,k,accumulate,time_us\n";
  for (const int m : {16, 48, 128, 320}) {
    for (const int n : {32, 96, 256}) {
      for (const int k : {24, 64, 512}) {
        const ProductShape shape{.m = double(m), .n = double(n), .k = double(k)};
        text += "host,gemm_nt,1," + std::to_string(m) + "," + std::to_string(n) + "," +
                std::to_string(k) + ",0," + std::to_string(product_formula(truth, shape) * 1e6) +
                "\n";
      }
    }
  }
  return text;
}

TEST_F(ProcessorFit, FindsTheConstantsOfProducts) {
  const std::vector<CsvTable> tables{table("products.csv", products())};
  const std::vector<FamilyFit> fits = fit_processor(tables);
  ASSERT_EQ(fits.size(), 1u);
  EXPECT_EQ(fits[0].numbers[1].pointer, "/processor/products/gemm_nt/rate_GFLOPS");
  // Large operands and their arithmetic grow together: the rate alone is known to a tenth.
  EXPECT_NEAR(fits[0].numbers[1].values[0], 50, 5);
  EXPECT_GT(fits[0].outside.rows, 0u);
  EXPECT_LT(fits[0].outside.mean, 0.03);  // the factor by size bends exact rows a little
}

// 1 KB in 1, 2 and 90 us, 4 KB in 8 us: the middle one counts. 1,000 and 4,096 lie in bins of
// their own.
TEST_F(ProcessorFit, CurvesAreMediansBySize) {
  const SizeCurve curve = median_curve(std::vector<double>{1000, 1000, 1000, 4096},
                                       std::vector<double>{1e-6, 90e-6, 2e-6, 8e-6});
  EXPECT_THAT(curve.size, testing::ElementsAre(1000, 4096));
  EXPECT_THAT(curve.value, testing::ElementsAre(testing::DoubleEq(2e-6), testing::DoubleEq(8e-6)));
}

// World: 100 ns a row and 0.5 ns an element of 12 bytes, sizes alike in bytes but not in rows.
TEST_F(ProcessorFit, RowsOfASoftmaxCostBesidesTheirBytes) {
  std::string text = "gpu,op,rows,cols,bytes,time_us\n";
  for (const int rows : {64, 128, 256, 512, 1024}) {
    for (const int cols : {32, 64, 128}) {
      text += "host,softmax_forward.causal," + std::to_string(rows) + "," + std::to_string(cols) +
              "," + std::to_string(12 * rows * cols) + "," +
              std::to_string(rows * (0.1 + 0.0005 * cols)) + "\n";
    }
  }
  const std::vector<CsvTable> tables{table("operators.csv", text)};
  const std::vector<FamilyFit> fits = fit_processor(tables);
  ASSERT_EQ(fits.size(), 1u);
  EXPECT_EQ(fits[0].numbers[2].pointer, "/processor/operators/softmax_forward.causal/row_ns");
  // Half-octaves of bytes hold one or two shapes each, so the curve can take a tenth of it.
  EXPECT_NEAR(fits[0].numbers[2].values[0], 100, 15);
  EXPECT_LT(fits[0].inside.mean, 0.02);
}

TEST_F(ProcessorFit, GivesADeviceThatLoadsUnderItsOwnName) {
  const std::vector<CsvTable> tables{
      table("products.csv", products()),
      table("operators.csv", "gpu,op,rows,cols,bytes,time_us\nhost,add,1,256,3072,1.5\n"),
      table("collectives.csv",
            "system,collective,nranks,size_bytes,time_us\n"
            "host,all_reduce,2,1024,30\n"),
      table("copies.csv", "gpu,direction,size_bytes,time_us\nhost,h2d,1024,4\n"),
      table("machine.csv",
            "gpu,quantity,value\nhost,processor/cores,8\nhost,processor/cores,4\n"
            "host,processor/cores,8\n")};
  const fs::path start = fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels" / "devices" / "host-cpu.json";
  const fs::path made = folder_ / "mine.json";
  std::ofstream(made) << calibrated_device(start, fit_processor(tables), "mine");
  const Device device = load_device(made);
  EXPECT_EQ(device.name, "mine");
  EXPECT_EQ(device.processor->cores, 8);
  EXPECT_DOUBLE_EQ(device.processor->operators.at("add").curve.at(3072), 1.5e-6);
  EXPECT_DOUBLE_EQ(device.processor->collectives.at("all_reduce").at(1024), 30e-6);
}

TEST_F(ProcessorFit, NamesTheLineOfABrokenRowAndATableItDoesNotKnow) {
  const auto message = [](const CsvTable& t) {
    try {
      fit_processor(std::vector<CsvTable>{t});
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(table("a.csv", "gpu,op,rows,cols,bytes,time_us\nhost,add,1,2,24,0\n")),
              testing::AllOf(testing::HasSubstr("a.csv"), testing::HasSubstr("2")));
  EXPECT_THAT(message(table("b.csv", "gpu,wind\nhost,3\n")), testing::HasSubstr("no table"));
}

}  // namespace
}  // namespace gputwin
