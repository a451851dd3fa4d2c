// Fits of the GEMM model (kernels/gemm.h): seven constants of a device, then one correction for the
// devices of an architecture.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hwmodels/calibrate/fit.h"
#include "hwmodels/calibrate/sample.h"
#include "hwmodels/device.h"
#include "hwmodels/kernels/residual.h"

namespace gputwin {

/// Bytes of A, B and C, once each; the result has 2 bytes, or 4 if the operands have.
Bytes gemm_traffic(const GemmShape& shape);

/// What a sample's time holds beside the multiplication: the quantisation of its activations.
Seconds beside_gemm(const Sample& sample, const Device& device);

/// Fits t0, e0, c, k0, em, p and the split-K cost of the 16-bit path (`format` Bf16), or of fp32
/// without matrix units (F32). None: fewer than 200 rows.
std::optional<FamilyFit> fit_gemm(std::span<const Sample> samples, const Device& start,
                                  DType format);

struct GemmFit {
  std::map<std::string, std::vector<FamilyFit>> devices;  // by name of the device
  std::map<std::string, Residual> corrections;            // by name of the file
};

/// Constants of every device of `devices` (by name) that `samples` has enough rows of, the rates of
/// their 8- and 4-bit formats, and the corrections that their files name. Test samples are used for
/// errors alone. Equal input gives equal output.
GemmFit fit_gemms(std::span<const Sample> samples, std::map<std::string, Device> devices);

}  // namespace gputwin
