// Turns segments and a schedule's tables into instructions.
#pragma once

#include "sim/core/segment.h"
#include "strategies/schedules/pass_templates.h"
#include "strategies/schedules/table.h"

namespace gputwin {

/// A lowered job whose passes are ready to be stamped.
struct Templates {
  Plan plan;  // bodies still empty
  Layout layout;
  bool blocking_messages = false;
  std::int32_t micro_batches = 0;
  std::vector<StageTemplates> stages;
};

/// Derives events and memory of every stage's passes, where derives_bodies() does not hold.
Templates derive_templates(Lowered lowered, const std::vector<StageTable>& tables);

/// The plan with one body per program: begin, the passes of the stage's table, finish.
///
/// Messages. A pass sends right after its last operation. A receive is issued right before the pass
/// that needs it, after the receives of earlier messages from the same rank. Activations and
/// gradients go on streams of their own in each direction; where both neighbours are one rank (two
/// stages, interleaved), or chunks run down and up the stages, one stream each way carries both,
/// and receives follow the sender's order. So on every ordered pair of ranks both ends issue the
/// same sequence, and each transfer waits only for its producer, for earlier transfers of the pair
/// and for the host: as the tables respect data dependencies, no cycle can form.
///
/// Post-validation (validates_later). Stages start the next body when they themselves have ended
/// one: streams wait for the compute stream at the border of a body, ranks not for each other.
///
/// No flush (PipedreamAsync). Bodies follow one another on every stream by the plan's own events,
/// which are derived from bodies that repeat (synchronise_endless). With two versions of the
/// weights (PipeDream-2BW) a micro-batch meets the same weights forward and backward; kernels name
/// the newer one in either pass, which is the same time.
///
/// Blocking messages (Megatron-LM's p2p_communication: batch_isend_irecv, wait, synchronise): after
/// a pass its message is sent, the message for the next pass is received, and compute stream and
/// host wait for both; sends wait for all compute issued before. With several chunks a pair of
/// forward and backward exchanges its four messages at once
/// (send_forward_backward_recv_forward_backward).
Plan emit(Templates templates, const std::vector<StageTable>& tables);

}  // namespace gputwin
