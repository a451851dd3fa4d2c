// Random variation of kernel durations, from a counter: no state, so every executor, in whatever
// order it visits the kernels, draws the same factors.
#pragma once

#include <cmath>
#include <cstdint>

#include "sim/core/plan.h"

namespace gputwin {

/// One round of splitmix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection that mixes all 64 bits.
constexpr std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Factor exp(sigma z) on the duration of a kernel; z is standard normal (Box-Muller) and depends
/// on the seed, the rank and `instruction` alone: the position in the program, prologue first, then
/// body. A repeated body therefore draws the same factors again and its period can converge. 1
/// exactly when sigma is 0.
inline double jitter_factor(const Jitter& jitter, RankId rank, std::uint64_t instruction) {
  if (jitter.sigma == 0.0) return 1.0;
  const std::uint64_t key = splitmix64(splitmix64(jitter.seed) ^ rank.value) ^ instruction;
  const std::uint64_t a = splitmix64(key), b = splitmix64(a ^ 0xd1b54a32d192ed03u);
  const double u = (static_cast<double>(a >> 11) + 1.0) * 0x1p-53;  // in (0, 1]
  const double v = static_cast<double>(b >> 11) * 0x1p-53;          // in [0, 1)
  constexpr double kTwoPi = 6.283185307179586476925;
  return std::exp(jitter.sigma * std::sqrt(-2.0 * std::log(u)) * std::cos(kTwoPi * v));
}

}  // namespace gputwin
