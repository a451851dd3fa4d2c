#include "hwmodels/kernels/training_layers.h"

#include "hwmodels/kernels/convolution.h"

namespace gputwin {
namespace {

// hwmodels/devices/v100.json: fits of conv_deepbench and rnn_deepbench. The start-up there holds
// the launch, which is the host's here: a kernel's own ramp is taken instead.
constexpr double kConvolutionCompute = 0.94, kConvolutionMemory = 0.75;
constexpr double kRnnCompute = 0.6, kRnnMemory = 0.75;
constexpr double kRnnStep = 5e-6;  // seconds of one dependent step's start-up

LibraryModel model_of(const Device& device, LibraryKernel kernel, double compute, double memory) {
  LibraryModel model = device.library[static_cast<std::size_t>(kernel)];
  if (!model.known()) {
    model.compute_efficiency = compute;
    model.memory_efficiency = memory;
  }
  model.start_up = kernel == LibraryKernel::Rnn ? Seconds(kRnnStep) : device.memory_bound.start_up;
  model.residual = nullptr;
  return model;
}

LayerPhase phase_of(OpKind kind) {
  if (kind == OpKind::ConvForward || kind == OpKind::RnnForward) return LayerPhase::Forward;
  const bool input = kind == OpKind::ConvGradInput || kind == OpKind::RnnGradInput;
  return input ? LayerPhase::BackwardData : LayerPhase::BackwardWeight;
}

}  // namespace

Cost training_convolution_cost(const Device& device, const Op& op) {
  const auto& [n, c, f, h, w, groups] = op.dims;
  const auto& [k, j, q, r, u, v] = op.filter;
  const ConvolutionShape shape{.batch = n * groups,
                               .channels = c / groups,
                               .width = w,
                               .height = h,
                               .filters = f / groups,
                               .filter_width = j,
                               .filter_height = k,
                               .pad_width = v,
                               .pad_height = u,
                               .stride_width = r,
                               .stride_height = q,
                               .phase = phase_of(op.kind),
                               .dtype = op.dtype};
  const LibraryModel model =
      model_of(device, LibraryKernel::Convolution, kConvolutionCompute, kConvolutionMemory);
  KernelEstimate e = estimate(device, shape);
  if (shape.phase == LayerPhase::BackwardWeight) {
    // The sum over images and pixels is cut into as many parts as fill the device: no wave is lost.
    const auto outputs = static_cast<double>(n * shape.output_width() * shape.output_height());
    e.compute_s = 2 * outputs * static_cast<double>(f * (c / groups) * k * j) /
                  device.dense_peak(op.dtype).value;
  }
  Cost cost = library_cost(model, e, "convolution: t0 + tiles / rate | bytes / BW", "convolution");
  cost.low = 0.75, cost.high = 1.35;
  return cost;
}

Cost training_rnn_cost(const Device& device, const Op& op) {
  const auto [batch, steps, inputs, hidden, gates] =
      std::array{op.dims[0], op.dims[1], op.dims[2], op.dims[3], op.dims[4]};
  const RnnShape shape{.hidden = hidden,
                       .batch = batch,
                       .steps = steps,
                       .gates = static_cast<int>(gates),
                       .phase = phase_of(op.kind),
                       .dtype = op.dtype};
  KernelEstimate e = estimate(device, shape);
  e.compute_s *= static_cast<double>(inputs + hidden) / static_cast<double>(2 * hidden);
  const LibraryModel model = model_of(device, LibraryKernel::Rnn, kRnnCompute, kRnnMemory);
  Cost cost =
      library_cost(model, e, "recurrent layer: steps x t0 + tiles / rate | weights / BW", "rnn");
  cost.low = 0.7, cost.high = 1.45;
  return cost;
}

}  // namespace gputwin
