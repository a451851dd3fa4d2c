#include "hwmodels/kernels/convolution.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

namespace {

constexpr double kTileRows = 128, kTileColumns = 64;

double real(std::int64_t v) { return static_cast<double>(v); }

// A number for the kind of arithmetic: tensor cores, plain, eight bits.
double mixed(const Device& device, DType dtype) {
  return device.dense_peak(dtype).value / std::max(1.0, device.dense_peak(DType::F32).value);
}

// Time of FLOPs on tiles of m x n, whole waves of SMs.
double on_tiles(const Device& device, double m, double n, double k, DType dtype, double& per_sm) {
  const double tiles = std::ceil(m / kTileRows) * std::ceil(n / kTileColumns);
  per_sm = tiles / device.sms;
  const double flops = tiles * kTileRows * kTileColumns * 2 * k;
  // Few tiles are split along k: at most half of a wave is lost.
  const double rounding = std::min(2.0, std::ceil(per_sm) / per_sm);
  return flops * rounding / device.dense_peak(dtype).value;
}

}  // namespace

std::int64_t ConvolutionShape::output_width() const {
  return std::max<std::int64_t>(1, (width + 2 * pad_width - filter_width) / stride_width + 1);
}

std::int64_t ConvolutionShape::output_height() const {
  return std::max<std::int64_t>(1, (height + 2 * pad_height - filter_height) / stride_height + 1);
}

KernelEstimate estimate(const Device& device, const ConvolutionShape& s) {
  const double pixels = real(s.output_width() * s.output_height());
  const double area = real(s.filter_width * s.filter_height);
  double m = real(s.batch) * pixels, n = real(s.filters), k = real(s.channels) * area;
  if (s.phase == LayerPhase::BackwardData) {
    m = real(s.batch * s.width * s.height) / real(s.stride_width * s.stride_height);
    n = real(s.channels), k = real(s.filters) * area;
  } else if (s.phase == LayerPhase::BackwardWeight) {
    m = real(s.filters), n = real(s.channels) * area, k = real(s.batch) * pixels;
  }
  KernelEstimate e;
  double per_sm = 0;
  e.compute_s = on_tiles(device, m, n, k, s.dtype, per_sm);
  const double elements = real(s.batch * s.channels * s.width * s.height) +
                          real(s.filters * s.channels) * area + real(s.batch * s.filters) * pixels;
  e.memory_s = elements * bits(s.dtype) / 8 / device.memory_bandwidth.value;
  for (const std::int64_t v : {s.batch, s.channels, s.filters, s.width, s.height}) e.push(real(v));
  e.push(area);
  e.push(real(s.stride_width * s.stride_height));
  e.push(static_cast<double>(s.phase));
  e.push(bits(s.dtype));
  e.push(m);
  e.push(n);
  e.push(k);
  e.push(per_sm);
  e.push(std::ceil(per_sm) / per_sm);
  e.push(pixels);
  e.push(static_cast<double>(device.architecture));
  e.push(mixed(device, s.dtype));
  return e;
}

KernelEstimate estimate(const Device& device, const RnnShape& s) {
  KernelEstimate e;
  const double gates = s.gates, hidden = real(s.hidden), batch = real(s.batch);
  const double weights = 2 * gates * hidden * hidden * bits(s.dtype) / 8;
  double per_sm = 0;
  // A gradient of weights is one product over all steps, the others one a step.
  const bool all_steps = s.phase == LayerPhase::BackwardWeight;
  const double times = all_steps ? 1 : real(s.steps);
  e.compute_s =
      times * on_tiles(device, all_steps ? gates * hidden : batch, gates * hidden,
                       2 * (all_steps ? batch * real(s.steps) / gates : hidden), s.dtype, per_sm);
  e.memory_s = times * (weights + 4 * batch * gates * hidden * bits(s.dtype) / 8) /
               device.memory_bandwidth.value;
  e.push(hidden);
  e.push(batch);
  e.push(real(s.steps));
  e.push(gates);
  e.push(static_cast<double>(s.phase));
  e.push(bits(s.dtype));
  e.push(static_cast<double>(device.architecture));
  e.push(weights / static_cast<double>(std::max<std::int64_t>(1, device.l2.value)));
  e.push(per_sm);
  e.push(std::ceil(per_sm) / per_sm);
  e.push(times);
  return e;
}

Cost convolution_cost(const Device& device, const ConvolutionShape& shape) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(LibraryKernel::Convolution)];
  if (!model.known()) return {};
  return library_cost(model, estimate(device, shape),
                      "convolution: (t0 + tiles / rate | bytes / BW) x correction", "convolution");
}

Cost rnn_cost(const Device& device, const RnnShape& shape) {
  const LibraryModel& model = device.library[static_cast<std::size_t>(LibraryKernel::Rnn)];
  if (!model.known()) return {};
  return library_cost(model, estimate(device, shape),
                      "recurrent layer: (t0 + steps x tiles / rate | weights / BW) x correction",
                      "rnn");
}

}  // namespace gputwin
