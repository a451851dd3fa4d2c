// Kernels of a library that move bytes, by rows and columns.
//
//   C   none
//   M   the arrays read and written, once each
#pragma once

#include <cstdint>
#include <string_view>

#include "hwmodels/device.h"
#include "hwmodels/kernels/library.h"

namespace gputwin {

struct PointwiseShape {
  std::int64_t rows = 1, columns = 1;
  double bytes = 0;                                 // read and written, once each
  LibraryKernel kind = LibraryKernel::Elementwise;  // PyTorch's own, a serving stack's, …
  int operation = 0;                                // pointwise_operation of its name
  int library = 0;                                  // pointwise_library of its name
  int bits = 16;                                    // of an element
};

/// Numbers of names as tables spell them; -1 for an operation that is not known, 0 for a library.
int pointwise_operation(std::string_view name);
int pointwise_library(std::string_view name);

KernelEstimate estimate(const Device& device, const PointwiseShape& shape);
/// A device without constants for it gives a cost with time 0.
Cost pointwise_cost(const Device& device, const PointwiseShape& shape);

}  // namespace gputwin
