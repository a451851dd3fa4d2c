#include "hwmodels/calibrate/gemm_fit.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "hwmodels/calibrate/boost.h"
#include "hwmodels/kernels/gemm.h"

namespace gputwin {

namespace {

constexpr std::size_t kFewest = 200;     // rows that a fit of seven constants needs
constexpr std::size_t kMostRows = 5000;  // more do not change seven constants
constexpr std::size_t kFewestOfFormat = 50;
constexpr double kLongEnough = 0.3;     // of the arithmetic in the time, to tell a rate from it
constexpr double kQuantiseShare = 0.8;  // of the bandwidth, as other element-wise kernels
constexpr double kBlockQuantiseStarts = 3.0;  // start-ups of a quantisation with block scales

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

const std::vector<FreeConstant> kStart{{3, 0.3, 15},  {0.9, 0.2, 1},  {1.0, 0.3, 5}, {50, 0, 500},
                                       {0.8, 0.2, 1}, {2.5, 1.0, 10}, {2, 0, 15}};

using Rows = std::vector<const Sample*>;

// Which samples constants and corrections rest on: whole times of one library. Profilers round to
// 1 us, and old libraries had other kernels; they speak only for devices without other rows.
int rank(const Sample& s) {
  if (s.library == "transformer-engine") return -1;  // at other clocks: judged, not fitted
  return s.library == "torch" ? 2 : s.library == "kineto" ? 1 : 0;
}

Rows of_format(std::span<const Sample> samples, const Device& device, DType format, bool test) {
  int best = 0;
  Rows all, out;
  for (const Sample& s : samples) {
    const GemmQuery* query = gemm_of(s);
    if (!query || s.device != device.name || s.time.value <= 0) continue;
    if (device.compute_format(query->shape.dtype) != format) continue;
    if (device.peak[static_cast<std::size_t>(query->shape.dtype)].value <= 0) continue;
    best = std::max(best, rank(s));
    if (is_test(s) == test) all.push_back(&s);
  }
  std::copy_if(all.begin(), all.end(), std::back_inserter(out),
               [&](const Sample* s) { return rank(*s) == best; });
  return out;
}

// Bf16 and F16 run at one rate on the same units.
Rows of_path(std::span<const Sample> samples, const Device& device, DType format, bool test) {
  Rows rows = of_format(samples, device, format, test);
  if (format == DType::Bf16 && rows.empty()) rows = of_format(samples, device, DType::F16, test);
  return rows;
}

double log_error(const Sample& sample, const Device& device) {
  double physical = 0;
  gemm_feature_values(device, gemm_of(sample)->shape, physical);
  return std::log((physical + beside_gemm(sample, device).value) / sample.time.value);
}

std::vector<double> log_errors(const Rows& samples, const Device& device) {
  std::vector<double> errors;
  for (const Sample* s : samples) errors.push_back(log_error(*s, device));
  return errors;
}

GemmParameters& parameters_of(Device& device, DType format) {
  if (format != DType::F32) return device.gemm;
  if (!device.gemm_fp32) device.gemm_fp32 = device.gemm;
  return *device.gemm_fp32;
}

void set_from(Device& device, const FamilyFit& fit) {
  std::vector<double> x;
  for (const FamilyFit::Number& number : fit.numbers) x.push_back(number.values.front());
  set_constants(parameters_of(device, fit.family == "gemm" ? DType::Bf16 : DType::F32), x);
}

// Rate of the large multiplications of `format` over that of the model with rate 1; 0: too few.
double fit_format_rate(std::span<const Sample> samples, Device device, DType format) {
  device.format_rate[static_cast<std::size_t>(format)] = 1.0;
  device = at_benchmark_clocks(device);
  const double peak = device.peak[static_cast<std::size_t>(format)].value;
  std::vector<double> rates;
  for (const Sample* s : of_format(samples, device, format, false)) {
    const GemmShape& shape = gemm_of(*s)->shape;
    const double least = 2.0 * static_cast<double>(shape.m * shape.n) *
                         static_cast<double>(shape.k) / (peak * device.gemm.tile_efficiency);
    const bool long_enough = least > kLongEnough * s->time.value;
    if (long_enough && !shape.block_scales) rates.push_back(std::exp(log_error(*s, device)));
  }
  if (rates.size() < kFewestOfFormat) return 0.0;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return rounded(*middle);
}

FamilyFit constants_of(const Rows& inside, const Rows& outside, Device device, DType format) {
  Rows used;
  const std::size_t step = 1 + inside.size() / kMostRows;
  for (std::size_t i = 0; i < inside.size(); i += step) used.push_back(inside[i]);
  GemmParameters& g = parameters_of(device, format);
  const LogErrors errors = [&](std::span<const double> x, std::span<double> residual) {
    set_constants(g, x);
    for (std::size_t i = 0; i < used.size(); ++i) residual[i] = log_error(*used[i], device);
  };
  const std::vector<double> x = least_squares(kStart, used.size(), errors, 0.1, 40);
  set_constants(g, x);
  FamilyFit fit;
  fit.family = format == DType::F32 ? "gemm_fp32" : "gemm";
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    fit.numbers.push_back({"/" + fit.family + "/" + kKeys[i], {x[i]}});
  }
  fit.inside = fit_errors(log_errors(inside, device));
  fit.outside = fit_errors(log_errors(outside, device));
  fit.range = "m, n, k up to 65,536; without the correction";
  fit.tables = inside.front()->table;
  return fit;
}

void add_rows(const Rows& samples, const Device& device, ResidualRows& out) {
  for (const Sample* s : samples) {
    double physical = 0;
    const auto x = gemm_feature_values(device, gemm_of(*s)->shape, physical);
    // What stands beside the multiplication is not corrected.
    const double measured = s->time.value - beside_gemm(*s, device).value;
    out.add({x.begin(), x.end()}, std::max(measured, 0.3 * physical), physical, s->shape);
  }
}

Residual grown(const ResidualRows& rows, const std::set<std::string>& devices) {
  BoostOptions options;
  options.rate = 0.5;
  Residual residual = grow_residual(rows, options);
  residual.source = "gputwin calibrate: " + std::to_string(rows.x.size()) + " rows of";
  for (const std::string& device : devices) residual.source += " " + device;
  return residual;
}

}  // namespace

Bytes gemm_traffic(const GemmShape& s) {
  const std::int64_t operands = (s.m * s.k + s.k * s.n) * bits(s.dtype) / 8;
  const std::int64_t result = s.m * s.n * std::max(2, std::min(4, bits(s.dtype) / 8));
  return Bytes(s.batch * (operands + result));
}

Seconds beside_gemm(const Sample& sample, const Device& device) {
  const GemmShape& shape = gemm_of(sample)->shape;
  if (sample.library != "torch" || bits(shape.dtype) > 8) return Seconds(0);
  const double moved = static_cast<double>(shape.m * shape.k) * (2.0 + bits(shape.dtype) / 8.0);
  const double starts = shape.block_scales ? kBlockQuantiseStarts : 1.0;
  return device.memory_bound.start_up * starts +
         Seconds(moved / (kQuantiseShare * device.memory_bandwidth.value));
}

std::optional<FamilyFit> fit_gemm(std::span<const Sample> samples, const Device& start,
                                  DType format) {
  const Rows inside = of_path(samples, start, format, false);
  if (inside.size() < kFewest) return std::nullopt;
  return constants_of(inside, of_path(samples, start, format, true), at_benchmark_clocks(start),
                      format);
}

GemmFit fit_gemms(std::span<const Sample> samples, std::map<std::string, Device> devices) {
  GemmFit out;
  std::map<std::string, ResidualRows> groups;
  std::map<std::string, std::set<std::string>> members;
  for (auto& [name, device] : devices) {
    const auto join = [&](const std::string& correction, const Rows& rows) {
      if (correction.empty() || rows.empty()) return;
      ResidualRows& group = groups[correction];
      if (group.names.empty()) group.names.assign(gemm_features().begin(), gemm_features().end());
      members[correction].insert(name);
      add_rows(rows, at_benchmark_clocks(device), group);
    };
    for (const DType format : {DType::Bf16, DType::F32}) {
      std::optional<FamilyFit> fit = fit_gemm(samples, device, format);
      if (!fit) continue;
      set_from(device, *fit);
      out.devices[name].push_back(std::move(*fit));
      join(parameters_of(device, format).correction, of_path(samples, device, format, false));
    }
    for (const auto& [format, pointer] :
         {std::pair{DType::F8, "/gemm/fp8_rate"}, std::pair{DType::Nvf4, "/gemm/nvfp4_rate"}}) {
      const double rate = fit_format_rate(samples, device, format);
      if (rate <= 0 || out.devices[name].empty()) continue;
      device.format_rate[static_cast<std::size_t>(format)] = rate;
      out.devices[name].front().numbers.push_back({pointer, {rate}});
      join(device.gemm.narrow_correction, of_format(samples, device, format, false));
    }
  }
  for (const auto& [name, rows] : groups) out.corrections[name] = grown(rows, members[name]);
  return out;
}

}  // namespace gputwin
