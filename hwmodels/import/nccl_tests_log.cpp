// stdout of nccl-tests and rccl-tests (every version since 2.0, also without some of its columns),
// and the table of all_reduce_bench.py.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <regex>
#include <set>

#include "hwmodels/import/import.h"
#include "hwmodels/import/lines.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

struct Row {
  std::size_t line = 0;
  std::int64_t size = 0;
  std::string dtype, redop;
  bool in_place = false;
  double time_us = 0.0, algbw = 0.0, busbw = 0.0;
};

// What the lines before a table say about it.
struct Setting {
  std::string gpu, collective, nccl, iterations;
  std::set<std::string> hosts;
  std::int32_t devices = 0, processes = 0, per_process = 0;
  bool launcher = false, command = false;
};

struct Reader {
  const std::string& file;
  const LogOptions& options;
  std::vector<std::string> columns;  // of the current table; empty: none yet
  Setting setting;
  std::vector<Row> rows;  // of the current table
  std::size_t wrong = 0, tables = 0, done = 0;
  bool full_header = false, closed = false;
  std::string csv;
  std::vector<std::string> notes;
};

// "33_554_432", "32KiB", "1.44GBps" as numbers.
std::optional<double> quantity(std::string word) {
  word.erase(std::remove(word.begin(), word.end(), '_'), word.end());
  double factor = 1.0;
  const std::pair<const char*, double> units[] = {
      {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"GBps", 1.0}};
  for (const auto& [unit, scale] : units) {
    const std::string text = unit;
    if (word.size() <= text.size() || word.substr(word.size() - text.size()) != text) continue;
    word.erase(word.size() - text.size());
    factor = scale;
  }
  const auto value = real_number(word);
  return value ? std::optional(*value * factor) : std::nullopt;
}

// What mpirun -l, srun -l and others write before each line, table bars and the leading #.
std::string bare(const std::string& line) {
  static const std::regex prefix(R"(^\s*(\[\d+,\d+\]<std(out|err)>:|\d+:\s))");
  std::string text = line.size() < 4096 ? std::regex_replace(line, prefix, "") : line;
  std::replace(text.begin(), text.end(), '|', ' ');
  return text;
}

bool is_header(const std::vector<std::string>& words) {
  const auto has = [&](const char* w) {
    return std::find(words.begin(), words.end(), w) != words.end();
  };
  return (has("size") || has("payload")) && has("busbw") && (has("time") || has("algbw"));
}

std::string known_collective(const std::string& word) {
  static const std::map<std::string, std::string> names{{"all_reduce", "all_reduce"},
                                                        {"all_gather", "all_gather"},
                                                        {"reduce_scatter", "reduce_scatter"},
                                                        {"alltoall", "alltoall"},
                                                        {"alltoallv", "alltoallv"},
                                                        {"broadcast", "broadcast"},
                                                        {"reduce", "reduce"},
                                                        {"sendrecv", "sendrecv"},
                                                        {"gather", "gather"},
                                                        {"scatter", "scatter"},
                                                        {"hypercube", "hypercube"}};
  std::string name = word.substr(word.find_last_of('/') + 1);
  for (const char* end : {"_perf", "_bench.py"}) {
    const std::size_t at = name.find(end);
    if (at == std::string::npos) continue;
    const auto found = names.find(name.substr(0, at));
    if (found != names.end()) return found->second;
  }
  return "";
}

std::int32_t count_after(const std::vector<std::string>& words, std::size_t i) {
  if (i + 1 >= words.size()) return 0;
  const auto value = whole_number(words[i + 1]);
  return value && *value > 0 && *value < 10'000'000 ? static_cast<std::int32_t>(*value) : 0;
}

// A command line: program, launcher, counts.
void read_command(const std::vector<std::string>& words, Setting& s) {
  std::string collective;
  bool own = false;
  std::int32_t threads = 1, gpus = 1;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& w = words[i];
    const std::string program = w.substr(w.find_last_of('/') + 1);
    if (program == "mpirun" || program == "mpiexec" || program == "srun") s.launcher = true;
    if (const std::string name = known_collective(w); !name.empty()) collective = name, own = true;
    if (!own && (w == "-np" || w == "-n" || w == "--ntasks")) s.processes = count_after(words, i);
    if (own && (w == "-g" || w == "--ngpus")) gpus = std::max(1, count_after(words, i));
    if (own && (w == "-t" || w == "--nthreads")) threads = std::max(1, count_after(words, i));
    if (own && (w == "-n" || w == "--iters"))
      s.iterations = i + 1 < words.size() ? words[i + 1] : "";
    if (w.rfind("--nproc_per_node=", 0) == 0) {
      s.processes = static_cast<std::int32_t>(whole_number(w.substr(17)).value_or(0));
      s.launcher = false;
    }
  }
  if (collective.empty()) return;
  s.collective = collective;
  s.per_process = threads * gpus;
  s.command = true;
}

void read_comment(const std::string& line, const std::vector<std::string>& words, Reader& r) {
  Setting& s = r.setting;
  std::smatch m;
  static const std::regex device(
      R"(Rank\s+\d+.*\bPid\s+\d+ on\s+(\S+) device\s+\d+ \[[^\]]*\]\s+(.*\S))");
  static const std::regex version(R"(NCCL version (\d+\.\d+\.\d+))"),
      library(R"(nccl-library=(\d)(\d\d)(\d\d)\b)");
  static const std::regex iterations(R"(.*\biters: (\d+))");
  if (line.size() > 4096) return;
  if (line.find("nThread") != std::string::npos ||
      line.find("nccl-tests version") != std::string::npos) {
    r.full_header = true;
  }
  if (std::regex_search(line, m, device)) {
    s.hosts.insert(m[1]);
    ++s.devices;
    s.gpu = m[2];
    if (s.gpu.rfind("NVIDIA ", 0) == 0) s.gpu.erase(0, 7);
  }
  if (std::regex_search(line, m, version)) s.nccl = m[1];
  if (std::regex_search(line, m, library)) {
    s.nccl =
        m[1].str() + "." + std::to_string(std::stoi(m[2])) + "." + std::to_string(std::stoi(m[3]));
  }
  if (std::regex_search(line, m, iterations)) s.iterations = m[1];
  if (line.find("Avg bus bandwidth") != std::string::npos) r.closed = true;
  read_command(words, s);
}

[[noreturn]] void bad_row(const Reader& r, std::size_t line, const std::string& word,
                          const std::string& problem) {
  fail_at(r.file, line, word, problem, "is the line damaged or cut off?");
}

// Columns of a row; rows of collectives without reduction may leave out redop and root.
std::vector<std::string> row_columns(const Reader& r, std::size_t line, std::size_t words) {
  std::vector<std::string> columns = r.columns;
  for (const char* optional : {"redop", "root"}) {
    const auto at = std::find(columns.begin(), columns.end(), optional);
    if (columns.size() > words && at != columns.end()) columns.erase(at);
  }
  if (columns.size() != words) {
    bad_row(r, line, "",
            "has " + std::to_string(words) + " fields where the header names " +
                std::to_string(r.columns.size()));
  }
  return columns;
}

double field(const Reader& r, std::size_t line, const std::string& word,
             const std::string& column) {
  const auto value = quantity(word);
  if (!value || *value < 0) bad_row(r, line, word, "is no " + column);
  return *value;
}

void close_row(Reader& r, Row& row, bool wrong, bool has_time) {
  if (!has_time && row.algbw > 0) row.time_us = static_cast<double>(row.size) / row.algbw / 1e3;
  if (row.size == 0) return;
  if (row.time_us <= 0) bad_row(r, row.line, "", "has no time");
  if (wrong) {
    ++r.wrong;
    return;
  }
  const double algbw = static_cast<double>(row.size) / row.time_us / 1e3;
  if (has_time && row.algbw > 1.0 && std::abs(algbw / row.algbw - 1.0) > 0.02) {
    r.notes.push_back("line " + std::to_string(row.line) + ": size over time is " +
                      std::to_string(algbw) + " GB/s, the line says " + std::to_string(row.algbw));
  }
  r.rows.push_back(row);
}

void read_row(Reader& r, std::size_t line, const std::vector<std::string>& words) {
  const std::vector<std::string> columns = row_columns(r, line, words.size());
  const auto times = std::count(columns.begin(), columns.end(), "busbw");
  Row row;
  row.line = line;
  bool open = false, wrong = false, has_time = false;
  std::int64_t groups = 0;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    const std::string& name = columns[c];
    if (name == "size" || name == "payload") {
      const double size = field(r, line, words[c], "size");
      if (size != std::floor(size) || size > 1e16) bad_row(r, line, words[c], "is no size");
      row.size = static_cast<std::int64_t>(size);
    } else if (name == "type") {
      row.dtype = words[c];
    } else if (name == "redop") {
      row.redop = words[c];
    } else if (name == "time") {
      if (open) close_row(r, row, wrong, has_time);
      open = true;
      wrong = false;
      row.in_place = groups > 0;
      has_time = true;
      row.time_us = field(r, line, words[c], "time");
    } else if (name == "algbw") {
      row.algbw = field(r, line, words[c], "algbw");
    } else if (name == "busbw") {
      row.busbw = field(r, line, words[c], "busbw");
      open = true;
      ++groups;
    } else if (name == "#wrong" || name == "error") {
      wrong = words[c] != "N/A" && field(r, line, words[c], name) > (name == "error" ? 1e-2 : 0.0);
    }
  }
  if (open && times > 0) close_row(r, row, wrong, has_time);
}

// Ranks from busbw / algbw of the largest row, and the collective where redop tells it.
void infer(Reader& r, std::string& collective, std::int32_t& ranks) {
  const auto best = std::max_element(r.rows.begin(), r.rows.end(),
                                     [](const Row& a, const Row& b) { return a.algbw < b.algbw; });
  if (best == r.rows.end() || best->algbw <= 1.0) return;
  const double ratio = best->busbw / best->algbw;
  if (collective.empty() && (ratio > 1.1 && ratio < 2.0)) collective = "all_reduce";
  if (collective.empty() && ratio < 0.999 && best->redop == "sum") collective = "reduce_scatter";
  double n = 0;
  if (collective == "all_reduce") n = 2.0 / (2.0 - ratio);
  if (collective == "all_gather" || collective == "reduce_scatter" || collective == "alltoall")
    n = 1.0 / (1.0 - ratio);
  if (ranks == 0 && n > 1.5 && n < 64.5 && std::abs(n / std::round(n) - 1.0) < 0.04) {
    ranks = static_cast<std::int32_t>(std::lround(n));
    r.notes.push_back(
        "assumed: " + collective + " over " + std::to_string(ranks) +
        " ranks, from bus over algorithm bandwidth; state them with --collective and --ranks");
  }
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

// Ends the current table: its rows with what is known about it.
void flush(Reader& r) {
  if (r.rows.empty()) return;
  const Setting& s = r.setting;
  const LogOptions& o = r.options;
  std::string collective = o.collective.empty() ? s.collective : o.collective;
  std::int32_t ranks = o.ranks > 0 ? o.ranks : s.devices;
  std::int32_t nodes = o.nodes > 0 ? o.nodes : static_cast<std::int32_t>(s.hosts.size());
  if (ranks == 0 && s.command && s.processes > 0) ranks = s.processes * s.per_process;
  if (ranks == 0 && s.command && !s.launcher) ranks = s.per_process;
  infer(r, collective, ranks);
  if (nodes == 0 && s.command && !s.launcher) nodes = 1;
  const std::size_t line = r.rows.front().line;
  if (collective.empty()) {
    fail_at(r.file, line, "", "does not say which collective was measured",
            "give --collective, as all_reduce");
  }
  if (ranks == 0) fail_at(r.file, line, "", "does not say over how many ranks", "give --ranks");
  if (nodes == 0)
    r.notes.emplace_back(
        "not stated: the count of nodes (column nnodes stays empty); give --nodes");
  const std::string gpu = o.device.empty() ? s.gpu : o.device;
  if (gpu.empty())
    r.notes.emplace_back("not stated: the GPU (column gpu stays empty); give --device");
  for (const Row& row : r.rows) {
    r.csv += csv_field(o.system) + "," + csv_field(gpu) + "," + collective + "," +
             std::to_string(ranks) + "," + (nodes > 0 ? std::to_string(nodes) : "") + "," +
             csv_field(row.dtype.empty() ? "float" : row.dtype) + "," + std::to_string(row.size) +
             "," + (row.in_place ? "1" : "0") + "," + number_text(row.time_us) + "," +
             number_text(row.busbw) + "," + s.nccl + ",,,," + csv_field(s.iterations) + "\n";
  }
  if (r.rows.front().dtype.empty())
    r.notes.emplace_back("assumed: float, nccl-tests' default; the log has no type");
  r.done += r.rows.size();
  r.rows.clear();
}

// A new run begins: nothing of the one before holds any more.
bool begins_run(const std::string& line) {
  return line.find("nccl-tests version") != std::string::npos ||
         line.find("Collective test starting") != std::string::npos ||
         (line.find("nThread") != std::string::npos && line.find("minBytes") != std::string::npos);
}

}  // namespace

Imported table_of_nccl_tests(const std::string& file, const std::string& text,
                             const LogOptions& options) {
  Reader r{file, options, {}, {}, {}, 0, 0, 0, false, false, {}, {}};
  r.csv =
      "system,gpu,collective,nranks,nnodes,dtype,size_bytes,inplace,time_us,busbw_GBps,nccl,net,"
      "env,run,iters\n";
  const std::vector<std::string> lines = text_lines(file, text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string line = bare(lines[i]);
    std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (words[0] == "#") words.erase(words.begin());
    if (is_header(words)) {
      if (std::find(r.columns.begin(), r.columns.end(), "size") != r.columns.end()) flush(r);
      r.columns = words;
      ++r.tables;
    } else if (begins_run(line) && !r.rows.empty()) {
      flush(r);
      r.setting = {};
      read_comment(line, words, r);
    } else if (line.find_first_not_of(" \t") != std::string::npos && words[0] != "#" &&
               !r.columns.empty() && quantity(words[0]) && words.size() > 1 &&
               line[line.find_first_not_of(" \t")] != '#') {
      read_row(r, i + 1, words);
    } else {
      read_comment(line, words, r);
    }
  }
  if (r.columns.empty()) {
    throw InputError(file, "line 1", "", "is no log of nccl-tests",
                     "it has a header with size, time, algbw and busbw");
  }
  flush(r);
  if (r.done == 0 && r.wrong == 0)
    throw InputError(file, "", "", "has a header but no rows", "is the file cut off?");
  if (r.wrong > 0) {
    r.notes.push_back("not represented: " + std::to_string(r.wrong) +
                      " measurements whose results were wrong");
  }
  if (r.full_header && !r.closed) {
    r.notes.emplace_back("the log lacks its last line (# Avg bus bandwidth): it may be cut off");
  }
  return {std::move(r.csv), std::move(r.notes)};
}

}  // namespace gputwin
