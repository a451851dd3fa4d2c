#include "sim/app/suggestion.h"

#include <fmt/format.h>

#include <algorithm>

namespace gputwin {
namespace {

/// Farther than this the search for a legal neighbour stops.
constexpr std::int64_t kMaxSteps = 200'000;

char folded(char c) {
  if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
  return c == '-' ? '_' : c;
}

}  // namespace

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char x = folded(a[i - 1]), y = folded(b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& words) {
  std::string best;
  std::size_t best_distance = 0, best_prefix = 0;
  const std::string head =
      word.substr(0, 64);  // keeps a pasted file from costing a quadratic search
  for (const std::string& candidate : words) {
    const std::size_t distance = edit_distance(head, candidate);
    std::size_t prefix = 0;
    while (prefix < std::min(head.size(), candidate.size()) && head[prefix] == candidate[prefix])
      ++prefix;
    if (best.empty() || distance < best_distance ||
        (distance == best_distance && prefix > best_prefix)) {
      best = candidate;
      best_distance = distance;
      best_prefix = prefix;
    }
  }
  return best;
}

bool is_slip(const std::string& a, const std::string& b) {
  return edit_distance(a.substr(0, 64), b) <= std::max<std::size_t>(1, b.size() / 3);
}

std::string word_advice(const std::string& word, const std::vector<std::string>& words) {
  if (words.empty()) return "leave it out";
  constexpr std::size_t kShown = 12;
  std::string list;
  for (std::size_t i = 0; i < std::min(words.size(), kShown); ++i) {
    list += (i == 0 ? "" : ", ") + words[i];
  }
  if (words.size() > kShown) list += fmt::format(" and {} more", words.size() - kShown);
  return "nearest: " + nearest_word(word, words) + "; legal: " + list;
}

std::vector<std::int64_t> nearest_legal(std::int64_t value, std::int64_t low, std::int64_t high,
                                        const std::function<bool(std::int64_t)>& legal) {
  std::vector<std::int64_t> found;
  if (low > high) return found;
  if (value >= low && value <= high && legal(value)) return {value};
  const std::int64_t down = std::min(value - 1, high);
  for (std::int64_t v = down; v >= low && down - v < kMaxSteps; --v) {
    if (legal(v)) {
      found.push_back(v);
      break;
    }
  }
  const std::int64_t up = std::max(value + 1, low);
  for (std::int64_t v = up; v <= high && v - up < kMaxSteps; ++v) {
    if (legal(v)) {
      found.push_back(v);
      break;
    }
  }
  return found;
}

std::string number_advice(const std::vector<std::int64_t>& values, const std::string& otherwise) {
  if (values.empty()) return otherwise;
  std::string text = values.size() == 1 ? "nearest legal value: " : "nearest legal values: ";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return text;
}

}  // namespace gputwin
