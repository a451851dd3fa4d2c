// What one stage issues for one micro-batch, with events and memory already derived, ready to be
// stamped.
#pragma once

#include <array>

#include "sim/core/plan_builder.h"
#include "sim/core/segment.h"
#include "strategies/schedules/table.h"

namespace gputwin {

/// Instructions of one pass. Tasks, Alloc and Free of framed buffers carry frame 0; events count
/// from 0.
struct PassTemplate {
  std::vector<Instruction> receive, body,
      send;  // receive and send are empty where nothing comes or goes
};

/// Everything a stage issues. Micro-batches differ by frame and event numbers alone, except the
/// last of a chunk, whose backward pass also reduces gradient buckets.
struct StageTemplates {
  using ByChunk = std::vector<PassTemplate>;  // by local chunk
  std::array<ByChunk, kPassKinds> any, last;  // by PassKind; any micro-batch but the last, the last
  std::vector<Instruction> begin, finish;     // their events belong to the last micro-batch
  PassTemplate validate;                      // before the first backward pass; likewise
  std::uint32_t events = 0, last_events = 0;  // of one micro-batch, of the last
  std::vector<BufferId> buffers;              // that the stage uses
  std::uint8_t compute_stream = 0;

  const PassTemplate& of(const Pass& pass, bool is_last) const {
    return (is_last
                ? last
                : any)[static_cast<std::size_t>(pass.kind)][static_cast<std::size_t>(pass.chunk)];
  }
};

/// The micro-batch that runs last through a local chunk.
std::int32_t last_micro_batch(const Layout& layout, std::int32_t local, std::int32_t micro_batches);

/// True if events and memory are derived from whole bodies: chunks of a stage that hand over to one
/// another, or take different micro-batches, come in an order that one micro-batch does not show,
/// and what bodies that overlap wait for lies in the one before.
constexpr bool derives_bodies(Schedule schedule) {
  return placement(schedule) != Placement::RoundRobin || never_drains(schedule);
}

/// Templates of one stage; its table says what the last micro-batch comes before and after.
///
/// Events and memory are derived by synchronise() and place_memory() on a program of one
/// micro-batch: two micro-batches share no framed buffer, and what they share (weights, gradients,
/// loss) only the compute stream touches before the last backward. So the order of micro-batches
/// cannot add a hazard. Where derives_bodies() holds, templates have tasks alone.
StageTemplates stage_templates(PlanBuilder& builder, const Lowered& lowered, std::int32_t stage,
                               const StageTable& table);

}  // namespace gputwin
