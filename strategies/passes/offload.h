// Moves weights, gradients and optimizer states of a finished plan to host memory or NVMe.
//
// What may leave are the buckets that lowering laid parameters into, `objects` below. An object
// that leaves keeps its buffer, which moves to the host's arena: its home. Kernels and collectives
// then use slots of GPU memory, buffers of one size that stay for the whole run: which object lies
// in which slot when is planned by plan_swaps, copies are added on the streams copy_in and
// copy_out, and synchronise() orders them by what they touch: a copy into a slot waits for the last
// reader of the object before, a kernel for its copy. An object that was not written is dropped
// without a copy. The optimizer's step becomes a host task on the stream cpu.
#pragma once

#include "sim/core/cost_model.h"
#include "sim/core/error.h"
#include "sim/core/layout.h"
#include "sim/core/plan.h"
#include "sim/core/topology.h"

namespace gputwin {

/// The plan with `layout.offload` carried out; the same plan if that is not enabled. `costs` and
/// `topology` say how long operations and copies take and how much memory there is; without them
/// every kernel takes 1 us, a copy 1 us and the GPU is full (fewest slots). Infeasible: what is not
/// lowered (other optimizers than Adam; delayed updates of parameters that leave).
Outcome<Plan> offload(Plan plan, const Layout& layout, const CostModel* costs,
                      const Topology* topology);

}  // namespace gputwin
