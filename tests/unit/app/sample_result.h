// A small hand-made result: two stages, four GPUs, ten seconds.
#pragma once

#include "sim/core/run_result.h"

namespace gputwin {

/// Rank 3 ends last: 7 s compute, 1 s tensor-parallel communication, 1.5 s bubble, 0.5 s optimizer
/// = 10 s.
inline RunResult sample_result() {
  using namespace literals;
  constexpr Ps kSecond = 1'000'000'000'000;
  RunResult result;
  result.scenario = "tiny__a100_1x4__tp2_pp2";
  Execution& run = result.execution;
  run.iteration = 10 * kSecond;
  run.makespan = 10 * kSecond + kSecond / 4;
  run.rank_end.assign(4, run.makespan);
  run.breakdown.resize(4);
  run.last_rank = RankId(3);
  const auto part = [&run](Part p) -> Ps& { return run.breakdown[3][static_cast<std::size_t>(p)]; };
  part(Part::Compute) = 7 * kSecond;
  part(Part::ExposedTp) = kSecond;
  part(Part::Bubble) = 3 * kSecond / 2;
  part(Part::Optimizer) = kSecond / 2;
  run.engine = {1'234'567, 1'500'000, 9'876, 12, 2, 1, true, "", 0.5, 20'000'000};
  result.tokens_per_s = 16384.0;
  result.samples_per_s = 8.0;
  result.model_tflops_per_gpu = 140.4;
  result.hardware_tflops_per_gpu = 156.0;
  result.mfu = 0.45;
  result.hfu = 0.5;
  result.low = 9.5_s;
  result.high = 10.75_s;
  RoleMemory stage0{"stage0", {}, 80_GiB};
  stage0.figures.at_peak = {10_GiB, 20_GiB, 15_GiB, 8_GiB, 2_GiB, 1_GiB, 0_GiB};
  stage0.figures.allocated = 56_GiB;
  stage0.figures.reserved = 60_GiB;
  stage0.figures.device = 64_GiB;
  RoleMemory stage1 = stage0;
  stage1.role = "stage1";
  stage1.figures.at_peak[3] = 4_GiB;
  stage1.figures.allocated = 52_GiB;
  stage1.figures.device = 60_GiB;
  result.memory = {stage0, stage1};
  result.extrapolated = {"vocabulary_gemm"};
  result.warnings = {"stage0 is close to its limit"};
  return result;
}

}  // namespace gputwin
