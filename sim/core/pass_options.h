// What the passes `overlap` and `compress` do to communication (strategies/passes).
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/codec.h"

namespace gputwin {

/// What a chunk is made of: whole samples of a micro-batch, or tokens of its one sample, which
/// attend to the keys and values of the chunks before; either by how many samples there are.
enum class ChunkSplit : std::uint8_t { Samples, Sequence, Auto };

/// A micro-batch in chunks, so that the collective of one runs under the kernels of the next,
/// across layers. One chunk of everything leaves the plan as it is.
struct ChunkOverlap {
  std::int32_t max_chunks = 1;
  bool named = false;  // the pass is asked for, though one chunk at most cuts nothing
  bool equal = false;  // max_chunks alike, as Merak and Domino cut; else chosen by costs
  ChunkSplit split = ChunkSplit::Samples;
  /// Samples, or tokens, of each chunk in their order; empty: not chosen yet. Alike both ways with
  /// sequence parallelism and where a sequence is cut.
  std::vector<std::int64_t> forward{}, backward{};

  bool operator==(const ChunkOverlap&) const = default;
  bool on() const { return max_chunks > 1; }
  /// True if the sequence of micro-batches of so many samples is cut.
  bool sequence(std::int64_t samples) const {
    return split == ChunkSplit::Sequence || (split == ChunkSplit::Auto && samples == 1);
  }
  bool chosen() const { return !forward.empty() && !backward.empty(); }
};

/// How compressed partial sums are added: every rank gathers and adds all payloads; or parts are
/// exchanged, added, compressed again and gathered (Flash Communication, ZeRO++).
enum class CompressedSum : std::uint8_t { Gather, TwoStep };

/// Codecs by class of tensor: the layers' tensor-parallel collectives by direction, the sums of
/// gradients over data-parallel ranks, and the messages between pipeline stages by direction.
struct Compression {
  Codec forward{}, backward{};
  CompressedSum sum = CompressedSum::TwoStep;  // of the layers' all-reduces and of gradients'
  Codec reduced{};
  bool feedback =
      false;  // what `reduced` drops is kept and added to the next iteration's gradients
  Codec sent{}, sent_back{};  // activations, their gradients
  bool search = false;        // codecs and sum are chosen by costs, the given ones are not read
  double max_error = 0.0;     // of a search: bound on the expected relative error

  bool operator==(const Compression&) const = default;
  bool on_layers() const { return coded(forward) || coded(backward); }
  bool on_gradients() const { return coded(reduced); }
  bool on_messages() const { return coded(sent) || coded(sent_back); }
  bool on() const { return search || on_layers() || on_gradients() || on_messages(); }
  /// True if gradient buckets are padded to whole rows of kGradientRow on every rank.
  bool pads_gradients() const {
    return search || (coded(reduced) && reduced.kind != CodecKind::LowRank);
  }

 private:
  static bool coded(const Codec& codec) { return codec.kind != CodecKind::None; }
};

}  // namespace gputwin
