#include "strategies/registry.h"

#include <array>

namespace gputwin {
namespace {

constexpr std::array<StepEntry, 9> kSteps{{
    {"lower", "kernels, collectives and buffers of every stage, by layer and phase"},
    {"compress",
     "payloads in place of layers' collectives, gradient sums and messages: encode, exchange, "
     "decode"},
    {"recompute", "forward operations repeated in backward instead of keeping their results"},
    {"overlap", "samples in chunks, the collective of one under the kernels of the next"},
    {"split", "weight gradients taken out of the backward pass, where the schedule wants it"},
    {"derive",
     "the events between streams that data demands, allocation at first use, freeing after the "
     "last"},
    {"schedule", "the order of passes over micro-batches, and the messages between stages"},
    {"offload", "weights, gradients and optimizer states that live in host memory or on NVMe"},
    {"verify", "matching sequences, events, liveness and bytes of the finished plan"},
}};

constexpr std::array<ScheduleEntry, 14> kSchedules{{
    {Schedule::None, "none", "one stage: micro-batches one by one, gradients accumulate"},
    {Schedule::Gpipe, "gpipe", "all forwards, then all backwards"},
    {Schedule::OneFOneB, "1f1b",
     "one forward, one backward after a warm-up (PipeDream-flush, DAPPLE)"},
    {Schedule::Interleaved, "interleaved", "1f1b over several model chunks per stage (Megatron)"},
    {Schedule::ZbH1, "zb-h1", "weight gradients apart fill waits, memory of 1f1b (zero bubble)"},
    {Schedule::ZbH2, "zb-h2", "weight gradients apart, no waits, twice the memory of 1f1b"},
    {Schedule::Zb1p, "zb-1p", "searched order with weight gradients apart, memory of 1f1b"},
    {Schedule::Zb2p, "zb-2p", "searched order with weight gradients apart, twice that memory"},
    {Schedule::ZbV, "zb-v", "zero bubble over two chunks per stage in a V, memory of 1f1b"},
    {Schedule::Hanayo, "hanayo", "waves: chunks snake over the stages, one copy of the weights"},
    {Schedule::DualPipe, "dualpipe", "micro-batches run both ways through two copies (DeepSeek)"},
    {Schedule::Chimera, "chimera", "1f1b both ways through two copies of the model"},
    {Schedule::PipedreamAsync, "pipedream-async",
     "1f1b without a flush, two versions of the weights (PipeDream-2BW)"},
    {Schedule::PipedreamStash, "pipedream-stash",
     "1f1b without a flush, a step after every micro-batch, weights stashed (PipeDream); layer "
     "graphs alone"},
}};

}  // namespace

std::span<const StepEntry> step_table() { return kSteps; }
std::span<const ScheduleEntry> schedule_table() { return kSchedules; }

}  // namespace gputwin
