// How large buckets of parameters should be.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/units.h"

namespace gputwin {

/// Lays tensors into buckets in order without splitting one: a bucket is closed when it holds
/// `limit` elements or more. A tensor larger than `limit` has one of its own. Elements by bucket.
std::vector<std::int64_t> fill_buckets(const std::vector<std::int64_t>& tensors,
                                       std::int64_t limit);

/// Bytes that a copy needs so that its start-up costs at most `share` of it: (1 / share - 1) x
/// start-up x rate.
Bytes efficient_copy(Seconds start_up, BytesPerSecond rate, double share);

/// The limit whose equal slots waste least: the unused ends of slots as large as the largest
/// ordinary bucket, over all slots. Ordinary: not of a tensor alone that is larger than every
/// candidate (embeddings). Candidates lie between `least` and `most`: every `step`, and the sizes
/// of tensors, since a bucket that holds a large one and no more leaves nothing unused; of equal
/// ones the smallest. Source: the search of ColossalAI's Gemini
/// (zero/gemini/chunk/search_utils.py).
std::int64_t choose_bucket_elements(const std::vector<std::int64_t>& tensors, std::int64_t least,
                                    std::int64_t most, std::int64_t step);

}  // namespace gputwin
