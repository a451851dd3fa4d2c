#include "hwmodels/import/lines.h"

#include <charconv>
#include <cmath>
#include <cstdint>

#include "sim/core/error.h"

namespace gputwin {

void fail_at(const std::string& file, std::size_t line, const std::string& value,
             const std::string& problem, const std::string& fix) {
  throw InputError(file, "line " + std::to_string(line), value.substr(0, 80), problem, fix);
}

std::vector<std::string> text_lines(const std::string& file, const std::string& text) {
  if (text.empty()) throw InputError(file, "", "", "is empty", "save the output again");
  std::vector<std::string> lines(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '\n') {
      lines.emplace_back();
    } else if (c == 0x1b && i + 1 < text.size() && text[i + 1] == '[') {
      i += 2;  // a colour: digits and semicolons up to a letter
      while (i < text.size() && (text[i] == ';' || (text[i] >= '0' && text[i] <= '9'))) ++i;
    } else if (c == 0 || (c < 0x20 && c != '\t' && c != '\r')) {
      fail_at(file, lines.size(), "", "holds a byte that is no text",
              "is the file compressed or of another kind?");
    } else if (c != '\r') {
      lines.back() += text[i];
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < line.size();) {
    const std::size_t first = line.find_first_not_of(" \t", at);
    if (first == std::string_view::npos) break;
    at = std::min(line.find_first_of(" \t", first), line.size());
    words.emplace_back(line.substr(first, at - first));
  }
  return words;
}

std::optional<std::int64_t> whole_number(std::string_view word) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<double> real_number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  if (!std::isfinite(value)) return std::nullopt;
  return value;
}

}  // namespace gputwin
