// Probes of this computer: tables, going on after an end, and plans against their predictions.
#include "validation/probes/probes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "hwmodels/calibrate/device_file.h"
#include "hwmodels/calibrate/processor_fit.h"
#include "sim/core/error.h"
#include "validation/probes/host_validation.h"

namespace gputwin::probes {
namespace {

namespace fs = std::filesystem;

class Probes : public testing::Test {
 protected:
  Probes() : folder_(fs::temp_directory_path() / ("probes_test_" + std::to_string(getpid()))) {}
  ~Probes() override { fs::remove_all(folder_); }

  ProbeSummary run(std::vector<std::string> only, double time_limit_s = 300) {
    return run_probes({folder_, std::move(only), true, time_limit_s},
                      [](double, const std::string&) { return true; });
  }
  std::string calibrated() {
    std::vector<CsvTable> tables;
    for (const fs::path& t : run({}).tables) tables.push_back(CsvTable::read(t));
    const fs::path start = fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels" / "devices" / "host-cpu.json";
    const fs::path made = folder_ / "fresh.json";
    std::ofstream(made) << calibrated_device(start, fit_processor(tables), "fresh");
    return made.string();
  }
  fs::path folder_;
};

TEST_F(Probes, GoOnWhereTheyWereEnded) {
  const ProbeSummary none = run({"copies"}, 1e-9);
  EXPECT_EQ(none.measured, 0u);
  EXPECT_EQ(none.left, 3u);
  int asked = 0;
  const ProbeSummary one = run_probes({folder_, {"copies"}, true, 300},
                                      [&](double, const std::string&) { return ++asked < 2; });
  EXPECT_EQ(one.measured, 1u);
  EXPECT_EQ(one.left, 2u);
  const ProbeSummary rest = run({"copies"});
  EXPECT_EQ(rest.kept, 1u);
  EXPECT_EQ(rest.measured, 2u);
  const CsvTable table = CsvTable::read(folder_ / "copies.csv");
  EXPECT_THAT(table.columns(), testing::ElementsAre("gpu", "direction", "size_bytes", "time_us"));
  EXPECT_EQ(table.rows(), 3u * 4u);  // 256 B to 256 KiB in steps of eight
  for (std::size_t r = 0; r < table.rows(); ++r) EXPECT_GT(table.number(r, "time_us"), 0);
}

TEST_F(Probes, NameAGroupThatIsNone) {
  try {
    run({"copis"});
    FAIL() << "no error";
  } catch (const InputError& e) {
    EXPECT_THAT(std::string(e.what()), testing::HasSubstr("copies"));
  }
}

TEST_F(Probes, RefuseAPartThatIsBroken) {
  run({"system"});
  std::ofstream(folder_ / "done" / "system.quick.csv") << "no comma\n";
  EXPECT_THROW(run({"system"}), InputError);
}

// A freshly calibrated computer predicts small plans within a wide bound on a machine that does
// other things too, and variants that it says are twice apart come in the right order.
TEST_F(Probes, PlansRunAboutAsLongAsPredicted) {
  ValidationOptions options;
  options.device = calibrated();
  options.quick = true;
  options.repeats = 3;
  options.bodies = 4;
  const HostValidation v = validate_host(options, [](double) { return true; });
  ASSERT_EQ(v.cases.size(), host_cases(true).size());
  for (const CaseResult& c : v.cases) {
    // Wake-ups wait for whatever else the machine does: slower by far, but never much faster.
    EXPECT_GT(c.measured_s, c.predicted_s / 2) << c.name;
    EXPECT_LT(c.measured_s, c.predicted_s * 30) << c.name;
    EXPECT_GT(c.kinds.size(), 10u) << c.name;
  }
  bool judged = false;
  for (const Order& o : v.orders) {
    if (o.predicted < 2.0) continue;
    judged = true;
    EXPECT_TRUE(o.right()) << o.faster << " before " << o.slower << ": " << o.measured;
  }
  EXPECT_TRUE(judged) << "no variants are twice apart: nothing was judged";
}

// The shipped computer without jitter and with sigma 0.4. One rank on one stream takes longer by
// the mean of the factor, exp(0.4^2 / 2) = 1.083, give or take what 15 seeds of some thirty
// products that matter leave, 0.4 / sqrt(15 x 30) = 0.02 for a mean and more for a median; two
// ranks that meet at every layer also wait for the later of them. Operations stay at their medians,
// but for the pace of the computer meanwhile.
TEST_F(Probes, JitterLengthensIterationsAndMakesRanksWait) {
  const auto predicted = [&](double sigma) {
    const fs::path shipped =
        fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels" / "devices" / "host-cpu.json";
    auto device = nlohmann::json::parse(std::ifstream(shipped));
    device["name"] = "jitter";
    device["processor"]["jitter_sigma"] = {
        {"value", sigma}, {"source", "this test"}, {"kind", "assumed"}};
    fs::create_directories(folder_);
    ValidationOptions options;
    options.device = (folder_ / "jitter.json").string();
    std::ofstream(options.device) << device;
    options.quick = true, options.repeats = 1, options.bodies = 2;
    std::map<std::string, CaseResult> cases;
    for (CaseResult& c : validate_host(options, [](double) { return true; }).cases) {
      cases.emplace(c.name, std::move(c));
    }
    return cases;
  };
  const auto still = predicted(0.0), shaken = predicted(0.4);
  const auto longer = [&](const char* name) {
    return shaken.at(name).as_probed_s / still.at(name).as_probed_s;
  };
  EXPECT_NEAR(longer("on_device"), std::exp(0.08), 0.06);
  EXPECT_GT(longer("tp2_fast_link"), longer("on_device") + 0.02);
  const auto operations_s = [](const CaseResult& c) {
    double all = 0;
    for (const KindError& k : c.kinds) all += k.predicted_s;
    return all / c.pace;
  };
  const double alone = operations_s(still.at("on_device"));
  EXPECT_NEAR(operations_s(shaken.at("on_device")) / alone, 1.0, 1e-6);
}

}  // namespace
}  // namespace gputwin::probes
