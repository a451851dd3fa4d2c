#include "sim/app/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "sim/core/error.h"

namespace gputwin {
namespace {

/// Sees every token before the document is built: nlohmann keeps the last of two equal keys.
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  StrictReader(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(std::size_t) override { return open(false); }
  bool start_array(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.pointer = child_pointer(level.container, name);
    if (!level.keys.insert(name).second) {
      throw InputError(file_, level.pointer, "", "stands twice in the same object",
                       "keep one of the two \"" + name + "\"");
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const std::size_t end = std::min(position == 0 ? 0 : position - 1, text_.size());
    const auto begin = text_.begin();
    const auto stop = begin + static_cast<std::ptrdiff_t>(end);
    const auto line = 1 + std::count(begin, stop, '\n');
    const std::size_t newline = end == 0 ? std::string::npos : text_.rfind('\n', end - 1);
    const std::size_t column = newline == std::string::npos ? end + 1 : end - newline;
    std::string what = error.what();
    const std::size_t colon = what.rfind("; last read");
    if (colon != std::string::npos) what.resize(colon);
    const std::size_t reason = what.rfind(" - ");
    const bool range = what.find("out_of_range") != std::string::npos;
    throw InputError(file_, fmt::format("line {}, column {}", line, column), "",
                     range ? "holds a number too large to represent"
                     : reason == std::string::npos
                         ? "is not valid JSON"
                         : "is not valid JSON: " + what.substr(reason + 3),
                     range ? "write a smaller number" : "correct the text at this place");
  }

 private:
  struct Level {
    std::string container;  // pointer of the object or array
    bool array = false;
    std::size_t elements = 0;    // of an array so far
    std::string pointer;         // of the member last seen
    std::set<std::string> keys;  // of the object so far
  };

  bool value() {
    if (!levels_.empty() && levels_.back().array) {
      Level& level = levels_.back();
      level.pointer = child_pointer(level.container, level.elements++);
    }
    return true;
  }
  bool open(bool array) {
    value();
    Level level;
    level.array = array;
    if (!levels_.empty()) level.container = level.pointer = levels_.back().pointer;
    if (static_cast<int>(levels_.size()) >= kMaxJsonDepth) {
      throw InputError(file_, level.container, "",
                       fmt::format("is nested deeper than {} levels", kMaxJsonDepth),
                       "scenario files need at most 8 levels");
    }
    levels_.push_back(std::move(level));
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  const std::string& text_;
  const std::string& file_;
  std::vector<Level> levels_;
};

}  // namespace

Json parse_json(const std::string& text, const std::string& file) {
  StrictReader reader(text, file);
  Json::sax_parse(text, &reader);
  return Json::parse(text);
}

std::string read_text_file(const std::filesystem::path& path) {
  const std::string name = path.string();
  std::error_code failed;
  const bool regular = std::filesystem::is_regular_file(path, failed);
  if (failed || !regular) {
    const bool exists = std::filesystem::exists(path, failed);
    throw InputError(name, "", "", exists ? "is not a regular file" : "does not exist",
                     "name a readable JSON file");
  }
  const auto size = std::filesystem::file_size(path, failed);
  if (!failed && size > kMaxJsonBytes) {
    throw InputError(name, "", fmt::format("{} bytes", size), "is too large for a scenario file",
                     fmt::format("at most {} bytes", kMaxJsonBytes));
  }
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  if (!stream) throw InputError(name, "", "", "cannot be read", "check its permissions");
  if (text.str().empty()) {
    throw InputError(name, "", "", "is empty", "start from a file in scenarios/runs");
  }
  return text.str();
}

std::string child_pointer(const std::string& pointer, const std::string& key) {
  std::string escaped = pointer + '/';
  for (const char c : key) {
    escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  }
  return escaped;
}

std::string child_pointer(const std::string& pointer, std::size_t index) {
  return pointer + '/' + std::to_string(index);
}

std::string parent_pointer(const std::string& pointer) {
  const std::size_t slash = pointer.rfind('/');
  return slash == std::string::npos ? std::string() : pointer.substr(0, slash);
}

const Json* find_node(const Json& document, const std::string& pointer) {
  const Json* node = &document;
  std::size_t begin = pointer.empty() ? 0 : 1;
  while (begin != 0 && begin <= pointer.size()) {
    const std::size_t end = std::min(pointer.find('/', begin), pointer.size());
    std::string token = pointer.substr(begin, end - begin);
    for (std::size_t at = token.find('~'); at != std::string::npos; at = token.find('~', at + 1)) {
      token.replace(at, 2, token.compare(at, 2, "~1") == 0 ? "/" : "~");
    }
    if (node->is_object()) {
      const auto found = node->find(token);
      if (found == node->end()) return nullptr;
      node = &*found;
    } else if (node->is_array() && !token.empty() && token.size() < 9 &&
               token.find_first_not_of("0123456789") == std::string::npos) {
      const std::size_t index = std::stoul(token);
      if (index >= node->size()) return nullptr;
      node = &(*node)[index];
    } else {
      return nullptr;
    }
    begin = end + 1;
  }
  return node;
}

std::string short_text(const Json* value) {
  if (value == nullptr) return {};
  std::string text = value->dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace gputwin
