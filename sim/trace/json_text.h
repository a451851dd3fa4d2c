// Appends JSON pieces to a buffer; made for writing millions of small objects.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/core/units.h"

namespace gputwin {

inline void append(std::string& out, std::string_view text) { out.append(text); }

inline void append_number(std::string& out, std::int64_t value) {
  const fmt::format_int digits(value);
  out.append(digits.data(), digits.size());
}

/// Picoseconds as microseconds, the unit of the trace format, exactly: up to six decimals, no
/// rounding.
inline void append_microseconds(std::string& out, Ps time) {
  append_number(out, time / 1'000'000);
  std::int64_t rest = time % 1'000'000;
  if (rest == 0) return;
  char digits[7] = {'.', '0', '0', '0', '0', '0', '0'};
  int last = 0;
  for (int i = 6; i > 0; --i, rest /= 10) {
    digits[i] = static_cast<char>('0' + rest % 10);
    if (last == 0 && digits[i] != '0') last = i;
  }
  out.append(digits, static_cast<std::size_t>(last) + 1);
}

/// `text` as a quoted JSON string.
inline void append_string(std::string& out, std::string_view text) {
  out.push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out.push_back('\\');
      out.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<int>(c));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
}

}  // namespace gputwin
