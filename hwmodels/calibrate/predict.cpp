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
    Device benchmark =
        device;  // short runs reach the rate of the boost clock, training runs do not
    if (sample.library != "transformer-engine") benchmark.sustained = device.format_rate;
    Cost cost = gemm_cost(benchmark, query.shape);
    const Seconds beside = beside_gemm(sample, device);
    cost.time = cost.time + beside;
    cost.terms[static_cast<std::size_t>(Term::Memory)] = cost.term(Term::Memory) + beside;
    return cost;
  }
  Answer operator()(const AttentionShape& s) const {
    return known(attention_shape_cost(device, s));
  }
  Answer operator()(const MoeShape& s) const { return known(moe_cost(device, s)); }
  Answer operator()(const PointwiseShape& s) const { return known(pointwise_cost(device, s)); }
  Answer operator()(const ConvolutionShape& s) const { return known(convolution_cost(device, s)); }
  Answer operator()(const RnnShape& s) const { return known(rnn_cost(device, s)); }
  Answer operator()(const AllReduceShape& s) const { return known(all_reduce_cost(device, s)); }
  Answer operator()(const ExpertExchangeShape& s) const {
    return known(expert_exchange_cost(device, s));
  }

  Answer operator()(const WholeModelShape& s) const {
    if (s.layers == 0) return std::string("the model, or a pass on several devices, is not known");
    return known(whole_model_cost(device, s));
  }

  Answer operator()(const PromptPassShape& s) const {
    if (s.layers == 0) return std::string("the model is not known");
    return known(prompt_pass_cost(device, s));
  }

  Answer operator()(const CollectiveRow&) const {
    return std::string("a collective runs on a cluster, not on a device");
  }

  static Answer known(const Cost& cost) {
    if (cost.time.value > 0) return cost;
    return std::string("the device has no constants for this kind of kernel");
  }
};

}  // namespace

std::variant<Cost, std::string> sample_cost(const Sample& sample, const Device& device) {
  return std::visit(Predict{sample, device}, sample.query);
}

}  // namespace gputwin
