// The little XML that NCCL writes: elements and attributes, comments; no text, entities or
// namespaces. Of our own because semantic errors must name their line, which the installed XML
// parsers forget after parsing.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace gputwin {

struct XmlElement {
  std::string name;
  std::size_t line = 0;
  std::map<std::string, std::string> attributes;
  std::vector<XmlElement> children;

  /// The attribute, or "" without it.
  std::string text(const std::string& key) const;
};

/// The one root element. Throws InputError with file and line: text between elements, an open tag,
/// attribute or comment, tags that do not match, more than one root, depth over 64.
XmlElement parse_xml(const std::string& file, const std::string& text);

}  // namespace gputwin
