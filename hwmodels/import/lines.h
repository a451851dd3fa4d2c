// Text in lines, and words and numbers in lines.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gputwin {

/// Lines without their ends (LF or CRLF) and without terminal colours. Throws InputError for an
/// empty file, and naming the line for bytes that are no text.
std::vector<std::string> text_lines(const std::string& file, const std::string& text);

/// Words between blanks.
std::vector<std::string> words_of(std::string_view line);

std::optional<std::int64_t> whole_number(std::string_view word);
std::optional<double> real_number(std::string_view word);

[[noreturn]] void fail_at(const std::string& file, std::size_t line, const std::string& value,
                          const std::string& problem, const std::string& fix);

}  // namespace gputwin
