#include "hwmodels/calibrate/predict.h"

#include "hwmodels/calibrate/gemm_fit.h"

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
    benchmark.sustained = device.format_rate;
    Cost cost = gemm_cost(benchmark, query.shape);
    const Seconds beside = beside_gemm(sample, device);
    cost.time = cost.time + beside;
    cost.terms[static_cast<std::size_t>(Term::Memory)] = cost.term(Term::Memory) + beside;
    return cost;
  }
};

}  // namespace

std::variant<Cost, std::string> sample_cost(const Sample& sample, const Device& device) {
  return std::visit(Predict{sample, device}, sample.query);
}

}  // namespace gputwin
