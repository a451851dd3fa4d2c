// Fits of the GEMM model (kernels/gemm.h): seven constants of a device, then one correction for the
// devices of an architecture.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "hwmodels/calibrate/fit.h"
#include "hwmodels/calibrate/sample.h"
#include "hwmodels/device.h"
#include "hwmodels/kernels/residual.h"

namespace gputwin {

/// The samples of a file of hwmodels/measurements/gemm-*.csv. A row holds all times of one layer:
/// columns device, library, dtype, n, k, times; times is a list "m:us m:us", or "bxm:us" for b
/// equal products. Throws InputError with file and line.
std::vector<Sample> read_gemm_measurements(const std::filesystem::path& path);

/// Bytes of A, B and C, once each; the result has 2 bytes, or 4 if the operands have.
Bytes gemm_traffic(const GemmShape& shape);

/// What a sample's time holds beside the multiplication: the quantisation of its activations.
Seconds beside_gemm(const Sample& sample, const Device& device);

/// Fits t0, e0, c, k0, em, p and the split-K cost of the 16-bit path, or of fp32 without matrix
/// units, to those samples of `format`; a fifth of the shapes is kept out. None: fewer than 200.
std::optional<FamilyFit> fit_gemm(std::span<const Sample> samples, const Device& start,
                                  DType format);

/// Rate of the large multiplications of `format` over that of the model with rate 1; 0: too few.
double fit_format_rate(std::span<const Sample> samples, Device device, DType format);

/// The correction of all samples on the devices of `devices`, by name.
Residual grow_gemm_residual(std::span<const Sample> samples,
                            const std::map<std::string, Device>& devices);

/// Refits every shipped constant and residual of GEMMs: reads `data`/measurements/gemm-*.csv and
/// rewrites `data`/devices and `data`/residuals. Returns a report, a line a device.
std::string refit_gemm(const std::filesystem::path& data);

}  // namespace gputwin
