// Cuts backward passes into the gradients of inputs and those of weights.
#pragma once

#include "sim/core/segment.h"

namespace gputwin {

/// Moves the weight gradients of linear layers, and what only they need, from Chunk::backward to
/// Chunk::weight_grad, segment by segment: what the previous stage does not wait for (zero bubble,
/// Qi et al. 2023). Gradients of norms and biases come out of kernels that the input's gradient
/// needs too, or out of small ones beside them, and stay.
Lowered split_backward(Lowered lowered);

}  // namespace gputwin
