#include "strategies/offload/strategies.h"

#include <array>

namespace gputwin {
namespace {

constexpr auto kGpu = OffloadPlace::Gpu, kCpu = OffloadPlace::Cpu, kNvme = OffloadPlace::Nvme;

OffloadSpec moved(OffloadPlace params, OffloadPlace gradients, OffloadPlace optimizer) {
  OffloadSpec s;
  s.enabled = true;
  s.params = params;
  s.gradients = gradients;
  s.optimizer = optimizer;
  return s;
}

template <class Change>
OffloadSpec with(OffloadSpec s, Change change) {
  change(s);
  return s;
}

using Spec = OffloadSpec&;

// The 64 Mi elements of a PatrickStar chunk: Tencent/PatrickStar, INSIDE.md.
constexpr std::int64_t kChunk = 64 << 20;

// What StrongHold's artifact measures throughput with (README.md, 2.1.2).
constexpr std::int64_t kWindow = 15;

const std::array<OffloadStrategy, 16> kTable{{
    {"none", "everything stays on the GPU", {}},
    {"greedy",
     "as little leaves as memory asks for: Adam's states, then gradients, then weights, which come "
     "back by the greedy schedule",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.params_auto = true;
            s.optimizer_share = -1;
          })},
    {"greedy-unclipped",
     "the same where gradients are not clipped by their norm: the host's step of a bucket starts "
     "when its gradient is there",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.params_auto = true;
            s.optimizer_share = -1;
            s.optimizer_by_bucket = true;
            s.clip_by_norm = false;
          })},
    {"zero-offload",
     "weights stay, gradients go down in backward, Adam on the host (Ren et al. 2021)",
     moved(kGpu, kCpu, kCpu)},
    {"zero-offload-dpu",
     "the same, each step with the gradients of the iteration before (delayed update)",
     with(moved(kGpu, kCpu, kCpu), [](Spec s) { s.delayed_update = true; })},
    {"zero-offload-plus",
     "the same, half of the parameters updated on the GPU (Twin-Flow, DeepSpeed offload++)",
     with(moved(kGpu, kGpu, kCpu), [](Spec s) { s.optimizer_share = 0.5; })},
    {"megatron-hybrid",
     "moments leave and the host steps its own F32 weights; masters and the clip stay "
     "(--optimizer-cpu-offload, --optimizer-offload-fraction as optimizer_share; "
     "megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py)",
     with(moved(kGpu, kGpu, kCpu), [](Spec s) { s.masters_on_gpu = true; })},
    {"zero-infinity-cpu",
     "all weights on the host, prefetched in traced order; also ZeRO-3 offload (Rajbhandari et "
     "al. 2021)",
     moved(kCpu, kCpu, kCpu)},
    {"zero-infinity-nvme", "the same with Adam's states on NVMe", moved(kCpu, kCpu, kNvme)},
    {"l2l",
     "one bucket on the GPU at a time, fetched when needed; states come up for the step "
     "(Pudipeddi et al. 2020)",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.policy = OffloadPolicy::OnDemand;
            s.slots = 1;
            s.step_on_gpu = true;
          })},
    {"patrickstar",
     "chunks of 64 Mi elements fetched on demand in the compute stream, farthest next use leaves, "
     "a "
     "tenth of memory kept free (Fang et al. 2022; examples/ps_config.py, run_transformers.sh)",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.params_auto = true;
            s.overlap_copies = false;
            s.reserve = 0.1;
            s.policy = OffloadPolicy::OnDemand;
            s.bucket_elements = kChunk;
          })},
    {"gemini", "chunks of searched size, prefetched in traced order (ColossalAI; reconstruction)",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.params_auto = true;
            s.reserve = 0.1;
          })},
    {"stronghold",
     "the first layers stay whole, a window as large moves over the others, whose step begins when "
     "their gradient is there (Sun et al. 2022; strongh2/sc22-ae, SHv0/megatron/training.py)",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.window = kWindow;
            s.slots = kWindow;
            s.writes_back = true;
            s.optimizer_by_bucket = true;
            s.clip_by_norm = false;
          })},
    {"capuchin",
     "weights swapped by a measured trace, Adam on the GPU (Peng et al. 2020; tensors of "
     "activations are left to recomputation)",
     with(moved(kCpu, kGpu, kGpu), [](Spec s) { s.params_auto = true; })},
    {"fsdp-offload",
     "shards on the host fetched when needed, from pageable memory, Adam there (PyTorch FSDP)",
     with(moved(kCpu, kCpu, kCpu),
          [](Spec s) {
            s.policy = OffloadPolicy::OnDemand;
            s.pinned = false;
          })},
    {"superoffload",
     "steps begin before the norm is known, a tenth on the GPU, F32 over links that are fast "
     "enough "
     "(Lian et al. 2025)",
     with(moved(kGpu, kCpu, kCpu),
          [](Spec s) {
            s.optimizer_by_bucket = true;
            s.clip_by_norm = false;
            s.optimizer_share = 0.9;
            s.cast = OffloadCast::Cheaper;
          })},
}};

}  // namespace

std::span<const OffloadStrategy> offload_strategies() { return kTable; }

std::optional<OffloadSpec> find_offload_strategy(std::string_view name) {
  for (const OffloadStrategy& s : kTable) {
    if (s.name == name) return s.spec;
  }
  return std::nullopt;
}

std::string_view offload_name(const OffloadSpec& spec) {
  for (const OffloadStrategy& s : kTable) {
    if (s.spec == spec) return s.name;
  }
  return "own";
}

}  // namespace gputwin
