// What the pages that gputwin writes have in common: one file each, without anything from outside.
#pragma once

#include <string>

namespace gputwin {

/// `text` with the characters that HTML reserves spelled out.
std::string html_text(const std::string& text);
/// Doctype, head with the title and the style of all pages, and the open body.
std::string html_head(const std::string& title);

}  // namespace gputwin
