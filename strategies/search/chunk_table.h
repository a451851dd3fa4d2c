// Costs of one chunk of a pipeline by what stands in it, read off small lowered jobs.
#pragma once

#include <array>
#include <cstdint>

#include "sim/core/cluster.h"
#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/layout.h"
#include "sim/core/workload.h"
#include "strategies/schedules/emit.h"
#include "strategies/search/pass_walk.h"
#include "strategies/search/prices.h"

namespace gputwin {

/// What a chunk holds besides layers: embedding and head, the embedding, nothing, the head.
enum class ChunkKind : std::uint8_t { Only, First, Middle, Last };
inline constexpr std::size_t kChunkKinds = 4;

/// One chunk and one micro-batch; times in seconds, sizes in bytes.
struct ChunkFigures {
  double forward = 0, backward = 0;            // one after the other, in the steady state
  double forwards = 0, backwards = 0;          // each, where many of a kind follow one another
  double kept = 0;                             // held from forward to backward
  double forward_peak = 0, backward_peak = 0;  // above the start of the pass
  double weights = 0, gradients = 0, optimizer = 0, other = 0;  // all the time
  double elements = 0;                                          // trained parameters
  double experts = 0;  // of them, weights of the rank's experts
};

/// Figures of chunks with any number of layers. Layers of a Transformer are alike, so what stands
/// at the ends, some layers in a row, and what each further layer adds say it all. The layers
/// without experts before those that have some are a second kind.
struct ChunkTable {
  ChunkFigures embedding, head;  // with what a first or last chunk does besides, no layer
  ChunkFigures some, layer;      // a chunk of `layers` layers (kind Only: with both ends), and more
  ChunkFigures dense_layer;      // one more without experts; `layer` where all are alike
  double layers = 1;
  bool blocking_messages = false;
  Bytes message{};  // activations sent to the next chunk by one rank; gradients alike
  Templates small;  // the job of `some`: what begins and ends an iteration

  /// `dense_layers` of the layers stand before the first that has experts.
  ChunkFigures of(ChunkKind kind, double layers_of_chunk, double dense_layers) const;
  /// Row of `small` that is like a stage of this kind.
  std::int32_t small_stage(ChunkKind kind) const;
  double small_elements(ChunkKind kind) const;
};

/// True if hosts wait for every pipeline message of `layout`: the rule of the lowering.
bool blocking_messages(const Layout& layout, const Job& job);

/// The job as the probes see it.
struct Probed {
  const Transformer& model;
  const Cluster& cluster;
  const Job& job;
};

/// Lowers `layout` as a pipeline of three stages, the outer ones without layers and the middle one
/// with one layer and with two, or as one stage of one and two layers (two and four with ZeRO 2 and
/// 3, whose layers take turns in two buffers; where every n-th layer has experts, n and 2 n; dense
/// layers before them take the place of the added ones), and walks the passes on the GPUs of the
/// first stage, counted from `base`. Degrees, micro-batch, sharding and recomputation are those of
/// `layout`; Block counts as None. With ZeRO 0 and 1 the passes do not depend on dp.
Outcome<ChunkTable> probe_chunks(const Probed& job, const Layout& layout, GpuId base,
                                 Prices& prices);

}  // namespace gputwin
