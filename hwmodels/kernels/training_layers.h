// Convolutions and recurrent layers of a training plan, on any device.
//
// The physical part of convolution.h (start-up and roofline with whole waves, Winograd in fp32)
// with the constants that DeepBench's tables gave the device; a device without constants takes
// those of V100, the largest table, and the cost is marked as extrapolated. The learned correction
// is left out: it was fitted on benchmark shapes, which networks leave (3 channels, 1 x 7 filters).
// Grouped convolutions are priced as one convolution of groups x images.
#pragma once

#include "hwmodels/device.h"
#include "sim/core/cost.h"
#include "sim/core/op.h"

namespace gputwin {

/// Cost of a Conv* op (op.h, note 12).
Cost training_convolution_cost(const Device& device, const Op& op);

/// Cost of an Rnn* op (op.h, note 13). The table's layers have as many inputs as outputs: others
/// are scaled by their products.
Cost training_rnn_cost(const Device& device, const Op& op);

}  // namespace gputwin
