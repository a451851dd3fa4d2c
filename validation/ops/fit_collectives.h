// Fits the shipped curves of collectives (hwmodels/collectives) to tables of measured ones.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "validation/ops/collective_rows.h"

namespace gputwin {

struct MeasuredCollective {
  CollectiveRow row;
  double time_us = 0;
  bool test = false;  // kept out of every fit: one (collective, size) in five
};

/// Rows of a table with the columns of nccl_aiconfigurator, nccl_tests_logs or coll_vidur. Throws
/// InputError for other headers and broken values.
std::vector<MeasuredCollective> read_collectives(const std::filesystem::path& file);

/// Text of each file of curves, by name ("curves/b200-sxm"). With `keep_tests_out`, rows of the
/// test part are not fitted; the shipped files are fitted to all rows, and `error_out` of each
/// curve comes from fits that left every fifth of its sizes out in turn. Rows of systems of one
/// node with a measured device also go to the curves of the device if they moved 1 GiB or more, for
/// which the tables of devices have none.
std::map<std::string, std::string> fit_collectives(const std::vector<MeasuredCollective>& rows,
                                                   bool keep_tests_out);

}  // namespace gputwin
