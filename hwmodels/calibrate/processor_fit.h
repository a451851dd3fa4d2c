// Fits the description of a computer (hwmodels/processor) to the tables of gputwin probes run.
//
//  table        columns
//  products     gpu, op, batch, m, n, k, accumulate, time_us      op: a layout, "gemm_nt"
//  operators    gpu, op, rows, cols, bytes, time_us               bytes: as moved_bytes says
//  collectives  system, collective, nranks, size_bytes, time_us   collective: a kind, or "message"
//  copies       gpu, direction, size_bytes, time_us
//  machine      gpu, quantity, value                              a key below /, with its unit
//
// Shapes and sizes as in validation/ops. One shape in five is kept out and judges the fit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "hwmodels/calibrate/csv_table.h"
#include "hwmodels/calibrate/fit.h"
#include "hwmodels/processor/processor.h"

namespace gputwin {

/// Constants of /processor that `tables` give, one FamilyFit for each layout of products, curve
/// and set of single numbers; several rows of one quantity count with their median. Throws
/// InputError with file and line for broken rows, and for a table of none of the kinds above.
std::vector<FamilyFit> fit_processor(std::span<const CsvTable> tables);

/// Medians of time / size in half-octaves of size. `size` and `time` are alike long, not empty.
SizeCurve median_curve(std::span<const double> size, std::span<const double> time);

}  // namespace gputwin
