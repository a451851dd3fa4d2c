// Adds a codec's operations to segments: encode and decode kernels, exchanges of payloads.
#pragma once

#include <string>
#include <vector>

#include "sim/core/plan_builder.h"
#include "sim/core/segment.h"

namespace gputwin {

/// Writes operations that stand in for others. Kernels run on the compute stream, so that a codec
/// never hides under what it shortens.
class CodecWriter {
 public:
  CodecWriter(PlanBuilder& builder, std::uint8_t compute) : builder_(builder), compute_(compute) {}

  /// Following operations go to `out`, named after `source`; its stream carries the exchanges.
  void into(std::vector<SegmentOp>& out, const SegmentOp& source) {
    out_ = &out;
    source_ = source;
  }
  /// Following buffers are called `prefix` + name, one per micro-batch if `framed`.
  void name_buffers(std::string prefix, bool framed) {
    prefix_ = std::move(prefix);
    framed_ = framed;
  }

  /// A matrix without gaps.
  View tensor(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype);
  /// The same, kept from iteration to iteration; it starts at 0, or at noise with a seed.
  View kept(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype,
            std::uint64_t seed = 0);

  /// The payload of x. `residual`, if any, is what earlier payloads lacked (op.h, note 17).
  View encoded(const Codec& codec, const View& x, const std::string& step,
               const View& residual = {});
  /// y = the sum of `parts` payloads that lie below each other.
  void decoded(const Codec& codec, const View& payloads, const View& y, std::int64_t parts,
               const std::string& step);

  /// `op.dtype` and `op.out` are those of the first read and write, where there are some.
  void kernel(const std::string& name, Op op, std::vector<View> reads, std::vector<View> writes);
  /// A collective over `slot` on the stream of the source.
  void exchange(SlotId slot, OpKind kind, const std::string& name, const View& x, const View& y);

 private:
  View view(Buffer buffer, std::int64_t rows, std::int64_t cols);
  void add(Kind kind, std::uint8_t stream, const std::string& name, Call call);

  PlanBuilder& builder_;
  std::uint8_t compute_;
  std::vector<SegmentOp>* out_ = nullptr;
  SegmentOp source_;
  std::string prefix_;
  bool framed_ = true;
};

}  // namespace gputwin
