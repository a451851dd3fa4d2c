#include "sim/app/html_text.h"

namespace gputwin {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1b1f24;background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}"
    "svg{width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:currentColor}"
    "table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}"
    "th,td{border-bottom:1px solid #8886;padding:.25rem .6rem;text-align:left;"
    "font-variant-numeric:tabular-nums}.best td{font-weight:600}.bad td{color:#8a4b08}"
    ".key{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 1em}"
    "@media(prefers-color-scheme:dark){body{color:#e6e8eb;background:#15181c}.bad "
    "td{color:#e0a060}}";

}  // namespace

std::string html_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string html_head(const std::string& title) {
  return "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
         "<meta name='viewport' content='width=device-width'><title>" +
         html_text(title) + "</title><style>" + kStyle + "</style></head><body>\n";
}

}  // namespace gputwin
