#include "hwmodels/calibrate/predict.h"

namespace gputwin {

namespace {

using Answer = std::variant<Cost, std::string>;

struct Predict {
  const Sample& sample;
  const Device& device;

  Answer operator()(const GemmQuery& query) const {
    if (device.peak[static_cast<std::size_t>(query.shape.dtype)].value <= 0) {
      return std::string("the device does not multiply this format");
    }
    Device benchmark = device;  // short runs reach the rate of the boost clock
    benchmark.sustained.fill(1.0);
    return gemm_cost(benchmark, query.shape);
  }
};

}  // namespace

std::variant<Cost, std::string> sample_cost(const Sample& sample, const Device& device) {
  return std::visit(Predict{sample, device}, sample.query);
}

}  // namespace gputwin
