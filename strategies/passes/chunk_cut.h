// What an operation of a layer becomes for one chunk of a micro-batch: its rows of every framed
// tensor, and in attention its queries over the keys that they see.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sim/core/plan_builder.h"

namespace gputwin {

/// Samples, or tokens, [first, last) of the `all` of a micro-batch.
struct ChunkRange {
  std::int64_t first = 0, last = 0, all = 1;
};

/// A call of a chunk and the end of its name: "" where it is that of the whole call.
struct ChunkCall {
  Call call;
  const char* suffix = "";
};

/// Cuts the calls of one plan, which it may give new buffers.
///
/// Samples: rows [rows first / all, rows last / all) of every framed view, and dims[0] of the op.
///
/// Sequence (of the one sample): the same rows. Attention takes the chunk's queries and the keys
/// and values of tokens [0, last), which earlier chunks have written: a trapezoid of scores. The
/// chunk's scores lie at rows [a first, a last) of their tensor (a heads), columns [0, last), so
/// both directions need the same chunks. Rotations start at position `first`. Backward, the chunk
/// that ends the sequence comes first and writes the gradients of all keys and values; a chunk
/// before it writes its part of those of [0, last) into a tensor of its own and adds that to them,
/// so that a chunk's gradients are whole once it has added its own. Chunks must therefore pass
/// attention in order forward, in reverse backward.
class ChunkCutter {
 public:
  ChunkCutter(PlanBuilder& builder, bool sequence);

  std::vector<ChunkCall> cut(const Call& call, const ChunkRange& range);

 private:
  Call rows_of(Call call, const ChunkRange& range) const;
  void take_keys(Call& call, const ChunkRange& range) const;
  std::vector<ChunkCall> with_key_gradients(Call call, const ChunkRange& range);
  View part_of(const View& gradient, std::int64_t rows);
  bool is_scores(const View& v) const { return scores_.contains(v.buffer); }

  PlanBuilder& builder_;
  bool sequence_;
  std::set<BufferId> scores_;
  std::map<std::pair<BufferId, std::int64_t>, BufferId> parts_;  // by gradient and its column
};

/// True if a chunk of a sequence needs that others have passed: those before it, or those behind.
bool reads_earlier_keys(OpKind kind);
bool adds_to_earlier_keys(OpKind kind);

}  // namespace gputwin
