// A stream of bits in bytes, lowest bit first.
#pragma once

#include <cstdint>

namespace gputwin::codecs {

class BitWriter {
 public:
  explicit BitWriter(std::uint8_t* to) : to_(to) {}

  /// Appends the low `bits` (0 .. 32) of `value`, which has no others.
  void put(std::uint64_t value, std::int32_t bits) {
    held_ |= value << count_;
    count_ += bits;
    for (; count_ >= 8; count_ -= 8, held_ >>= 8) *to_++ = static_cast<std::uint8_t>(held_);
  }

  /// Fills the last byte up with zeros.
  void finish() {
    if (count_ > 0) *to_++ = static_cast<std::uint8_t>(held_);
    held_ = 0;
    count_ = 0;
  }

 private:
  std::uint8_t* to_;
  std::uint64_t held_ = 0;
  std::int32_t count_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const std::uint8_t* from) : from_(from) {}

  std::uint32_t get(std::int32_t bits) {
    for (; count_ < bits; count_ += 8) held_ |= std::uint64_t{*from_++} << count_;
    const auto value = static_cast<std::uint32_t>(held_ & ((std::uint64_t{1} << bits) - 1));
    held_ >>= bits;
    count_ -= bits;
    return value;
  }

 private:
  const std::uint8_t* from_;
  std::uint64_t held_ = 0;
  std::int32_t count_ = 0;
};

}  // namespace gputwin::codecs
