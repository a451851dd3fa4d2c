#include "tests/tidy/functions.h"

#include <cctype>
#include <regex>

namespace gputwin::tidy {

namespace {

/// `text` with comments and the insides of literals blanked; line breaks stay.
std::string without_comments_and_literals(const std::string& text) {
  std::string out = text;
  const auto blank = [&out](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to && i < out.size(); ++i) {
      if (out[i] != '\n') out[i] = ' ';
    }
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
      blank(i, end);
    } else if (text.compare(i, 2, "/*") == 0) {
      const std::size_t close = text.find("*/", i + 2);
      end = close == std::string::npos ? text.size() : close + 2;
      blank(i, end);
    } else if (text.compare(i, 2, "R\"") == 0) {
      const std::size_t open = text.find('(', i);
      const std::string close = ")" + text.substr(i + 2, open - i - 2) + "\"";
      const std::size_t found = text.find(close, open);
      end = found == std::string::npos ? text.size() : found + close.size();
      blank(i, end);
    } else if (text[i] == '"' ||
               (text[i] == '\'' &&
                (i == 0 || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0))) {
      while (end < text.size() && text[end] != text[i] && text[end] != '\n')
        end += text[end] == '\\' ? 2 : 1;
      blank(i + 1, end);
      ++end;
    } else if (text[i] == '#' && (i == 0 || text[i - 1] == '\n')) {
      end = std::min(text.find('\n', i), text.size());  // a directive, with its continued lines
      while (end < text.size() && text[end - 1] == '\\')
        end = std::min(text.find('\n', end + 1), text.size());
      blank(i, end);
    }
    i = end;
  }
  return out;
}

std::string folded(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!blank) out.push_back(c);
    if (blank && !out.empty() && out.back() != ' ') out.push_back(' ');
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

bool opens_type_or_namespace(const std::string& head) {
  static const std::regex kScope(
      R"((^|[ >])(namespace|class|struct|union|enum|extern)\b[^()=]*(alignas\([^()]*\))?[^()=]*$)");
  return std::regex_search(head, kScope);
}

/// A brace of a constructor's initialiser list: "a_{1}" after ") :".
bool opens_member_initialiser(const std::string& head) {
  static const std::regex kList(R"(\)( noexcept)? ?:([^:]|$))");
  if (head.empty() || !std::regex_search(head, kList)) return false;
  const char last = head.back();
  return std::isalnum(static_cast<unsigned char>(last)) != 0 || last == '_' || last == '>';
}

bool opens_function(const std::string& head) {
  static const std::regex kEnd(
      R"(\)( ?(const|noexcept|override|final|&&?|try|mutable))*( ?->.*)?$)");
  static const std::regex kList(R"(\)( noexcept)? ?:([^:]|$))");
  static const std::regex kAssigned(
      R"((^|[^=!<>])=[^=].*\()");  // a lambda or value given to a name
  if (std::regex_search(head, kList)) return true;
  const bool operator_head = head.find("operator") != std::string::npos;
  return std::regex_search(head, kEnd) && (operator_head || !std::regex_search(head, kAssigned));
}

struct Scope {
  bool function;
  std::string head;
  std::size_t line;
};

}  // namespace

std::vector<Function> functions(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  text = without_comments_and_literals(text);

  std::vector<Function> found;
  std::vector<Scope> scopes;
  std::string head;
  std::size_t line = 1, initialiser_depth = 0;
  const auto inside_function = [&scopes] {
    for (const Scope& scope : scopes) {
      if (scope.function) return true;
    }
    return false;
  };
  for (const char c : text) {
    if (c == '\n') ++line;
    if (c == '{') {
      const std::string words = folded(head);
      if (initialiser_depth > 0 || (!inside_function() && opens_member_initialiser(words))) {
        ++initialiser_depth;
        continue;
      }
      const bool starts =
          !inside_function() && !opens_type_or_namespace(words) && opens_function(words);
      scopes.push_back({starts, words, line});
      head.clear();
    } else if (c == '}') {
      if (initialiser_depth > 0) {
        if (--initialiser_depth == 0) head.push_back('}');
        continue;
      }
      if (scopes.empty()) continue;
      const Scope& scope = scopes.back();
      if (scope.function) found.push_back({scope.head, scope.line, line - scope.line + 1});
      scopes.pop_back();
      head.clear();
    } else if (c == ';' && initialiser_depth == 0) {
      head.clear();
    } else if (initialiser_depth == 0) {
      head.push_back(c);
    }
  }
  return found;
}

}  // namespace gputwin::tidy
