// How a job is spread over ranks: degrees, stages, schedule, recomputation, and the device of every
// rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/core/ids.h"
#include "sim/core/offload.h"
#include "sim/core/pass_options.h"

namespace gputwin {

/// Order of passes over micro-batches; strategies/README.md has a table of them.
enum class Schedule : std::uint8_t {
  None,
  Gpipe,
  OneFOneB,
  Interleaved,
  ZbH1,
  ZbH2,
  Zb1p,
  Zb2p,
  ZbV,
  Hanayo,
  DualPipe,
  Chimera,
  PipedreamAsync,
  PipedreamStash
};

/// Which model chunks a stage holds. With p stages chunk c lies on stage c mod p (round robin), or
/// the direction turns with every p chunks (snake); two ways: chunk c lies on stage c and, for the
/// micro-batches that run upwards, on stage p - 1 - c.
enum class Placement : std::uint8_t { RoundRobin, Snake, TwoWay };

constexpr Placement placement(Schedule s) {
  switch (s) {
    case Schedule::ZbV:
    case Schedule::Hanayo: return Placement::Snake;
    case Schedule::DualPipe:
    case Schedule::Chimera: return Placement::TwoWay;
    case Schedule::None:
    case Schedule::Gpipe:
    case Schedule::OneFOneB:
    case Schedule::Interleaved:
    case Schedule::ZbH1:
    case Schedule::ZbH2:
    case Schedule::Zb1p:
    case Schedule::Zb2p:
    case Schedule::PipedreamAsync:
    case Schedule::PipedreamStash: break;
  }
  return Placement::RoundRobin;
}

/// True if the backward pass is cut into the gradients of inputs and those of weights.
constexpr bool splits_backward(Schedule s) {
  return (s >= Schedule::ZbH1 && s <= Schedule::ZbV) || s == Schedule::DualPipe;
}

/// True if each stage takes its optimizer step without waiting for the others, and the gradient
/// norm of all is checked in the next iteration (post-validation).
constexpr bool validates_later(Schedule s) { return s >= Schedule::ZbH1 && s <= Schedule::ZbV; }

/// True if iterations follow one another without a flush, so that gradients are those of older
/// weights.
constexpr bool never_drains(Schedule s) {
  return s == Schedule::PipedreamAsync || s == Schedule::PipedreamStash;
}

enum class Recompute : std::uint8_t { None, Selective, Full, Block, AllButLast };

/// Parts of a layer that are computed again in the backward pass instead of kept, as bits.
enum : std::uint8_t {
  kRecomputeMlaUp = 1,          // the products that expand MLA's latent vectors
  kRecomputeMoeActivation = 2,  // the experts' activation function
  kRecomputeNorms = 4,          // the two norms of a layer
  kRecomputeMlp = 8,            // the MLP of a layer without experts, or its shared experts
  kRecomputeMoe = 16,           // everything between dispatch and combination
  kRecomputeOps = 32            // torchtitan's choice by operator: passes/recompute.h
};

/// How context-parallel ranks exchange keys and values: gathered before the attention kernel,
/// passed around a ring under it, or heads traded for tokens (Ulysses).
enum class ContextComm : std::uint8_t { AllGather, Ring, AllToAll };

/// How expert-parallel ranks over several nodes exchange rows: each with each; first within the
/// nodes and then between them, in fewer and longer messages (Tutel's 2DH, DeepSpeed-MoE); or the
/// one that the costs say is faster.
enum class ExpertComm : std::uint8_t { Flat, Hierarchical, Auto };

/// How tensor-parallel collectives hide under the GEMM they belong to: not at all, in chunks
/// through Transformer Engine's user buffers, through symmetric memory (torch async TP), or
/// all-reduces alone by columns of their product (Domino's column split), or token shards passed
/// around a ring beside products of their rows, one way or both. FusedBound is no strategy but a
/// bound: products and their exchanges as if in one kernel of tiles.
enum class TpOverlap : std::uint8_t {
  None,
  Userbuffers,
  AsyncTp,
  Columns,
  Ring,
  RingBothWays,
  FusedBound
};

constexpr bool is_ring(TpOverlap o) { return o == TpOverlap::Ring || o == TpOverlap::RingBothWays; }

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
  ExpertComm ep_comm = ExpertComm::Flat;
  // Of the ranks that share experts, consecutive ones that exchange among themselves first; 0: all
  // exchange at once. make_plan sets it from `ep_comm` and the nodes.
  std::int32_t ep_inner = 0;
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
  // Layer graphs: replicas of each stage, which share every micro-batch; empty: dp copies of the
  // whole pipeline. Rank r is a replica of the first stage that has one left, and dp is 1.
  std::vector<std::int32_t> stage_replicas{};
  std::array<Dim, 4> rank_order{Dim::Tp, Dim::Cp, Dim::Dp, Dim::Pp};  // fastest first
  std::vector<GpuId> devices{};     // GPU of every rank; empty: rank r on GPU r
  bool overlap_grad_reduce = true;  // reduce gradient buckets under the backward pass
  bool overlap_param_gather =
      true;  // with zero >= 1: gather parameters under the next forward pass
  bool overlap_shared_experts = false;  // they run under the all-to-all before the experts
  std::uint8_t recompute_modules = 0;   // kRecompute*, with recompute none
  bool overlap_p2p = true;  // pipeline messages travel under compute, where the stack can
  std::int64_t bucket_elements = 40'000'000;  // parameters per gradient bucket; 0: as the stack
  bool single_queue = false;  // kernels start in the order of issue (CUDA_DEVICE_MAX_CONNECTIONS=1)
  ChunkOverlap chunk_overlap{};
  Compression compression{};
  OffloadSpec offload{};  // what leaves the GPU, by the pass of that name

  bool operator==(const Layout&) const = default;

  std::int32_t ranks() const;
  std::int32_t chunks() const { return pp * vpp; }  // model chunks
  /// Chunks that each stage holds: vpp, or one for each way.
  std::int32_t local_chunks() const { return placement(schedule) == Placement::TwoWay ? 2 : vpp; }
  /// Model chunk that is local chunk `local` of `stage`.
  std::int32_t chunk_at(std::int32_t stage, std::int32_t local) const;
  /// Stage of a model chunk; `way` 1: of its copy for the micro-batches that run upwards.
  std::int32_t stage_of(std::int32_t chunk, std::int32_t way = 0) const;
  /// Local index of a model chunk on its stage.
  std::int32_t local_of(std::int32_t chunk, std::int32_t way = 0) const {
    return placement(schedule) == Placement::TwoWay ? way : chunk / pp;
  }
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
