// The figures of a run for programs: result.json. Its keys are a contract (scenarios/README.md).
#pragma once

#include <filesystem>
#include <string>

#include "sim/core/run_result.h"

namespace gputwin {

inline constexpr int kResultSchema = 1;

/// `flops_convention`: how FLOPs were counted, in one sentence. The text is the same for the same
/// result, except for /engine/wall_s and /engine/peak_rss_bytes.
std::string result_json(const RunResult& result, const std::string& flops_convention);

/// Writes it to `path`, whole or not at all; creates the folder. Fails: InputError naming the path.
void write_result_json(const std::filesystem::path& path, const RunResult& result,
                       const std::string& flops_convention);

}  // namespace gputwin
