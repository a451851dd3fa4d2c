// The tables each family of models can be held against; one file <family>_tables.cpp each.
#pragma once

#include <vector>

#include "hwmodels/calibrate/sample.h"

namespace gputwin {

std::vector<TableFormat> gemm_formats();
std::vector<TableFormat> attention_formats();
std::vector<TableFormat> pointwise_formats();
std::vector<TableFormat> whole_model_formats();
std::vector<TableFormat> collective_formats();
std::vector<TableFormat> exchange_formats();  // all-reduce and experts of serving stacks
std::vector<TableFormat> layer_formats();  // experts, convolutions, recurrent layers

}  // namespace gputwin
