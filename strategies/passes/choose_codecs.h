// Codecs that a search may take, and those of gradients and messages by their costs.
#pragma once

#include <vector>

#include "sim/core/cluster.h"
#include "sim/core/workload.h"
#include "strategies/passes/overlap.h"

namespace gputwin {

/// A codec and how its payloads are added.
struct CodecChoice {
  Codec codec{};
  CompressedSum sum = CompressedSum::TwoStep;
};

/// None, then every codec with an expected error up to `max_error` on rows of `width`; `scattered`:
/// sums of one step (exchange_error).
std::vector<CodecChoice> codec_choices(double max_error, std::int64_t width, bool scattered);

/// Fills in the codecs of gradients and of messages that a search leaves open, for `layout`, whose
/// codecs of the layers are chosen. None stays where no codec is faster by these costs.
///
/// Gradients: kernels of the codec, which hold up the compute stream, plus the longer of exchanges
/// and the last micro-batch's backward pass (their sum where reductions do not overlap it), on the
/// first stage. Messages: encode, send, decode of one against the whole one.
void choose_codecs(const Transformer& model, const Cluster& cluster, const Job& job,
                   double max_error, const StagePrices& prices, Layout& layout);

}  // namespace gputwin
