#include "hwmodels/kernels/convolution.h"

#include <algorithm>
#include <cmath>

namespace gputwin {

namespace {

constexpr double kTileRows = 128, kTileColumns = 64;
constexpr double kMostLost = 4;
constexpr double kWinograd = 0.5;  // multiplications left of a 3 x 3 filter, with its transforms
constexpr double kL2Rate = 4;      // of the L2, over that of the memory

double real(std::int64_t v) { return static_cast<double>(v); }

// Rate of the arithmetic: 8-bit products run on matrix units at twice the rate of 16 bits, or four
// to an fp32 lane where there are none.
double rate(const Device& device, DType dtype) {
  const double half = device.peak[static_cast<std::size_t>(DType::F16)].value;
  const double single = device.dense_peak(DType::F32).value;
  const bool units = half > 2.5 * single;
  if (dtype == DType::U8) return units ? 2 * half : 4 * single;
  return device.dense_peak(dtype).value;
}

// Tiles a multiprocessor gets, and the time of the FLOPs with whole waves.
double in_waves(const Device& device, double m, double n, double flops, DType dtype,
                double& per_sm) {
  per_sm = std::ceil(m / kTileRows) * std::ceil(n / kTileColumns) / device.sms;
  // Few tiles are split along k: most of a wave is never lost.
  return flops * std::min(kMostLost, std::ceil(per_sm) / per_sm) / rate(device, dtype);
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
  const double outputs = real(s.batch) * pixels;
  double m = outputs, n = real(s.filters), k = real(s.channels) * area;
  if (s.phase == LayerPhase::BackwardData) {
    m = real(s.batch * s.width * s.height);
    n = real(s.channels), k = real(s.filters) * area;
  } else if (s.phase == LayerPhase::BackwardWeight) {
    m = real(s.filters), n = real(s.channels) * area, k = outputs;
  }
  const bool winograd = s.dtype == DType::F32 && s.filter_width == 3 && s.filter_height == 3 &&
                        s.stride_width == 1 && s.stride_height == 1 &&
                        s.phase != LayerPhase::BackwardWeight;
  const double flops =
      2 * outputs * real(s.filters * s.channels) * area * (winograd ? kWinograd : 1.0);
  KernelEstimate e;
  double per_sm = 0;
  e.compute_s = in_waves(device, m, n, flops, s.dtype, per_sm);
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
  e.push(std::ceil(m / kTileRows) * kTileRows * std::ceil(n / kTileColumns) * kTileColumns /
         (m * n));
  e.push(rate(device, s.dtype));
  e.push(real(s.pad_width));
  e.push(real(s.filter_width));
  return e;
}

KernelEstimate estimate(const Device& device, const RnnShape& s) {
  KernelEstimate e;
  const double gates = s.gates, hidden = real(s.hidden), batch = real(s.batch);
  const double steps = real(s.steps);
  // Of the hidden state; the products of the inputs of all steps are one large product.
  const double weights = gates * hidden * hidden * bits(s.dtype) / 8;
  const double flops = 2 * gates * hidden * hidden * batch;
  const double in_l2 = weights / static_cast<double>(std::max<std::int64_t>(1, device.l2.value));
  const double load = weights / (in_l2 < 1 ? kL2Rate : 1.0) / device.memory_bandwidth.value;
  const bool all_steps = s.phase == LayerPhase::BackwardWeight;
  double per_sm = 0;
  e.compute_s =
      2 * steps *
      in_waves(device, all_steps ? hidden : batch, gates * hidden, flops, s.dtype, per_sm);
  e.memory_s = all_steps ? load : steps * load;
  e.starts = all_steps ? 1 : 1 + steps / 2;
  e.push(hidden);
  e.push(batch);
  e.push(real(s.steps));
  e.push(gates);
  e.push(static_cast<double>(s.phase));
  e.push(bits(s.dtype));
  e.push(static_cast<double>(device.architecture));
  e.push(in_l2);
  e.push(per_sm);
  e.push(std::ceil(per_sm) / per_sm);
  e.push(rate(device, s.dtype));
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
