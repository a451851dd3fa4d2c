// The kernels of the interpreter by kind, and how they find their operands. Each throws Fault where
// operands do not fit the dims.
#pragma once

#include <string>
#include <vector>

#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::interpreted {

using Array = std::vector<double>;

inline void need(bool condition, const std::string& what) {
  if (!condition) throw Fault(what);
}

/// The `index`-th array, which must have `elements` elements.
const Array& input(const Work& work, std::size_t index, std::int64_t elements);
Array& output(Work& work, std::size_t index, std::int64_t elements);

/// Writes a value into an output marked "+=" in op.h.
inline void accumulate(const Op& op, double& place, double value) {
  place = op.accumulate ? place + value : value;
}

// interpreter_attention.cpp
void attention_gemm(Work& work);
void softmax_kernel(Work& work);
void flash_forward(Work& work);
void flash_backward(Work& work);
void attention_merge(Work& work);

// interpreter_layers.cpp: norms, activations, positions, embedding and loss
void norm_forward(Work& work);
void norm_backward(Work& work);
void activation_forward(Work& work);
void activation_backward(Work& work);
void bias_dropout_add(Work& work);
void bias_grad(Work& work);
void rope(Work& work);
void mla_rope(Work& work);
void mla_key_value(Work& work);
void mla_key_value_grad(Work& work);
void embedding(Work& work);
void position(Work& work);
void logits_max(Work& work);
void logits_sum(Work& work);
void loss_from_sums(Work& work);
void cross_entropy_backward(Work& work);

}  // namespace gputwin::interpreted
