// Compression codecs on the processor: real payloads of exactly payload_bytes(codec, …) bytes.
//
// Codecs by token (sim/core/codec.h): TopkPwq, Topk, Pwq, Block, None. Low rank needs the sum over
// the ranks between its two factors and stands in low_rank.h.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/core/codec.h"
#include "validation/codecs/kernels.h"

namespace gputwin::codecs {

/// A tensor of `tokens` rows of `width` elements, without gaps.
struct TensorView {
  const void* data = nullptr;
  Element element = Element::Fp32;
  std::int64_t tokens = 0, width = 0;
};

/// Why `codec` cannot code rows of `width`; empty if it can. Piecewise and even codes take 2 to 16
/// bits, Topk and None 16; width is at most 65,536.
std::string unfit(const Codec& codec, std::int64_t width);

/// Writes x into `payload`, payload_bytes(codec, tokens, width) long.
///
/// Keeps the kept_values(codec, width) largest magnitudes of a token, the first of equals. NaN is
/// larger than infinity, infinity than every number; a quantised token that keeps one of them
/// decodes to NaN where it keeps anything, so that an overflow is seen. 32-bit input is rounded to
/// bf16 where the codec sends 16 bits. Fails   GPUTWIN_CHECK, if the codec is unfit or the payload
/// has another size. Source  reconstruction of the token-level Top-k and piecewise quantisation
/// named in the abstract
///         of Zeng et al., TPDS 2022; layout and grid in row_code.h.
void encode(const Codec& codec, const TensorView& x, std::span<std::uint8_t> payload,
            Path path = best_path());

/// out [tokens, width] = the values of the payload, 0 where none is kept. `element` is that of the
/// tensor encoded: 16-bit values are in its format.
void decode(const Codec& codec, std::span<const std::uint8_t> payload, Element element,
            std::int64_t tokens, std::int64_t width, float* out, Path path = best_path());

/// out += the values of the payload.
void accumulate(const Codec& codec, std::span<const std::uint8_t> payload, Element element,
                std::int64_t tokens, std::int64_t width, float* out, Path path = best_path());

/// Encodes x + residual, and leaves in the residual what the payload lacks (Seide et al. 2014;
/// Karimireddy et al. 2019, algorithm 1). Then the decoded payloads of all steps plus the residual
/// sum to the inputs, up to the rounding of 32-bit additions.
void encode_with_feedback(const Codec& codec, const float* x, std::int64_t tokens,
                          std::int64_t width, std::vector<float>& residual,
                          std::span<std::uint8_t> payload);

/// |decoded - x|^2 / |x|^2, the error proxy of the research note; 0 for an x of zeros.
double relative_square_error(std::span<const float> x, std::span<const float> decoded);

}  // namespace gputwin::codecs
