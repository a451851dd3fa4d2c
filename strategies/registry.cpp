#include "strategies/registry.h"

#include <array>

namespace gputwin {
namespace {

constexpr std::array<StepEntry, 5> kSteps{{
    {"lower", "kernels, collectives and buffers of every stage, by layer and phase"},
    {"recompute", "forward operations repeated in backward instead of keeping their results"},
    {"schedule", "the order of passes over micro-batches, and the messages between stages"},
    {"synchronise", "the events between streams that data demands"},
    {"place_memory", "allocation at first use and freeing after the last"},
}};

constexpr std::array<ScheduleEntry, 4> kSchedules{{
    {Schedule::None, "none", "one stage: micro-batches one by one, gradients accumulate"},
    {Schedule::Gpipe, "gpipe", "all forwards, then all backwards"},
    {Schedule::OneFOneB, "1f1b", "one forward, one backward after a warm-up (PipeDream-flush, DAPPLE)"},
    {Schedule::Interleaved, "interleaved", "1f1b over several model chunks per stage (Megatron)"},
}};

}  // namespace

std::span<const StepEntry> step_table() { return kSteps; }
std::span<const ScheduleEntry> schedule_table() { return kSchedules; }

}  // namespace gputwin
