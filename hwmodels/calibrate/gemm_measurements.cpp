// Reads hwmodels/measurements/gemm-*.csv, in which a row holds all times of one layer.
#include <charconv>
#include <sstream>

#include "hwmodels/calibrate/gemm_fit.h"

namespace gputwin {

namespace {

struct Entry {
  std::int64_t batch = 1, m = 0;
  double us = 0;
};

// "128:12.3" or "16x128:12.3".
bool parse(const std::string& text, Entry& entry) {
  const char *at = text.data(), *end = at + text.size();
  auto number = [&](auto& value) {
    const auto [next, error] = std::from_chars(at, end, value);
    at = next;
    return error == std::errc() && value > 0;
  };
  if (!number(entry.m)) return false;
  if (at != end && *at == 'x') {
    entry.batch = entry.m;
    ++at;
    if (!number(entry.m)) return false;
  }
  if (at == end || *at != ':') return false;
  ++at;
  return number(entry.us) && at == end;
}

}  // namespace

std::vector<Sample> read_gemm_measurements(const std::filesystem::path& path) {
  const CsvTable table = CsvTable::read(path);
  std::vector<Sample> samples;
  for (std::size_t row = 0; row < table.rows(); ++row) {
    Sample sample;
    sample.line = table.line(row);
    sample.device = sample.spelling = table.text(row, "device");
    sample.library = table.text(row, "library");
    sample.group = table.text(row, "dtype");
    GemmShape shape{.n = table.integer(row, "n"),
                    .k = table.integer(row, "k"),
                    .dtype = table_dtype(table, row, "dtype"),
                    .trans_b = true,
                    .block_scales = sample.group == "fp8_block"};
    std::istringstream words(table.text(row, "times"));
    for (std::string word; words >> word;) {
      Entry entry;
      if (!parse(word, entry)) {
        table.fail(row, "times", "has an entry that is no m:us: " + word, "write 128:12.3");
      }
      shape.m = entry.m;
      shape.batch = entry.batch;
      shape.traffic = gemm_traffic(shape);
      sample.time = Seconds(entry.us * 1e-6);
      sample.query = GemmQuery{shape};
      sample.shape = static_cast<std::uint64_t>(shape.n * 1000003 + shape.k) * 0x9e3779b97f4a7c15u;
      sample.shape = (sample.shape >> 20) * 5 + 1;  // of the fit: test layers are not in the file
      samples.push_back(sample);
    }
  }
  return samples;
}

Bytes gemm_traffic(const GemmShape& s) {
  const std::int64_t operands = (s.m * s.k + s.k * s.n) * bits(s.dtype) / 8;
  const std::int64_t result = s.m * s.n * std::max(2, std::min(4, bits(s.dtype) / 8));
  return Bytes(s.batch * (operands + result));
}

}  // namespace gputwin
