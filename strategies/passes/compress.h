// Compresses communication: encode on the compute stream, exchange payloads, decode. Codes are not
// linear, so they cannot be summed inside a ring; low rank can.
#pragma once

#include <optional>

#include "sim/core/error.h"
#include "sim/core/job.h"
#include "sim/core/segment.h"
#include "sim/core/workload.h"

namespace gputwin {

/// `lowered` with the codecs of layout.compression on all sums and gathers of activations and of
/// their gradients over tp inside the layers, on the sums of gradients over data-parallel ranks,
/// and on the messages between stages (compress_parts.h).
///
/// All-reduce, gather sum: encode, all-gather, decode and add t payloads. Two-step: encode,
/// all-to-all, decode and add the own part, encode it, all-gather, decode: two errors.
/// Reduce-scatter and all-gather (sequence parallelism): the first and the second half of two-step.
/// Source  research note, sections 3 and 5; ZeRO++ and Flash Communication for two steps.
Lowered compress(Lowered lowered);

/// Expected relative error of one exchange of normal values, rows of `width`: the two steps of an
/// all-reduce encode twice, with errors that add in squares; `scattered`: one step is all (sequence
/// parallelism, zero 1, messages). None for low rank.
std::optional<double> exchange_error(const Codec& codec, CompressedSum sum, std::int64_t width,
                                     bool scattered);

/// Why what layout.compression names cannot be coded, if so. A search is refused only where none
/// of the three classes can be.
std::optional<Infeasible> compress_refusal(const Transformer& model, const Layout& layout,
                                           const Job& job);
/// The same for one class, named in layout.compression or not: the layers' collectives, gradients
/// over data-parallel ranks, messages between stages.
std::optional<Infeasible> compress_layers_refusal(const Transformer& model, const Layout& layout,
                                                  const Job& job);
std::optional<Infeasible> compress_gradients_refusal(const Transformer& model,
                                                     const Layout& layout);
std::optional<Infeasible> compress_messages_refusal(const Layout& layout, const Job& job);

}  // namespace gputwin
