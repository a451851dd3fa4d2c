#include "sim/trace/chrome_import.h"

#include <simdjson.h>

#include <algorithm>
#include <boost/iostreams/copy.hpp>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <charconv>
#include <cmath>
#include <fstream>
#include <optional>
#include <unordered_map>

#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "sim/trace/argument_text.h"
#include "sim/trace/gtr_file.h"
#include "sim/trace/store_builder.h"

namespace gputwin {

namespace {

using simdjson::ondemand::object;
using simdjson::ondemand::value;

constexpr std::uint64_t kMaxJsonBytes = 4'000'000'000;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "name a file you may read");
  char magic[2] = {};
  in.read(magic, 2);
  const bool packed = in.gcount() == 2 && magic[0] == '\x1f' && magic[1] == '\x8b';
  in.clear();
  in.seekg(0);
  std::string text;
  try {
    boost::iostreams::filtering_istream stream;
    if (packed) stream.push(boost::iostreams::gzip_decompressor());
    stream.push(in);
    stream.exceptions(std::ios::badbit);  // what the decompressor throws comes through
    std::vector<char> piece(1 << 20);
    while (stream.read(piece.data(), static_cast<std::streamsize>(piece.size())) ||
           stream.gcount() > 0) {
      text.append(piece.data(), static_cast<std::size_t>(stream.gcount()));
      if (text.size() > kMaxJsonBytes) {
        throw InputError(path.string(), "", "", "is larger than 4 GB unpacked",
                         "trace fewer steps or ranks, or write a .gtr file");
      }
    }
  } catch (const boost::iostreams::gzip_error&) {
    throw InputError(path.string(), "byte " + std::to_string(text.size()) + " unpacked", "",
                     "is damaged or cut off: it does not unpack", "copy or write the file again");
  }
  return text;
}

struct Text {
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  using is_transparent = void;
};
template <class T>
using ByText = std::unordered_map<std::string, T, Text, std::equal_to<>>;

/// Fields of one event; views into the document.
struct Event {
  std::string_view phase, name, category, pid, tid, ts, dur, id;
  std::optional<object> arguments;
  std::string_view raw_arguments;
};

/// A number or string as text, without quotes.
std::string_view plain(std::string_view raw) {
  while (!raw.empty() && static_cast<unsigned char>(raw.back()) <= ' ') raw.remove_suffix(1);
  if (raw.size() >= 2 && raw.front() == '"' && raw.back() == '"') {
    return raw.substr(1, raw.size() - 2);
  }
  return raw;
}

char lane_of(std::string_view thread) {
  for (const char lane : {'t', 'd', 'p'}) {
    if (thread.size() >= 2 && (thread[0] | 0x20) == lane && (thread[1] | 0x20) == 'p') return lane;
  }
  return 'o';
}

std::string_view lane_name(char lane) {
  return lane == 't' ? "tp" : lane == 'd' ? "dp" : lane == 'p' ? "pp" : "";
}

class Importer {
 public:
  explicit Importer(std::string file) : file_(std::move(file)) {}
  Store run(std::string text);

 private:
  struct Open {
    std::string name, category;
    Ps at;
  };
  struct ThreadState {
    std::uint32_t id = 0;
    std::string name;
    char lane = 'o';  // what collectives on it serve, as slice_kind reads it from the name
    std::vector<Open> open;
  };
  struct Known {
    std::uint32_t id = 0, frame = kUnframed;
    bool untimed = false;
  };
  void events(simdjson::ondemand::array list);
  Event fields(object row);
  void event(const Event& e);
  void metadata(const Event& e);
  void counter(const Event& e, Ps at);
  void flow(const Event& e, Ps at);
  void begin_end(const Event& e, Ps at);
  void slice(const Event& e, ThreadState& thread, Ps at, Ps duration);
  Known define(const Event& e, const ThreadState& thread);
  static std::string_view process_group(const Event& e);
  static void read_own_name(const Event& e, std::int32_t layer, const ThreadState& thread,
                            Definition& d, Known& known);
  void document(object root);
  void name_ranks();
  std::uint32_t process(std::string_view pid);
  ThreadState& thread(std::string_view pid, std::string_view tid);
  void name_process(std::string_view pid, std::string_view name);
  void finish_warnings();

  std::string file_;
  StoreBuilder builder_;
  ByText<std::uint32_t> processes_, counters_;
  ByText<Known> definitions_;
  ByText<ThreadState> threads_;
  // Arrows by category and id: begun ones, and ends that stand in the file before their beginning.
  ByText<std::pair<std::uint32_t, Ps>> flows_, early_ends_;
  std::string key_;
  std::optional<std::int64_t> base_us_;
  std::optional<std::int64_t> rank_;  // of PyTorch's "distributedInfo"
  std::size_t events_ = 0, timeless_ = 0, negative_ = 0, unmatched_ = 0, nameless_ = 0;
  std::size_t untimed_ = 0;
};

std::uint32_t Importer::process(std::string_view pid) {
  const auto found = processes_.find(pid);
  if (found != processes_.end()) return found->second;
  const std::uint32_t id = builder_.process({"process " + std::string(pid), "", -1, -1});
  processes_.emplace(pid, id);
  return id;
}

Importer::ThreadState& Importer::thread(std::string_view pid, std::string_view tid) {
  key_.assign(pid).append("\x1f").append(tid);
  const auto found = threads_.find(key_);
  if (found != threads_.end()) return found->second;
  std::int64_t order = 1'000'000'000;
  std::from_chars(tid.data(), tid.data() + tid.size(), order);
  ThreadState& made = threads_[key_];
  made.name = "thread " + std::string(tid);
  made.lane = lane_of(made.name);
  made.id = builder_.thread(process(pid), made.name, order);
  return made;
}

/// gputwin's own traces say rank and stage in the name: "rank 3 · stage1 · gpu 3".
void Importer::name_process(std::string_view pid, std::string_view name) {
  TraceProcess& p = builder_.process_at(process(pid));
  const bool numbered = p.name == "process " + std::string(pid);
  p.name = numbered && name.find(pid) == std::string_view::npos && name.size() < 12
               ? std::string(name) + " " + std::string(pid)
               : std::string(name);
  if (!name.starts_with("rank ")) return;
  std::from_chars(name.data() + 5, name.data() + name.size(), p.rank);
  constexpr std::string_view kDot = " · ";
  const auto first = name.find(kDot);
  if (first == std::string_view::npos) return;
  const auto rest = name.substr(first + kDot.size());
  p.role = rest.substr(0, rest.find(kDot));
}

Event Importer::fields(object row) {
  Event e;
  for (auto field : row) {
    const std::string_view key = field.unescaped_key();
    value v = field.value();
    const auto text = [&v]() -> std::string_view {
      std::string_view out;
      if (v.type() == simdjson::ondemand::json_type::string) {
        if (v.get_string().get(out)) return {};
        return out;
      }
      return plain(v.raw_json_token());
    };
    if (key == "ph") {
      e.phase = text();
    } else if (key == "name") {
      e.name = text();
    } else if (key == "cat") {
      e.category = text();
    } else if (key == "pid") {
      e.pid = text();
    } else if (key == "tid") {
      e.tid = text();
    } else if (key == "ts") {
      e.ts = text();
    } else if (key == "dur") {
      e.dur = text();
    } else if (key == "id") {
      e.id = text();
    } else if (key == "args" && v.type() == simdjson::ondemand::json_type::object) {
      object arguments = v.get_object();
      e.raw_arguments = arguments.raw_json();
    }
  }
  return e;
}

void Importer::metadata(const Event& e) {
  // Small documents of their own: "args" may come before "name" in an event.
  std::string text(e.raw_arguments);
  const auto name = [&text]() -> std::string {
    simdjson::dom::parser parser;
    simdjson::dom::element root;
    std::string_view out;
    if (parser.parse(text).get(root) || root["name"].get(out)) return {};
    return std::string(out);
  };
  if (e.name == "process_name") {
    if (const std::string n = name(); !n.empty()) name_process(e.pid, n);
  } else if (e.name == "thread_name") {
    ThreadState& t = thread(e.pid, e.tid);
    if (const std::string n = name(); !n.empty()) {
      t.name = n;
      t.lane = lane_of(n);
      builder_.rename_thread(t.id, n);
    }
  } else if (e.name == "thread_sort_index") {
    simdjson::dom::parser parser;
    simdjson::dom::element root;
    std::int64_t order = 0;
    if (!parser.parse(text).get(root) && !root["sort_index"].get(order)) {
      builder_.order_thread(thread(e.pid, e.tid).id, order);
    }
  }
}

void Importer::slice(const Event& e, ThreadState& thread, Ps at, Ps duration) {
  const std::string_view group = process_group(e);
  key_.assign(e.name).append("\x1f").append(e.category).append("\x1f").append(group);
  key_.push_back(thread.lane);
  auto found = definitions_.find(key_);
  if (found == definitions_.end()) found = definitions_.emplace(key_, define(e, thread)).first;
  const Known& known = found->second;
  if (known.untimed) ++untimed_;
  std::uint32_t body = 0;
  if (known.frame != kUnframed || e.raw_arguments.starts_with("{\"body\":")) {
    body = static_cast<std::uint32_t>(number_in(e.raw_arguments, "body").value_or(0));
  }
  builder_.slice(thread.id, at, duration, known.id, known.frame, body, e.raw_arguments);
}

/// What NCCL's process group is called, where the profiler says so: "tp" in Megatron's and
/// torchtitan's descriptions names the parallel dimension.
std::string_view Importer::process_group(const Event& e) {
  if (!e.name.starts_with("nccl")) return {};
  return text_in(e.raw_arguments, "Process Group Description");
}

Importer::Known Importer::define(const Event& e, const ThreadState& thread) {
  Definition d;
  Known known;
  d.before = d.op = std::string(e.name);
  d.phase = std::string(e.category);
  d.kind = slice_kind(e.name, e.category, lane_name(thread.lane));
  if (const std::string_view group = process_group(e); d.kind == SliceKind::OtherComm) {
    d.kind = communication_kind(group);
  }
  if (const auto layer = number_in(e.raw_arguments, "layer");
      layer && from_string<Phase>(e.category)) {
    read_own_name(e, static_cast<std::int32_t>(*layer), thread, d, known);
  }
  known.untimed = e.category == "cuda_profiler_range";
  known.id = builder_.definition(std::move(d));
  return known;
}

/// A slice of ours, named as Plan::full_name spells it: "F/mb3/L1/fc1#2".
void Importer::read_own_name(const Event& e, std::int32_t layer, const ThreadState& thread,
                             Definition& d, Known& known) {
  const std::string_view name = e.name;
  std::size_t at = 1;
  if (const auto frame = number_in(e.raw_arguments, "micro_batch"); frame && *frame >= 0) {
    known.frame = static_cast<std::uint32_t>(std::min<std::int64_t>(*frame, Store::kFrameMask));
  }
  for (const std::string& part :
       {known.frame == kUnframed ? "" : "/mb" + std::to_string(known.frame),
        "/L" + std::to_string(layer), std::string("/head")}) {
    if (!part.empty() && name.substr(at).starts_with(part + "/")) at += part.size();
  }
  if (at >= name.size() || name[at] != '/') return;
  const std::string_view op = name.substr(at + 1);
  d.op = std::string(op.substr(0, op.rfind('#')));
  d.layer = layer;
  const auto kind = from_string<OpKind>(text_in(e.raw_arguments, "op"));
  const auto phase = from_string<Phase>(e.category);
  if (kind && phase) d.kind = slice_kind(*kind, *phase, lane_name(thread.lane));
}

void Importer::counter(const Event& e, Ps at) {
  std::string text(e.raw_arguments);
  simdjson::dom::parser parser;
  simdjson::dom::object root;
  if (parser.parse(text).get(root)) return;
  for (const auto field : root) {
    double number = 0;
    if (field.value.get(number)) continue;
    key_.assign(e.pid).append("\x1f").append(e.name).append("\x1f").append(field.key);
    auto found = counters_.find(key_);
    if (found == counters_.end()) {
      const auto id = builder_.counter(process(e.pid), std::string(e.name), std::string(field.key));
      found = counters_.emplace(key_, id).first;
    }
    builder_.sample(found->second, at, number);
  }
}

void Importer::flow(const Event& e, Ps at) {
  std::string key(e.category);
  key.append("\x1f").append(e.id);
  const std::uint32_t here = thread(e.pid, e.tid).id;
  const auto begun = flows_.find(key);
  if (e.phase != "s" && begun != flows_.end()) {
    builder_.flow(begun->second.first, begun->second.second, here, at);
    if (e.phase == "f") {
      flows_.erase(begun);
      return;
    }
  }
  if (e.phase == "f") {
    early_ends_[key] = {here, at};
    return;
  }
  const auto ended = early_ends_.find(key);
  if (e.phase == "s" && ended != early_ends_.end() && ended->second.second >= at) {
    builder_.flow(here, at, ended->second.first, ended->second.second);
    early_ends_.erase(ended);
    return;
  }
  flows_[key] = {here, at};
}

void Importer::begin_end(const Event& e, Ps at) {
  ThreadState& t = thread(e.pid, e.tid);
  if (e.phase == "B") {
    t.open.push_back({std::string(e.name), std::string(e.category), at});
    return;
  }
  if (t.open.empty()) {
    ++unmatched_;
    return;
  }
  const Open open = std::move(t.open.back());
  t.open.pop_back();
  if (at < open.at) {
    ++negative_;
    return;
  }
  Event whole = e;
  whole.name = open.name;
  whole.category = open.category;
  slice(whole, t, open.at, at - open.at);
}

void Importer::event(const Event& e) {
  if (e.phase == "M") return metadata(e);
  const bool wanted = e.phase == "X" || e.phase == "B" || e.phase == "E" || e.phase == "C" ||
                      e.phase == "s" || e.phase == "t" || e.phase == "f";
  if (!wanted) return;
  if (!base_us_) {
    double first = 0;
    const auto [end, error] = std::from_chars(e.ts.data(), e.ts.data() + e.ts.size(), first);
    // A timeline of its own begins near zero and keeps its zero; one of the clock does not.
    if (error == std::errc() && std::abs(first) < 9e15) {
      base_us_ = std::abs(first) < 1e9 ? 0 : static_cast<std::int64_t>(std::floor(first));
    }
  }
  Ps at = 0;
  if (!base_us_ || !parse_microseconds(e.ts, *base_us_, at)) {
    ++timeless_;
    return;
  }
  if (e.phase == "C") return counter(e, at);
  if (e.phase == "B" || e.phase == "E") return begin_end(e, at);
  if (e.phase != "X") return flow(e, at);
  Ps duration = 0;
  if (!e.dur.empty() && !parse_microseconds(e.dur, 0, duration)) {
    ++timeless_;
  } else if (duration < 0) {
    ++negative_;
  } else {
    slice(e, thread(e.pid, e.tid), at, duration);
  }
}

void Importer::events(simdjson::ondemand::array list) {
  for (auto row : list) {
    object fields_of_row;
    if (row.get_object().get(fields_of_row)) {
      ++nameless_;
      continue;
    }
    event(fields(fields_of_row));
    ++events_;
  }
}

void Importer::document(object root) {
  bool found = false;
  for (auto field : root) {
    const std::string_view key = field.unescaped_key();
    if (key == "traceEvents" && !found) {
      found = true;
      events(field.value().get_array());
    } else if (key == "distributedInfo") {
      object info;
      std::int64_t rank = 0;
      if (!field.value().get_object().get(info) && !info["rank"].get_int64().get(rank)) {
        rank_ = rank;
      }
    }
  }
  if (!found) throw simdjson::simdjson_error(simdjson::NO_SUCH_FIELD);
}

/// One file of PyTorch's profiler is one rank: its host process and its GPU.
void Importer::name_ranks() {
  if (!rank_ || *rank_ < 0 || *rank_ > 1'000'000'000) return;
  for (const auto& [pid, id] : processes_) {
    TraceProcess& p = builder_.process_at(id);
    if (p.rank < 0) p.rank = static_cast<std::int32_t>(*rank_);
  }
}

void Importer::finish_warnings() {
  const auto warn = [this](std::size_t count, const std::string& what) {
    if (count > 0) builder_.warn(std::to_string(count) + " " + what);
  };
  warn(timeless_, "events left out: their time is missing, not a number, or months away");
  warn(negative_, "events left out: they end before they begin");
  warn(unmatched_ + early_ends_.size(), "events left out: an end without a beginning");
  warn(nameless_, "entries of traceEvents left out: they are no objects");
  warn(untimed_,
       "kernels of CUPTI's range profiler count as ranges: their times are equal shares of "
       "the session");
  std::size_t open = 0;
  for (const auto& [key, thread] : threads_) open += thread.open.size();
  warn(open, "events left out: a beginning without an end");
}

Store Importer::run(std::string text) {
  text.reserve(text.size() + simdjson::SIMDJSON_PADDING);
  simdjson::ondemand::parser parser;
  std::string title;
  try {
    simdjson::ondemand::document document =
        parser.iterate(text.data(), text.size(), text.capacity());
    if (document.type() == simdjson::ondemand::json_type::array) {
      events(document.get_array());
    } else {
      this->document(document.get_object());
    }
  } catch (const simdjson::simdjson_error& error) {
    throw InputError(file_, "event " + std::to_string(events_), "",
                     std::string("is not a trace in Chrome's JSON format: ") + error.what(),
                     "open a .gtr file, or a .json or .json.gz of gputwin or PyTorch's profiler");
  }
  if (builder_.slices() == 0) {
    throw InputError(file_, "traceEvents", "", "holds no slice",
                     std::to_string(events_) + " events were read, none with a duration");
  }
  finish_warnings();
  name_ranks();
  return builder_.finish(std::filesystem::path(file_).filename().string());
}

}  // namespace

bool parse_microseconds(std::string_view text, std::int64_t base_us, Ps& out) {
  const bool exponent = text.find_first_of("eE") != std::string_view::npos;
  if (text.empty()) return false;
  if (exponent) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    const double ps = (value - static_cast<double>(base_us)) * 1e6;
    if (!(std::abs(ps) < static_cast<double>(kMaxTime))) return false;
    out = std::llround(ps);
    return true;
  }
  const bool minus = text.front() == '-';
  if (minus) text.remove_prefix(1);
  std::int64_t whole = 0;
  const char* const last = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), last, whole);
  if (error != std::errc()) return false;
  std::int64_t fraction = 0;
  if (at != last) {
    if (*at++ != '.') return false;
    for (int digit = 0; at != last; ++digit, ++at) {
      if (*at < '0' || *at > '9') return false;
      if (digit < 6) fraction = fraction * 10 + (*at - '0');
      if (digit < 5 && at + 1 == last) {
        for (int rest = digit; rest < 5; ++rest) fraction *= 10;
      }
    }
  }
  if (whole > std::int64_t{1} << 62) return false;
  const std::int64_t us = (minus ? -whole : whole) - base_us;
  if (std::abs(us) > kMaxTime / 1'000'000) return false;
  out = us * 1'000'000 + (minus ? -fraction : fraction);
  return true;
}

Store import_chrome(const std::filesystem::path& path) {
  std::string text = read_text(path);
  const std::uint64_t bytes = text.size();
  Store store = Importer(path.string()).run(std::move(text));
  store.text_bytes = bytes;
  store.origin = path.string();
  return store;
}

Store open_trace(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw InputError(path.string(), "", "", "is a folder", "open a trace file in it");
  }
  std::ifstream in(path, std::ios::binary);
  char magic[8] = {};
  in.read(magic, sizeof magic);
  const bool gtr = in.gcount() == 8 && std::string_view(magic, 8) == "GTRACE\r\n";
  Store store = gtr || path.extension() == ".gtr" ? read_gtr(path) : import_chrome(path);
  store.origin = path.string();
  return store;
}

}  // namespace gputwin
