#include "validation/convergence/grammar_text.h"

#include <array>
#include <random>
#include <string_view>

#include "sim/core/check.h"

namespace gputwin::convergence {
namespace {

constexpr std::array<std::string_view, 16> kNouns{
    "river",  "engine",   "baker",  "garden", "captain", "lantern", "window",  "farmer",
    "letter", "mountain", "sailor", "bridge", "teacher", "forest",  "painter", "market"};
constexpr std::array<std::string_view, 12> kAdjectives{"old",   "quiet",  "bright", "narrow",
                                                       "young", "heavy",  "green",  "clever",
                                                       "cold",  "broken", "gentle", "distant"};
constexpr std::array<std::string_view, 12> kVerbs{"carry", "follow",   "paint", "know",
                                                  "visit", "repair",   "hear",  "answer",
                                                  "build", "remember", "cross", "find"};
constexpr std::array<std::string_view, 8> kTimes{"today",   "at dawn",  "in winter", "every year",
                                                 "at noon", "by night", "again",     "in silence"};

class Grammar {
 public:
  explicit Grammar(std::uint64_t seed) : bits_(seed) {}

  std::string line() {
    switch (below(4)) {
      case 0: return sum();
      case 1: return "the " + pick(kNouns) + " says: \"" + clause(1) + "\".\n";
      default: return clause(2) + ".\n";
    }
  }

 private:
  std::uint64_t below(std::uint64_t n) { return (bits_() >> 16) % n; }

  template <std::size_t n>
  std::string pick(const std::array<std::string_view, n>& words) {
    return std::string(words[below(n)]);
  }

  std::string verb(bool plural) {
    const std::string stem = pick(kVerbs);
    if (plural) return stem;
    return stem.back() == 'y' && stem == "carry" ? "carries"
                                                 : stem + (stem == "cross" ? "es" : "s");
  }

  std::string noun_phrase(int depth, bool plural) {
    std::string text = plural ? "the " : below(2) == 0 ? "the " : "this ";
    if (below(2) == 0) text += pick(kAdjectives) + " ";
    text += pick(kNouns) + (plural ? "s" : "");
    if (depth > 0 && below(4) == 0) {
      text += " that " + verb(plural) + " " + noun_phrase(depth - 1, below(2) == 0) + ",";
    }
    return text;
  }

  std::string clause(int depth) {
    const bool plural = below(2) == 0;
    std::string text = noun_phrase(depth, plural) + " " + verb(plural) + " ";
    text += noun_phrase(depth - 1, below(2) == 0);
    if (text.back() == ',') text.pop_back();
    if (below(3) == 0) text += " " + pick(kTimes);
    if (depth > 1 && below(4) == 0) text += ", and " + clause(depth - 1);
    return text;
  }

  std::string sum() {
    const std::uint64_t a = below(50), b = below(50);
    return std::to_string(a) + " + " + std::to_string(b) + " = " + std::to_string(a + b) + ".\n";
  }

  std::mt19937_64 bits_;
};

}  // namespace

std::string grammar_text(std::size_t bytes, std::uint64_t seed) {
  Grammar grammar(seed);
  std::string text;
  while (text.size() < bytes) text += grammar.line();
  return text;
}

const std::string& alphabet() {
  static const std::string all = "\n .,:\"+=0123456789abcdefghijklmnopqrstuvwxyz";
  return all;
}

std::vector<std::int32_t> tokens_of(const std::string& text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char c : text) {
    const std::size_t at = alphabet().find(c);
    GPUTWIN_CHECK(at != std::string::npos, "a grammar text stays within its alphabet");
    tokens.push_back(static_cast<std::int32_t>(at));
  }
  return tokens;
}

}  // namespace gputwin::convergence
