// Ways out of a wrong value: the nearest spelling, the nearest legal numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gputwin {

/// Smallest number of inserted, deleted, replaced or swapped neighbouring characters that turns `a`
/// into `b` (optimal string alignment), ignoring case and reading '-' as '_'.
std::size_t edit_distance(const std::string& a, const std::string& b);

/// The word of `words` nearest to `word`; of several equally near the one with the longest common
/// beginning, then the first. Empty if `words` is empty.
std::string nearest_word(const std::string& word, const std::vector<std::string>& words);

/// True if `a` is near enough to `b` to be a slip of the pen: distance at most a third of its
/// length, or one.
bool is_slip(const std::string& a, const std::string& b);

/// "nearest: x; legal: a, b, c", with at most twelve of the legal words.
std::string word_advice(const std::string& word, const std::vector<std::string>& words);

/// Legal numbers next to `value` in [low, high]: at most one below, one above (or `value` itself).
std::vector<std::int64_t> nearest_legal(std::int64_t value, std::int64_t low, std::int64_t high,
                                        const std::function<bool(std::int64_t)>& legal);

/// "nearest legal values: 2, 4", or `otherwise` if there is none.
std::string number_advice(const std::vector<std::int64_t>& values, const std::string& otherwise);

}  // namespace gputwin
