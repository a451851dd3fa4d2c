// Convolutions of cuDNN's first generations and recurrent layers, by shape.
//
// Convolution: an implicit matrix product m = batch x outputs, n = filters, k = channels x filter
// area.
//   C   2 m n k FLOPs, waves of 128 x 64 tiles rounded up; half for 3 x 3 filters of stride 1 in
//       fp32 (Winograd)
//   M   image, filters and result once
// Recurrent layer: for each step, gates x hidden outputs from hidden inputs and hidden states.
//   C   2 x 2 batch x gates x hidden^2 a step      M   weights of the states once a step
//   starts   half a start-up a step
// FFT and kernels that keep the weights on the chip are left to the correction.
#pragma once

#include <cstdint>

#include "hwmodels/device.h"
#include "hwmodels/kernels/library.h"

namespace gputwin {

enum class LayerPhase : std::uint8_t { Forward, BackwardData, BackwardWeight };

struct ConvolutionShape {
  std::int64_t batch = 1, channels = 1, width = 1, height = 1;
  std::int64_t filters = 1, filter_width = 1, filter_height = 1;
  std::int64_t pad_width = 0, pad_height = 0, stride_width = 1, stride_height = 1;
  LayerPhase phase = LayerPhase::Forward;
  DType dtype = DType::F32;  // of the inputs
  std::int64_t output_width() const;
  std::int64_t output_height() const;
};

struct RnnShape {
  std::int64_t hidden = 1, batch = 1, steps = 1;
  int gates = 1;  // 1 plain, 3 GRU, 4 LSTM
  LayerPhase phase = LayerPhase::Forward;
  DType dtype = DType::F32;
};

KernelEstimate estimate(const Device& device, const ConvolutionShape& shape);
KernelEstimate estimate(const Device& device, const RnnShape& shape);
/// A device without constants for it gives a cost with time 0.
Cost convolution_cost(const Device& device, const ConvolutionShape& shape);
Cost rnn_cost(const Device& device, const RnnShape& shape);

}  // namespace gputwin
