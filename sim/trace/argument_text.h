// Reads single members of a slice's arguments, which are kept as the text of a JSON object.
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace gputwin {

/// Text behind `"key":` in `object`, without leading spaces; empty if there is no such member. Keys
/// that stand within a text value are not told apart: the arguments of traces have no such texts.
inline std::string_view after_key(std::string_view object, std::string_view key) {
  for (std::size_t at = object.find(key); at != std::string_view::npos;
       at = object.find(key, at + 1)) {
    const std::size_t quote = at + key.size();
    if (at == 0 || object[at - 1] != '"' || quote >= object.size() || object[quote] != '"')
      continue;
    std::size_t value = quote + 1;
    while (value < object.size() && object[value] == ' ') ++value;
    if (value >= object.size() || object[value] != ':') continue;
    ++value;
    while (value < object.size() && object[value] == ' ') ++value;
    return object.substr(value);
  }
  return {};
}

/// The whole number of a member, if it is one.
inline std::optional<std::int64_t> number_in(std::string_view object, std::string_view key) {
  const std::string_view text = after_key(object, key);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc()) return std::nullopt;
  return value;
}

/// The text of a member, as it stands between its quotes; empty if it is none.
inline std::string_view text_in(std::string_view object, std::string_view key) {
  const std::string_view text = after_key(object, key);
  if (text.empty() || text.front() != '"') return {};
  const std::size_t end = text.find('"', 1);
  return end == std::string_view::npos ? std::string_view() : text.substr(1, end - 1);
}

}  // namespace gputwin
