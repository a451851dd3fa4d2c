// The tables each family of models can be held against; one file <family>_tables.cpp each.
#pragma once

#include <vector>

#include "hwmodels/calibrate/sample.h"

namespace gputwin {

std::vector<TableFormat> gemm_formats();

}  // namespace gputwin
