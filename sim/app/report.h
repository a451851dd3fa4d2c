// What a person reads after a run: how fast, where the time goes, what fills the memory, how sure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/run_result.h"

namespace gputwin {

/// A file the run wrote, or a hint on what to do with one.
struct ReportFile {
  std::string what;  // "trace"
  std::string path;
  std::string hint;  // "open in https://ui.perfetto.dev"; may be empty
};

/// What the figures alone do not say. Texts are printed as they are; empty ones are left out.
struct ReportContext {
  std::string job;                 // "GPT-3 175B, sequence 2,048, global batch 1,536, fp16"
  std::string cluster;             // "128 nodes x 8 a100_80gb, InfiniBand"
  std::string layout;              // "tp 8, pp 16, dp 8, 1f1b, micro-batch 1, recompute full"
  std::string flops_convention;    // "2 per multiply-add, attention causal, no embedding lookup"
  std::int64_t gpus = 0;           // 0: figures per GPU are left out
  std::vector<std::string> notes;  // assumptions worth knowing
  std::vector<ReportFile> files;
  bool ascii = false;   // bars of '#' instead of block characters
  bool colour = false;  // ANSI colours; only for a terminal
  bool timings = true;  // wall time and memory of the simulation itself, which differ between runs
  std::int64_t heap_allocations = 0;  // of the program so far; 0: left out
};

/// The report as text of at most 100 columns, ending with a newline. Same result, same text, if not
/// `timings`.
std::string report(const RunResult& result, const ReportContext& context);

/// "31.52 s", "815.3 ms", "4.000 us": four significant digits.
std::string human_time(double seconds);
/// "1,234,567".
std::string grouped(std::int64_t value);
/// A bar of `width` cells filled to `fraction` (cut to 0 .. 1), in eighths of a cell unless
/// `ascii`.
std::string bar(double fraction, int width, bool ascii);

}  // namespace gputwin
