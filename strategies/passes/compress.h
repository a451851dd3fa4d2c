// Compresses the tensor-parallel collectives of the layers: encode on the compute stream, exchange
// payloads, decode. Codes are not linear, so they cannot be summed inside a ring.
#pragma once

#include <optional>

#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/segment.h"
#include "sim/core/workload.h"

namespace gputwin {

/// `lowered` with the codecs of layout.compression on all sums and gathers of activations and of
/// their gradients over tp inside the layers.
///
/// All-reduce, gather sum: encode, all-gather, decode and add t payloads. Two-step: encode,
/// all-to-all, decode and add the own part, encode it, all-gather, decode: two errors.
/// Reduce-scatter and all-gather (sequence parallelism): the first and the second half of two-step.
/// Source  research note, sections 3 and 5; ZeRO++ and Flash Communication for two steps.
Lowered compress(Lowered lowered);

/// Expected relative error of one exchange of normal values, rows of `width`: the two steps of an
/// all-reduce encode twice, with errors that add in squares. None for low rank.
std::optional<double> exchange_error(const Codec& codec, CompressedSum sum, std::int64_t width,
                                     bool sequence_parallel);

/// Why the collectives of such a layout cannot be compressed, if so.
std::optional<Infeasible> compress_refusal(const Transformer& model, const Layout& layout,
                                           const Job& job);

}  // namespace gputwin
