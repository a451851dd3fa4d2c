#include "hwmodels/calibrate/device_file.h"

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "sim/core/error.h"

namespace gputwin {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLineWidth = 96;

// A number with the fewest digits that give it back; the library's own writer may add some.
std::string number_text(const Json& node) {
  const double value = node.get<double>();
  if (!node.is_number_float() || value == std::floor(value)) return node.dump();
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

// Indented by one space a level; lists of numbers on as few lines as they need.
void print(const Json& node, std::size_t depth, std::string& out) {
  const std::string indent(depth + 1, ' ');
  if (node.is_object() && !node.empty()) {
    out += "{\n";
    std::size_t left = node.size();
    for (const auto& [key, child] : node.items()) {
      out += indent + Json(key).dump() + ": ";
      print(child, depth + 1, out);
      out += --left > 0 ? ",\n" : "\n";
    }
    out += std::string(depth, ' ') + "}";
  } else if (node.is_array() && !node.empty()) {
    out += "[\n" + indent;
    std::size_t width = indent.size(), left = node.size();
    for (const Json& child : node) {
      const std::string text =
          (child.is_number() ? number_text(child) : child.dump()) + (--left > 0 ? "," : "");
      if (width + text.size() > kLineWidth) out += "\n" + indent, width = indent.size();
      out += text + (left > 0 ? " " : "");
      width += text.size() + 1;
    }
    out += "\n" + std::string(depth, ' ') + "]";
  } else {
    out += node.is_number() ? number_text(node) : node.dump();
  }
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string source_of(const FamilyFit& fit) {
  return "gputwin calibrate, " + fit.tables + ": " + std::to_string(fit.inside.rows) +
         " rows, mean error " + percent(fit.inside.mean) + "; kept out " +
         std::to_string(fit.outside.rows) + " rows, " + percent(fit.outside.mean);
}

}  // namespace

std::string calibrated_device(const std::filesystem::path& start,
                              const std::vector<FamilyFit>& fits, const std::string& name) {
  std::ifstream in(start);
  if (!in) throw InputError(start.string(), "", "", "cannot be read", "name a device file");
  Json root = Json::parse(in);
  if (!name.empty()) root["name"] = name;
  for (const FamilyFit& fit : fits) {
    for (const FamilyFit::Number& number : fit.numbers) {
      Json constant;
      if (number.list) {
        constant["values"] = number.values;
      } else {
        constant["value"] = number.values.front();
      }
      constant["source"] = source_of(fit);
      constant["kind"] = fit.measured ? "measured" : "fitted";
      root[Json::json_pointer(number.pointer)] = std::move(constant);
    }
    for (const auto& [pointer, text] : fit.texts) root[Json::json_pointer(pointer)] = text;
  }
  std::string text;
  print(root, 0, text);
  return text + "\n";
}

std::string model_card(const std::string& device, const std::vector<FamilyFit>& fits,
                       const std::string& tables, const std::string& date) {
  std::string out = "# " + device + "\n\nFitted " + date + " by gputwin calibrate from " + tables +
                    ".\n\n| group | rows | mean error | p90 | rows kept out | mean error | p90 | "
                    "range |\n|---|---|---|---|---|---|---|---|\n";
  for (const FamilyFit& fit : fits) {
    out += "| " + fit.family + " | " + std::to_string(fit.inside.rows) + " | " +
           percent(fit.inside.mean) + " | " + percent(fit.inside.p90) + " | " +
           std::to_string(fit.outside.rows) + " | " + percent(fit.outside.mean) + " | " +
           percent(fit.outside.p90) + " | " + fit.range + " |\n";
  }
  return out;
}

}  // namespace gputwin
