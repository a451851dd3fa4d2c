// Overrides on the command line: --set path=value.
//
// The path is dotted, arrays by index ("what_if.stragglers.0.rank"). The value is read as the
// schema says: a word stands without quotes, a number may carry a unit of the key's kind and is
// converted to the key's unit ("cluster.fabric.switch_latency_us=130ns"), arrays and objects are
// JSON.
#pragma once

#include <string>

#include "sim/app/json_text.h"

namespace gputwin {

struct Override {
  std::string pointer;  // RFC 6901
  std::string text;     // right of the first '='
};

/// Splits "path=value". Errors: InputError (file "--set").
Override parse_override(const std::string& text);

/// The value `text` stands for at `pointer` of a scenario. Errors: InputError for an unknown path,
/// a wrong type or a unit of another kind. Ranges are checked later, with the whole document.
Json override_value(const Override& override_);

/// `text` as a number in `unit` ("us", "GBps", "Gbps", "GiB"; "" takes no unit). `pointer` is for
/// errors.
double number_with_unit(const std::string& text, const std::string& unit,
                        const std::string& pointer);

/// Writes `value` at `pointer`, creating objects and appending to arrays on the way; returns the
/// pointer of the topmost node created (or `pointer`). Errors: InputError for an index beyond the
/// end of an array.
std::string write_at(Json& root, const std::string& pointer, Json value);

}  // namespace gputwin
