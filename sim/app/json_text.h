// Reads JSON text strictly: duplicate keys, deep nesting and oversized files are bad input.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace gputwin {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxJsonBytes = std::size_t{16} << 20;
inline constexpr int kMaxJsonDepth = 32;

/// The document in `text`, whose name in errors is `file`.
/// Errors  InputError at "line L, column C" for a syntax error or a number too large for a double;
///         at the JSON pointer of a key that stands twice, or of nesting beyond kMaxJsonDepth.
Json parse_json(const std::string& text, const std::string& file);

/// The whole file. Errors: InputError if it cannot be read, is empty, or exceeds kMaxJsonBytes.
std::string read_text_file(const std::filesystem::path& path);

/// `pointer` (RFC 6901) extended by one key or index.
std::string child_pointer(const std::string& pointer, const std::string& key);
std::string child_pointer(const std::string& pointer, std::size_t index);

/// `pointer` without its last token; the root ("") stays the root.
std::string parent_pointer(const std::string& pointer);

/// The node at `pointer`, or null if the document has none. Never throws.
const Json* find_node(const Json& document, const std::string& pointer);

/// `value` as one short line for an error message: at most 60 characters, "" if absent.
std::string short_text(const Json* value);

}  // namespace gputwin
