// Small timelines for tests of the trace store.
#pragma once

#include <random>
#include <string>

#include "sim/trace/store_builder.h"

namespace gputwin {

inline Definition named(std::string name, SliceKind kind, std::int32_t layer = 0) {
  Definition d;
  d.before = d.op = std::move(name);
  d.kind = kind;
  d.phase = "forward";
  d.layer = layer;
  return d;
}

inline Definition framed(std::string before, std::string after, SliceKind kind) {
  Definition d = named(before, kind);
  d.after = after;
  d.op = after.substr(1);
  d.framed = true;
  return d;
}

/// `slices` slices on each of two streams of one rank, with gaps, of four kinds; drawn from `seed`.
inline Store random_store(std::uint32_t slices, std::uint32_t seed) {
  std::mt19937 random(seed);
  StoreBuilder builder;
  const std::uint32_t rank = builder.process({"rank 0 · stage0 · gpu 0", "stage0", 0, 0});
  const std::uint32_t kinds[] = {builder.definition(named("fc1", SliceKind::Gemm, 1)),
                                 builder.definition(named("flash", SliceKind::Attention, 2)),
                                 builder.definition(named("all_reduce", SliceKind::TpComm, 1)),
                                 builder.definition(named("adam", SliceKind::Optimizer))};
  for (const char* stream : {"compute", "tp"}) {
    const std::uint32_t thread = builder.thread(rank, stream, 0);
    Ps at = random() % 1000;
    for (std::uint32_t s = 0; s < slices; ++s) {
      const Ps duration = 1 + random() % 5000;
      builder.slice(thread, at, duration, kinds[random() % 4], s);
      at += duration + (random() % 3 == 0 ? random() % 20'000 : 0);
    }
  }
  return builder.finish("random");
}

}  // namespace gputwin
