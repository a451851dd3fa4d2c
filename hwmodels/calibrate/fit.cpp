#include "hwmodels/calibrate/fit.h"

#include <ceres/ceres.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "hwmodels/calibrate/gemm_fit.h"
#include "hwmodels/calibrate/library_fit.h"
#include "sim/core/check.h"

namespace gputwin {

namespace {

struct Residuals {
  const LogErrors& errors;
  std::size_t parameters, rows;
  double scale;

  bool operator()(double const* const* values, double* residual) const {
    errors({values[0], parameters}, {residual, rows});
    for (std::size_t i = 0; i < rows; ++i) {
      if (!std::isfinite(residual[i])) return false;
      residual[i] = robust(residual[i]);
    }
    return true;
  }

  // The root of SoftLOne, signed, so that one block of all rows is robust row by row.
  double robust(double r) const {
    const double x = r / scale;
    const double rho = 2.0 * (std::sqrt(1.0 + x * x) - 1.0);
    return std::copysign(scale * std::sqrt(rho), r);
  }
};

}  // namespace

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return std::strtod(text, nullptr);
}

std::vector<double> least_squares(std::span<const FreeConstant> parameters, std::size_t rows,
                                  const LogErrors& errors, double scale, int iterations) {
  GPUTWIN_CHECK(!parameters.empty() && rows >= parameters.size(),
                "a fit has more rows than unknowns");
  std::vector<double> x;
  for (const FreeConstant& p : parameters) x.push_back(std::clamp(p.start, p.low, p.high));
  const Residuals residuals{errors, parameters.size(), rows, scale};
  auto* cost = new ceres::DynamicNumericDiffCostFunction<Residuals>(new Residuals(residuals));
  cost->AddParameterBlock(static_cast<int>(parameters.size()));
  cost->SetNumResiduals(static_cast<int>(rows));
  ceres::Problem problem;
  problem.AddResidualBlock(cost, nullptr, x.data());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    problem.SetParameterLowerBound(x.data(), static_cast<int>(i), parameters[i].low);
    problem.SetParameterUpperBound(x.data(), static_cast<int>(i), parameters[i].high);
  }
  ceres::Solver::Options options;
  options.linear_solver_type = ceres::DENSE_QR;
  options.dense_linear_algebra_library_type = ceres::EIGEN;
  options.num_threads = 1;
  options.logging_type = ceres::SILENT;
  options.max_num_iterations = iterations;
  ceres::Solver::Summary summary;
  ceres::Solve(options, &problem, &summary);
  for (double& value : x) value = rounded(value);
  return x;
}

FitErrors fit_errors(std::span<const double> log_errors) {
  FitErrors out{.rows = log_errors.size()};
  if (log_errors.empty()) return out;
  std::vector<double> absolute;
  for (const double e : log_errors) absolute.push_back(std::abs(std::expm1(e)));
  std::sort(absolute.begin(), absolute.end());
  for (const double a : absolute) out.mean += a / static_cast<double>(absolute.size());
  out.p90 = absolute[(absolute.size() - 1) * 9 / 10];
  return out;
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> out;
    out.push_back({"gemm", [](std::span<const Sample> s, const Device& d) {
                     return fit_gemm(s, d, DType::Bf16);
                   }});
    out.push_back({"gemm_fp32", [](std::span<const Sample> s, const Device& d) {
                     return fit_gemm(s, d, DType::F32);
                   }});
    for (std::size_t i = 0; i < kLibraryKernels; ++i) {
      const auto kernel = static_cast<LibraryKernel>(i);
      out.push_back({to_string(kernel), [kernel](std::span<const Sample> s, const Device& d) {
                       return fit_library_constants(kernel, s, d);
                     }});
    }
    return out;
  }();
  return all;
}

}  // namespace gputwin
