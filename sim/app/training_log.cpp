#include "sim/app/training_log.h"

#include <array>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

namespace gputwin {
namespace {

// Without the escape sequences that colour a terminal.
std::string plain(std::string_view line) {
  std::string out;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\x1b') {
      out += line[i];
      continue;
    }
    while (i < line.size() && line[i] != 'm') ++i;
  }
  return out;
}

// The number behind `key`, thousands set off by commas or not.
std::optional<double> number_behind(const std::string& line, std::string_view key) {
  std::size_t at = line.find(key);
  if (at == std::string::npos) return {};
  at += key.size();
  while (at < line.size() && line[at] == ' ') ++at;
  std::string digits;
  for (; at < line.size() && (std::isdigit(static_cast<unsigned char>(line[at])) != 0 ||
                              std::string_view(".,eE+-").find(line[at]) != std::string::npos);
       ++at) {
    if (line[at] != ',') digits += line[at];
  }
  char* rest = nullptr;
  const double value = std::strtod(digits.c_str(), &rest);
  if (digits.empty() || *rest != '\0' || !(value > 0)) return {};
  return value;
}

struct Teller {
  std::string_view key, beside;  // a line has both
  double (*seconds)(double value, const IterationSize& size);
};

constexpr std::array<Teller, 4> kTellers{{
    {"elapsed time per iteration (ms):", "|",
     [](double ms, const IterationSize&) { return 1e-3 * ms; }},
    {"iter time (s):", "steps:", [](double s, const IterationSize&) { return s; }},
    {"tps:", "loss:",
     [](double rate, const IterationSize& size) { return size.tokens_per_gpu / rate; }},
    {"CurrSamplesPerSec=", "RunningAvgSamplesPerSec=",
     [](double rate, const IterationSize& size) { return size.samples / rate; }},
}};

}  // namespace

std::vector<double> iterations_of_log(const std::string& text, const IterationSize& size) {
  std::array<std::vector<double>, kTellers.size()> told;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = plain(std::string_view(text).substr(begin, end - begin));
    if (line.find("validate step:") != std::string::npos) continue;
    for (std::size_t t = 0; t < kTellers.size(); ++t) {
      const Teller& teller = kTellers[t];
      const auto value = number_behind(line, teller.key);
      if (!value || line.find(teller.beside) == std::string::npos) continue;
      const double seconds = teller.seconds(*value, size);
      if (seconds > 0) told[t].push_back(seconds);
    }
  }
  for (std::vector<double>& iterations : told) {
    if (!iterations.empty()) return std::move(iterations);
  }
  return {};
}

}  // namespace gputwin
