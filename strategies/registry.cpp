#include "strategies/registry.h"

#include <array>

namespace gputwin {
namespace {

constexpr std::array<StepEntry, 5> kSteps{{
    {"lower", "kernels, collectives and buffers of every stage, by layer and phase"},
    {"recompute", "forward operations repeated in backward instead of keeping their results"},
    {"derive",
     "the events between streams that data demands, allocation at first use, freeing after the "
     "last"},
    {"schedule", "the order of passes over micro-batches, and the messages between stages"},
    {"verify", "matching sequences, events, liveness and bytes of the finished plan"},
}};

constexpr std::array<ScheduleEntry, 4> kSchedules{{
    {Schedule::None, "none", "one stage: micro-batches one by one, gradients accumulate"},
    {Schedule::Gpipe, "gpipe", "all forwards, then all backwards"},
    {Schedule::OneFOneB, "1f1b",
     "one forward, one backward after a warm-up (PipeDream-flush, DAPPLE)"},
    {Schedule::Interleaved, "interleaved", "1f1b over several model chunks per stage (Megatron)"},
}};

}  // namespace

std::span<const StepEntry> step_table() { return kSteps; }
std::span<const ScheduleEntry> schedule_table() { return kSchedules; }

}  // namespace gputwin
