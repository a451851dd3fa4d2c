#include "hwmodels/import/xml.h"

#include <cctype>
#include <optional>
#include <string_view>

#include "hwmodels/import/lines.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

constexpr std::size_t kDeepest = 64;

class Reader {
 public:
  Reader(const std::string& file, std::string_view text) : file_(file), text_(text) {}

  XmlElement document() {
    skip();
    if (at_ == text_.size()) fail("holds no element", "is the file cut off?");
    XmlElement root = element(0);
    skip();
    if (at_ < text_.size()) fail("goes on behind the root element", "keep one document");
    return root;
  }

 private:
  [[noreturn]] void fail(const std::string& problem, const std::string& fix) const {
    fail_at(file_, line_, "", problem, fix);
  }

  bool starts(std::string_view word) const { return text_.substr(at_, word.size()) == word; }

  void advance(std::size_t count) {
    for (; count > 0 && at_ < text_.size(); --count, ++at_) line_ += text_[at_] == '\n' ? 1 : 0;
  }

  void skip_past(std::string_view end, const char* what) {
    const std::size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) {
      fail(std::string("opens a ") + what + " that does not end", "is the file cut off?");
    }
    advance(found + end.size() - at_);
  }

  // Blanks, comments and declarations.
  void skip() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        advance(1);
      } else if (starts("<!--")) {
        skip_past("-->", "comment");
      } else if (starts("<?")) {
        skip_past("?>", "declaration");
      } else {
        return;
      }
    }
  }

  std::string name() {
    const std::size_t first = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                  text_[at_] == '_' || text_[at_] == '-')) {
      ++at_;
    }
    if (at_ == first) fail("holds no name where one belongs", "is the file damaged?");
    return std::string(text_.substr(first, at_ - first));
  }

  void attribute(XmlElement& e) {
    const std::string key = name();
    if (!starts("=\""))
      fail("has attribute " + key + " without a value", "write " + key + "=\"…\"");
    advance(2);
    const std::size_t end = text_.find_first_of("\"<\n", at_);
    if (end == std::string_view::npos || text_[end] != '"') {
      fail("leaves the value of " + key + " open", "is the file cut off?");
    }
    if (!e.attributes.emplace(key, text_.substr(at_, end - at_)).second) {
      fail("has attribute " + key + " twice", "keep one");
    }
    at_ = end + 1;
  }

  XmlElement element(std::size_t depth) {
    if (depth > kDeepest) fail("nests deeper than 64 elements", "is this NCCL's topology?");
    if (!starts("<")) fail("holds text where an element belongs", "is this NCCL's topology?");
    advance(1);
    XmlElement e;
    e.line = line_;
    e.name = name();
    while (true) {
      skip_blanks(e);
      if (starts("/>")) return advance(2), e;
      if (starts(">")) break;
      attribute(e);
    }
    advance(1);
    while (true) {
      skip();
      if (at_ == text_.size()) {
        fail_at(file_, e.line, "", "opens <" + e.name + "> that does not end",
                "is the file cut off?");
      }
      if (starts("</")) break;
      e.children.push_back(element(depth + 1));
    }
    advance(2);
    if (const std::string closed = name(); closed != e.name) {
      fail("closes <" + closed + "> where <" + e.name + "> is open", "is the file damaged?");
    }
    skip_blanks(e);
    if (!starts(">")) fail("leaves a closing tag open", "is the file damaged?");
    advance(1);
    return e;
  }

  void skip_blanks(const XmlElement& e) {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      advance(1);
    }
    if (at_ == text_.size()) fail("leaves <" + e.name + " open", "is the file cut off?");
  }

  const std::string& file_;
  std::string_view text_;
  std::size_t at_ = 0, line_ = 1;
};

}  // namespace

std::string XmlElement::text(const std::string& key) const {
  const auto found = attributes.find(key);
  return found == attributes.end() ? "" : found->second;
}

XmlElement parse_xml(const std::string& file, const std::string& text) {
  text_lines(file, text);  // refuses what is no text
  return Reader(file, text).document();
}

}  // namespace gputwin
