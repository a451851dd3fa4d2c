#include "hwmodels/calibrate/gemm_fit.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "hwmodels/calibrate/boost.h"
#include "hwmodels/kernels/gemm.h"

namespace gputwin {

namespace {

constexpr std::size_t kFewest = 200;    // rows that a fit of seven constants needs
constexpr double kLargeFlops = 3e10;    // multiplications whose rate is that of the format
constexpr double kQuantiseShare = 0.8;  // of the bandwidth, as other element-wise kernels

const GemmQuery* gemm_of(const Sample& sample) { return std::get_if<GemmQuery>(&sample.query); }

Device at_benchmark_clocks(Device device) {
  device.sustained = device.format_rate;
  return device;
}

void set_constants(GemmParameters& g, std::span<const double> x) {
  g.start_up = Seconds(x[0] * 1e-6);
  g.tile_efficiency = x[1];
  g.tile_saturation = x[2];
  g.k_overhead = x[3];
  g.memory_efficiency = x[4];
  g.norm_exponent = x[5];
  g.split_cost = Seconds(x[6] * 1e-6);
}

constexpr std::array<const char*, 7> kKeys{"start_up_us",  "tile_efficiency",   "tile_saturation",
                                           "k_overhead",   "memory_efficiency", "norm_exponent",
                                           "split_cost_us"};

// e0 may pass the data sheet's peak a little: that is stated at a lower clock than some parts run.
const std::vector<Parameter> kStart{{3, 0.3, 15},  {0.9, 0.2, 1},  {1.0, 0.3, 5}, {50, 0, 500},
                                    {0.8, 0.2, 1}, {2.5, 1.0, 10}, {2, 0, 15}};

std::vector<const Sample*> of_format(std::span<const Sample> samples, const Device& device,
                                     DType format, bool test) {
  std::vector<const Sample*> out;
  for (const Sample& s : samples) {
    const GemmQuery* query = gemm_of(s);
    if (!query || s.device != device.name || is_test(s) != test) continue;
    if (device.compute_format(query->shape.dtype) == format) out.push_back(&s);
  }
  return out;
}

double log_error(const Sample& sample, const Device& device) {
  double physical = 0;
  gemm_feature_values(device, gemm_of(sample)->shape, physical);
  return std::log((physical + beside_gemm(sample, device).value) / sample.time.value);
}

std::vector<double> log_errors(const std::vector<const Sample*>& samples, const Device& device) {
  std::vector<double> errors;
  for (const Sample* s : samples) errors.push_back(log_error(*s, device));
  return errors;
}

GemmParameters& parameters_of(Device& device, DType format) {
  if (format != DType::F32) return device.gemm;
  if (!device.gemm_fp32) device.gemm_fp32 = device.gemm;
  return *device.gemm_fp32;
}

}  // namespace

Seconds beside_gemm(const Sample& sample, const Device& device) {
  const GemmShape& shape = gemm_of(sample)->shape;
  if (sample.library != "torch" || bits(shape.dtype) > 8) return Seconds(0);
  const double moved = static_cast<double>(shape.m * shape.k) * (2.0 + bits(shape.dtype) / 8.0);
  return device.memory_bound.start_up +
         Seconds(moved / (kQuantiseShare * device.memory_bandwidth.value));
}

std::optional<FamilyFit> fit_gemm(std::span<const Sample> samples, const Device& start,
                                  DType format) {
  Device device = at_benchmark_clocks(start);
  const std::vector<const Sample*> inside = of_format(samples, device, format, false);
  if (inside.size() < kFewest) return std::nullopt;
  GemmParameters& g = parameters_of(device, format);
  g.residual = nullptr;
  const LogErrors errors = [&](std::span<const double> x, std::span<double> residual) {
    set_constants(g, x);
    for (std::size_t i = 0; i < inside.size(); ++i) residual[i] = log_error(*inside[i], device);
  };
  const std::vector<double> x = least_squares(kStart, inside.size(), errors, 0.1, 40);
  set_constants(g, x);
  FamilyFit fit{.family = format == DType::F32 ? "gemm_fp32" : "gemm"};
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    fit.numbers.push_back({"/" + fit.family + "/" + kKeys[i], {x[i]}, false});
  }
  fit.inside = fit_errors(log_errors(inside, device));
  fit.outside = fit_errors(log_errors(of_format(samples, device, format, true), device));
  fit.range = "m, n, k up to 65,536";
  return fit;
}

double fit_format_rate(std::span<const Sample> samples, Device device, DType format) {
  device.format_rate[static_cast<std::size_t>(format)] = 1.0;
  device = at_benchmark_clocks(device);
  std::vector<double> errors;
  for (const Sample* s : of_format(samples, device, format, false)) {
    const GemmShape& shape = gemm_of(*s)->shape;
    const auto flops = 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n * shape.k);
    if (flops > kLargeFlops * device.peak[static_cast<std::size_t>(format)].value / 1e15 &&
        shape.m >= 512 && !shape.block_scales) {
      errors.push_back(log_error(*s, device));
    }
  }
  if (errors.size() < 50) return 0.0;
  std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2),
                   errors.end());
  return rounded(std::exp(errors[errors.size() / 2]));
}

Residual grow_gemm_residual(std::span<const Sample> samples,
                            const std::map<std::string, Device>& devices) {
  std::map<std::string, Device> benchmark;
  for (const auto& [name, device] : devices) benchmark.emplace(name, at_benchmark_clocks(device));
  ResidualRows rows;
  for (const char* name : gemm_features()) rows.names.emplace_back(name);
  for (const Sample& s : samples) {
    const auto device = benchmark.find(s.device);
    if (device == benchmark.end() || !gemm_of(s) || is_test(s)) continue;
    double physical = 0;
    const auto x = gemm_feature_values(device->second, gemm_of(s)->shape, physical);
    // What stands beside the multiplication is not corrected.
    const double measured =
        std::max(s.time.value - beside_gemm(s, device->second).value, 0.3 * physical);
    rows.add({x.begin(), x.end()}, measured, physical, s.shape);
  }
  BoostOptions options;
  options.rate = 0.5;
  return grow_residual(rows, options);
}

}  // namespace gputwin
