#include "sim/app/run_log.h"

#include <cstdlib>
#include <optional>

namespace gputwin {
namespace {

/// What stands behind `key`, without leading spaces; nothing if it does not occur.
std::optional<std::string> behind(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  line.remove_prefix(at + key.size());
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  return std::string(line);
}

/// The number behind `key`; thousands may be parted by commas.
std::optional<double> number_behind(std::string_view line, std::string_view key) {
  const auto text = behind(line, key);
  if (!text) return std::nullopt;
  std::string digits;
  for (const char c : *text) {
    if (c == ',') continue;
    if ((c < '0' || c > '9') && c != '.' && c != 'e' && c != 'E' && c != '-' && c != '+') break;
    digits.push_back(c);
  }
  char* rest = nullptr;
  const double value = std::strtod(digits.c_str(), &rest);
  if (digits.empty() || rest != digits.c_str() + digits.size() || !(value > 0)) return std::nullopt;
  return value;
}

std::string without_colours(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      while (i < line.size() && line[i] != 'm') ++i;
    } else {
      out.push_back(line[i]);
    }
  }
  return out;
}

struct Told {
  std::int64_t step = 0;  // 0: not told
  double seconds = 0;
};

/// What a line tells. What stands behind the time shows that the line is whole.
std::optional<Told> told_by(const std::string& line, double tokens_of_rank) {
  const auto step = [&line](const char* key) {
    return static_cast<std::int64_t>(number_behind(line, key).value_or(0));
  };
  constexpr const char* kMegatron = "elapsed time per iteration (ms):";
  if (const auto ms = number_behind(line, kMegatron)) {
    if (behind(line, kMegatron)->find('|') == std::string::npos) return std::nullopt;
    return Told{step("iteration"), 1e-3 * *ms};
  }
  if (const auto seconds = number_behind(line, "iter time (s):")) {
    if (!number_behind(line, "samples/sec:")) return std::nullopt;
    return Told{step("steps:"), *seconds};
  }
  if (const auto rate = number_behind(line, " tps:"); rate && tokens_of_rank > 0) {
    const bool whole = line.find("mfu:") != std::string::npos;
    if (!whole || line.find("validate step:") != std::string::npos) return std::nullopt;
    return Told{step("step:"), tokens_of_rank / *rate};
  }
  return std::nullopt;
}

}  // namespace

std::vector<LoggedIterations> iterations_of_log(std::string_view text, double tokens_of_rank) {
  std::vector<LoggedIterations> out;
  std::int64_t before = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto told = told_by(without_colours(text.substr(0, end)), tokens_of_rank);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!told || (told->step > 0 && told->step == before)) continue;
    const std::int64_t since = told->step - before;
    out.push_back({out.empty() || told->step == 0 || since < 1 ? 1 : since, told->seconds});
    before = told->step;
  }
  return out;
}

}  // namespace gputwin
