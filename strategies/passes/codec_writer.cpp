#include "strategies/passes/codec_writer.h"

#include <algorithm>
#include <utility>

#include "sim/core/codec.h"

namespace gputwin {
namespace {

Op codec_op(const Codec& codec, OpKind kind, const View& x, std::int64_t parts) {
  return {.kind = kind,
          .dims = {x.rows, x.cols, kept_values(codec, x.cols), codec.bits,
                   static_cast<std::int64_t>(codec.kind), parts}};
}

}  // namespace

View CodecWriter::view(Buffer buffer, std::int64_t rows, std::int64_t cols) {
  buffer.bytes = Bytes(stored_bytes(buffer.dtype, rows * cols));
  const DType dtype = buffer.dtype;
  return {.buffer = builder_.buffer(std::move(buffer)),
          .rows = rows,
          .cols = cols,
          .ld = cols,
          .dtype = dtype};
}

View CodecWriter::tensor(const std::string& name, std::int64_t rows, std::int64_t cols,
                         DType dtype) {
  return view({.name = prefix_ + name,
               .memory = MemoryClass::Communication,
               .dtype = dtype,
               .framed = framed_},
              rows, cols);
}

View CodecWriter::kept(const std::string& name, std::int64_t rows, std::int64_t cols, DType dtype,
                       std::uint64_t seed) {
  return view({.name = prefix_ + name,
               .memory = MemoryClass::Communication,
               .dtype = dtype,
               .persistent = true,
               .seed = seed},
              rows, cols);
}

View CodecWriter::encoded(const Codec& codec, const View& x, const std::string& step,
                          const View& residual) {
  const View payload = tensor(step + "_payload", x.rows, row_bytes(codec, x.cols), DType::U8);
  const Op op = codec_op(codec, OpKind::Encode, x, 0);
  if (residual.buffer.valid()) {
    kernel(step + "_encode", op, {x, residual}, {payload, residual});
  } else {
    kernel(step + "_encode", op, {x}, {payload});
  }
  return payload;
}

void CodecWriter::decoded(const Codec& codec, const View& payloads, const View& y,
                          std::int64_t parts, const std::string& step) {
  kernel(step + "_decode", codec_op(codec, OpKind::Decode, y, parts), {payloads}, {y});
}

void CodecWriter::kernel(const std::string& name, Op op, std::vector<View> reads,
                         std::vector<View> writes) {
  if (!reads.empty()) op.dtype = reads[0].dtype;
  op.out = writes[0].dtype;
  add(Kind::Kernel, compute_, name,
      {.op = op, .reads = std::move(reads), .writes = std::move(writes)});
}

void CodecWriter::exchange(SlotId slot, OpKind kind, const std::string& name, const View& x,
                           const View& y) {
  const Op op{.kind = kind,
              .dtype = x.dtype,
              .out = y.dtype,
              .slot = slot,
              .dims = {std::max(x.elements(), y.elements())}};
  add(Kind::Collective, source_.stream, name, {.op = op, .reads = {x}, .writes = {y}});
}

void CodecWriter::add(Kind kind, std::uint8_t stream, const std::string& name, Call call) {
  Name n = builder_.plan().names[source_.name.value];
  n.op += name;
  const NameId id = builder_.name(std::move(n));
  out_->push_back(
      {.kind = kind, .stream = stream, .call = builder_.call(std::move(call)), .name = id});
}

}  // namespace gputwin
