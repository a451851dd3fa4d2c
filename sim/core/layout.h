// How a job is spread over ranks: degrees, stages, schedule, recomputation, and the device of every
// rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/ids.h"

namespace gputwin {

enum class Schedule : std::uint8_t { None, Gpipe, OneFOneB, Interleaved };
enum class Recompute : std::uint8_t { None, Selective, Full, Block };

/// Parts of a layer that are computed again in the backward pass instead of kept, as bits.
enum : std::uint8_t {
  kRecomputeMlaUp = 1,          // the products that expand MLA's latent vectors
  kRecomputeMoeActivation = 2,  // the experts' activation function
  kRecomputeNorms = 4,          // the two norms of a layer
  kRecomputeMlp = 8,            // the MLP of a layer without experts, or its shared experts
  kRecomputeMoe = 16            // everything between dispatch and combination
};

/// How context-parallel ranks exchange keys and values: gathered before the attention kernel,
/// passed around a ring under it, or heads traded for tokens (Ulysses).
enum class ContextComm : std::uint8_t { AllGather, Ring, AllToAll };

/// How tensor-parallel collectives hide under the GEMM they belong to: not at all, in chunks
/// through Transformer Engine's user buffers, or through symmetric memory (torch async TP).
enum class TpOverlap : std::uint8_t { None, Userbuffers, AsyncTp };

/// A dimension of the rank grid. Experts span dp x cp (x tp) and have no dimension of their own.
enum class Dim : std::uint8_t { Tp, Cp, Dp, Pp };

/// Position of a rank in the grid; indexed by Dim.
struct Coordinates {
  std::int32_t tp = 0, cp = 0, dp = 0, pp = 0;
  bool operator==(const Coordinates&) const = default;
};

struct Layout {
  std::int32_t tp = 1, pp = 1, vpp = 1, dp = 1, cp = 1, ep = 1;
  bool sp = false;  // sequence parallelism: norms and dropout on token shards over tp
  ContextComm cp_comm = ContextComm::AllGather;
  TpOverlap tp_overlap = TpOverlap::None;
  // Sharded over dp x cp: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters
  // (FSDP).
  std::int32_t zero = 0;
  std::int32_t hsdp_group = 0;  // with zero 2 or 3: data-parallel ranks of a shard group; 0: all
  Schedule schedule = Schedule::OneFOneB;
  std::int64_t micro_batch = 1;  // samples
  Recompute recompute = Recompute::None;
  // With Block: how many of the first layers of each chunk, by stage; one entry: of every stage.
  std::vector<std::int32_t> recompute_layers{};
  std::vector<std::int32_t>
      stage_layers{};  // pp x vpp layer counts in model order; empty: as even as possible
  std::array<Dim, 4> rank_order{Dim::Tp, Dim::Cp, Dim::Dp, Dim::Pp};  // fastest first
  std::vector<GpuId> devices{};     // GPU of every rank; empty: rank r on GPU r
  bool overlap_grad_reduce = true;  // reduce gradient buckets under the backward pass
  bool overlap_param_gather =
      true;  // with zero >= 1: gather parameters under the next forward pass
  bool overlap_shared_experts = false;  // they run under the all-to-all before the experts
  std::uint8_t recompute_modules = 0;   // kRecompute*, beside `recompute`
  bool overlap_p2p = true;  // pipeline messages travel under compute, where the stack can
  std::int64_t bucket_elements = 40'000'000;  // parameters per gradient bucket

  bool operator==(const Layout&) const = default;

  std::int32_t ranks() const { return tp * cp * dp * pp; }
  std::int32_t chunks() const { return pp * vpp; }  // model chunks; chunk c lives on stage c mod pp
  /// Data-parallel ranks (of dp x cp) that one copy of the sharded states is spread over.
  std::int32_t shards() const;
  std::int32_t degree(Dim d) const;
  Coordinates coordinates(RankId rank) const;
  RankId rank(Coordinates at) const;

  /// Layers that Block recomputes at most in each chunk of a stage.
  std::int32_t recomputed_layers(std::int32_t stage) const;

  /// Layers of each chunk in model order (size pp x vpp): `stage_layers`, or as even as possible
  /// with the remainder on the middle chunks (first and last also carry embedding and head).
  std::vector<std::int32_t> layers_per_chunk(std::int64_t model_layers) const;
};

}  // namespace gputwin
