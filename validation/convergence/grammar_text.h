// A text to learn: sentences of a small grammar, drawn by a fixed generator. It is made, not
// shipped, so that it is anybody's to use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gputwin::convergence {

/// At least `bytes` characters of whole lines: clauses that agree in number, nested relative
/// clauses, quoted speech, and sums that are right. The same seed gives the same text everywhere.
std::string grammar_text(std::size_t bytes, std::uint64_t seed);

/// The characters that a grammar text is made of; a token is an index into it.
const std::string& alphabet();

std::vector<std::int32_t> tokens_of(const std::string& text);

}  // namespace gputwin::convergence
