// The codecs by name, and the error to expect of each.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "sim/core/codec.h"

namespace gputwin {

struct CodecEntry {
  const char* name;  // as scenarios spell it
  Codec usual;       // with its usual settings
  const char* what;
};

/// Explicit table, for scenarios and `gputwin list codecs`.
std::span<const CodecEntry> codec_table();
const CodecEntry* find_codec(std::string_view name);

/// "topk_pwq, keep 0.1, 8 bits"; "none".
std::string describe(const Codec& codec);

/// Expected relative error sqrt(|x - x'|^2 / |x|^2) of one encoding of tokens whose values are
/// normally distributed: 1 - energy of the k largest, and the squared quantisation error. Real
/// activations have heavier tails, which favours keeping the largest; nothing is said about
/// accuracy of a trained model. None for low rank: it depends on the spectrum.
/// Source: research note, section 5; ranges from the expected maximum of n normal values.
std::optional<double> expected_error(const Codec& codec, std::int64_t width);

}  // namespace gputwin
