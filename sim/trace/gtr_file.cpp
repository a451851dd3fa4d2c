#include "sim/trace/gtr_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <map>
#include <type_traits>

#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "sim/trace/store_builder.h"

namespace gputwin {

static_assert(std::endian::native == std::endian::little, "columns are written as they lie");

namespace {

constexpr char kMagic[9] = "GTRACE\r\n";
constexpr std::size_t kHeaderBytes = 24, kSectionBytes = 24;

enum Section : std::uint32_t {
  kTables = 1,
  kStart,
  kDuration,
  kDefinition,
  kFrame,
  kArgument,
  kLong,
  kTextBlob,
  kTextEnds,
  kFlows,
  kCounterTimes,
  kCounterValues,
  kSections
};

struct LongRow {
  std::uint64_t slice;
  std::int64_t duration;
};

void put(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put(std::string& out, std::string_view text) {
  put(out, text.size(), 8);
  out.append(text);
}

/// Takes numbers and texts off a section, never beyond its end.
class Taker {
 public:
  Taker(std::string_view bytes, std::string file) : bytes_(bytes), file_(std::move(file)) {}

  std::uint64_t number(std::size_t bytes) {
    need(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes_[at_ + i])) << (8 * i);
    }
    at_ += bytes;
    return value;
  }
  std::int32_t signed_number() { return static_cast<std::int32_t>(number(4)); }
  std::string text() {
    const std::uint64_t size = number(8);
    need(size);
    std::string out(bytes_.substr(at_, size));
    at_ += size;
    return out;
  }
  /// A count of things that take at least `least` bytes each.
  std::size_t count(std::size_t least) {
    const std::uint64_t value = number(8);
    if (value > (bytes_.size() - at_) / least) fail();
    return value;
  }

 private:
  void need(std::uint64_t bytes) const {
    if (bytes > bytes_.size() - at_) fail();
  }
  [[noreturn]] void fail() const {
    throw InputError(file_, "tables, byte " + std::to_string(at_), "",
                     "says more than the file holds", "write the trace again");
  }
  std::string_view bytes_;
  std::string file_;
  std::size_t at_ = 0;
};

std::string tables_of(const Store& store) {
  std::string out;
  for (const std::string* text :
       {&store.title, &store.scenario_json, &store.result_json, &store.origin}) {
    put(out, *text);
  }
  put(out, store.warnings.size(), 8);
  for (const std::string& text : store.warnings) put(out, text);
  put(out, store.processes.size(), 8);
  for (const TraceProcess& p : store.processes) {
    put(out, p.name);
    put(out, p.role);
    put(out, static_cast<std::uint32_t>(p.rank), 4);
    put(out, static_cast<std::uint32_t>(p.node), 4);
  }
  put(out, store.tracks.size(), 8);
  for (const Track& t : store.tracks) {
    put(out, t.process, 4);
    put(out, t.name);
    put(out, t.depth, 4);
    put(out, t.count, 4);
  }
  put(out, store.definitions.size(), 8);
  for (const Definition& d : store.definitions) {
    for (const std::string* text : {&d.before, &d.after, &d.phase, &d.op, &d.arguments}) {
      put(out, *text);
    }
    put(out, d.framed ? 1 : 0, 1);
    put(out, static_cast<std::uint8_t>(d.kind), 1);
    put(out, static_cast<std::uint32_t>(d.layer), 4);
  }
  put(out, store.counters.size(), 8);
  for (const Counter& c : store.counters) {
    put(out, c.process, 4);
    put(out, c.name);
    put(out, c.series);
    put(out, c.at.size(), 8);
  }
  return out;
}

template <class T>
std::string_view bytes_of(const std::vector<T>& column) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(column.data()), column.size() * sizeof(T)};
}

}  // namespace

/// Reaches the columns of a Store for the two functions below.
class GtrAccess {
 public:
  static void write(const Store& store, AtomicFile& file);
  explicit GtrAccess(std::string file) : file_(std::move(file)) {}
  Store read(std::ifstream& in);

 private:
  struct Place {
    std::uint64_t offset, bytes;
  };
  void read_header(std::ifstream& in);
  template <class T>
  std::vector<T> column(std::ifstream& in, Section section, std::size_t expected);
  void read_tables(std::string_view bytes);
  void read_more_tables(Taker& take);
  void read_counters(std::ifstream& in);
  void read_texts(std::ifstream& in, std::size_t slices);
  void check_slices();
  void check_track(const Track& track);
  [[noreturn]] void fail(const std::string& where, const std::string& problem) const {
    throw InputError(file_, where, "", problem, "write the trace again with this version");
  }

  std::string file_;
  std::map<std::uint32_t, Place> places_;
  std::vector<std::size_t> samples_;  // by counter
  Store store_;
};

void GtrAccess::write(const Store& store, AtomicFile& file) {
  const std::string tables = tables_of(store);
  std::vector<LongRow> longs;
  for (const auto& [slice, duration] : store.long_) longs.push_back({slice, duration});
  std::vector<Ps> times;
  std::vector<double> values;
  for (const Counter& c : store.counters) {
    times.insert(times.end(), c.at.begin(), c.at.end());
    values.insert(values.end(), c.value.begin(), c.value.end());
  }
  const std::vector<std::pair<Section, std::string_view>> sections = {
      {kTables, tables},
      {kStart, bytes_of(store.start_)},
      {kDuration, bytes_of(store.duration_)},
      {kDefinition, bytes_of(store.definition_)},
      {kFrame, bytes_of(store.frame_)},
      {kArgument, bytes_of(store.argument_)},
      {kLong, bytes_of(longs)},
      {kTextBlob, store.texts_.blob()},
      {kTextEnds, bytes_of(store.texts_.ends())},
      {kFlows, bytes_of(store.flows_)},
      {kCounterTimes, bytes_of(times)},
      {kCounterValues, bytes_of(values)}};
  std::uint64_t offset = kHeaderBytes + sections.size() * kSectionBytes;
  std::string table;
  for (const auto& [kind, bytes] : sections) {
    put(table, kind, 4);
    put(table, 0, 4);
    put(table, offset, 8);
    put(table, bytes.size(), 8);
    offset += bytes.size();
  }
  std::string header(kMagic, 8);
  put(header, kGtrVersion, 4);
  put(header, sections.size(), 4);
  put(header, offset, 8);
  file.write(header + table);
  for (const auto& [kind, bytes] : sections) file.write(bytes);
}

void GtrAccess::read_header(std::ifstream& in) {
  in.seekg(0, std::ios::end);
  const auto size = static_cast<std::uint64_t>(in.tellg());
  in.seekg(0);
  char header[kHeaderBytes];
  if (size < kHeaderBytes || !in.read(header, kHeaderBytes)) fail("header", "is cut off");
  Taker take({header, kHeaderBytes}, file_);
  if (std::memcmp(header, kMagic, 8) != 0) fail("header", "is not that of a .gtr file");
  take.number(8);
  const std::uint64_t version = take.number(4), sections = take.number(4), stated = take.number(8);
  if (version != kGtrVersion) {
    fail("header", "has version " + std::to_string(version) + ", this program reads " +
                       std::to_string(kGtrVersion));
  }
  if (stated != size) {
    fail("header", "says " + std::to_string(stated) + " bytes, the file has " +
                       std::to_string(size) + ": it was cut off or changed");
  }
  if (sections > (size - kHeaderBytes) / kSectionBytes) fail("header", "has too many sections");
  std::string table(sections * kSectionBytes, '\0');
  in.read(table.data(), static_cast<std::streamsize>(table.size()));
  Taker rows(table, file_);
  for (std::uint64_t s = 0; s < sections; ++s) {
    const auto kind = static_cast<std::uint32_t>(rows.number(4));
    rows.number(4);
    const std::uint64_t offset = rows.number(8), bytes = rows.number(8);
    if (offset > size || bytes > size - offset) {
      fail("section " + std::to_string(kind), "lies outside the file");
    }
    places_[kind] = {offset, bytes};
  }
}

template <class T>
std::vector<T> GtrAccess::column(std::ifstream& in, Section section, std::size_t expected) {
  const auto place = places_.find(section);
  const std::string where = "section " + std::to_string(section);
  if (place == places_.end()) fail(where, "is missing");
  const Place& p = place->second;
  if (p.bytes % sizeof(T) != 0 || (expected != SIZE_MAX && p.bytes != expected * sizeof(T))) {
    fail(where, "holds " + std::to_string(p.bytes) + " bytes, which is not what the tables say");
  }
  std::vector<T> out(p.bytes / sizeof(T));
  in.seekg(static_cast<std::streamoff>(p.offset));
  in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(p.bytes));
  if (!in) fail(where, "cannot be read");
  return out;
}

void GtrAccess::read_tables(std::string_view bytes) {
  Taker take(bytes, file_);
  for (std::string* text :
       {&store_.title, &store_.scenario_json, &store_.result_json, &store_.origin}) {
    *text = take.text();
  }
  for (std::size_t n = take.count(8); n > 0; --n) store_.warnings.push_back(take.text());
  for (std::size_t n = take.count(24); n > 0; --n) {
    TraceProcess p;
    p.name = take.text();
    p.role = take.text();
    p.rank = take.signed_number();
    p.node = take.signed_number();
    store_.processes.push_back(std::move(p));
  }
  std::uint64_t first = 0;
  for (std::size_t n = take.count(20); n > 0; --n) {
    Track t;
    t.process = static_cast<std::uint32_t>(take.number(4));
    t.name = take.text();
    t.depth = static_cast<std::uint32_t>(take.number(4));
    t.first = static_cast<SliceId>(first);
    t.count = static_cast<SliceId>(take.number(4));
    first += t.count;
    if (t.process >= store_.processes.size()) fail("tables", "name a process that is not there");
    store_.tracks.push_back(std::move(t));
  }
  if (first >= kNoSlice) fail("tables", "name more slices than a timeline holds");
  read_more_tables(take);
}

void GtrAccess::read_more_tables(Taker& take) {
  for (std::size_t n = take.count(46); n > 0; --n) {
    Definition d;
    for (std::string* text : {&d.before, &d.after, &d.phase, &d.op, &d.arguments}) {
      *text = take.text();
    }
    d.framed = take.number(1) != 0;
    const std::uint64_t kind = take.number(1);
    if (kind >= kSliceKinds) fail("tables", "name a kind of slice that is not known");
    d.kind = static_cast<SliceKind>(kind);
    d.layer = take.signed_number();
    store_.definitions.push_back(std::move(d));
  }
  for (std::size_t n = take.count(28); n > 0; --n) {
    Counter c;
    c.process = static_cast<std::uint32_t>(take.number(4));
    c.name = take.text();
    c.series = take.text();
    if (c.process >= store_.processes.size()) fail("tables", "name a process that is not there");
    samples_.push_back(take.number(8));
    store_.counters.push_back(std::move(c));
  }
}

void GtrAccess::read_counters(std::ifstream& in) {
  const auto times = column<Ps>(in, kCounterTimes, SIZE_MAX);
  const auto values = column<double>(in, kCounterValues, times.size());
  std::size_t at = 0;
  for (std::size_t c = 0; c < samples_.size(); ++c) {
    if (samples_[c] > times.size() - at) fail("counters", "are more than there are samples");
    const auto first = static_cast<std::ptrdiff_t>(at);
    const auto last = static_cast<std::ptrdiff_t>(at + samples_[c]);
    Counter& counter = store_.counters[c];
    counter.at.assign(times.begin() + first, times.begin() + last);
    counter.value.assign(values.begin() + first, values.begin() + last);
    if (!std::is_sorted(counter.at.begin(), counter.at.end())) {
      fail("counter " + counter.name, "goes back in time");
    }
    at += samples_[c];
  }
}

void GtrAccess::read_texts(std::ifstream& in, std::size_t slices) {
  const auto blob = column<char>(in, kTextBlob, SIZE_MAX);
  auto ends = column<std::uint64_t>(in, kTextEnds, SIZE_MAX);
  if (!std::is_sorted(ends.begin(), ends.end()) ||
      (ends.empty() ? 0 : ends.back()) != blob.size()) {
    fail("texts", "do not match their lengths");
  }
  store_.texts_ = Texts(std::string(blob.begin(), blob.end()), std::move(ends));
  store_.argument_ = column<std::uint32_t>(in, kArgument, SIZE_MAX);
  if (!store_.argument_.empty() && store_.argument_.size() != slices) {
    fail("arguments", "are not one for each slice");
  }
  for (const std::uint32_t id : store_.argument_) {
    if (id != kNoText && id >= store_.texts_.size()) fail("arguments", "name a missing text");
  }
}

void GtrAccess::check_track(const Track& track) {
  Ps free_from = -kMaxTime;
  for (SliceId s = track.first; s < track.first + track.count; ++s) {
    const std::string where = "slice " + std::to_string(s);
    if (store_.definition_[s] >= store_.definitions.size()) fail(where, "names no definition");
    const Ps duration = store_.duration(s);
    if (duration < 0 || store_.start_[s] > kMaxTime || duration > kMaxTime) {
      fail(where, "has an impossible time");
    }
    if (store_.start_[s] < free_from) fail(where, "overlaps the one before");
    free_from = store_.start_[s] + duration;
    if (free_from > kMaxTime) fail(where, "has an impossible time");
  }
}

void GtrAccess::check_slices() {
  if (!std::is_sorted(store_.long_.begin(), store_.long_.end())) fail("durations", "are unsorted");
  for (const Track& track : store_.tracks) check_track(track);
  for (const Flow& flow : store_.flows_) {
    if (flow.from >= store_.size() || flow.to >= store_.size()) fail("flows", "lead nowhere");
  }
}

Store GtrAccess::read(std::ifstream& in) {
  read_header(in);
  const auto tables = column<char>(in, kTables, SIZE_MAX);
  read_tables({tables.data(), tables.size()});
  std::size_t slices = 0;
  for (const Track& track : store_.tracks) slices += track.count;
  store_.start_ = column<Ps>(in, kStart, slices);
  store_.duration_ = column<std::uint32_t>(in, kDuration, slices);
  store_.definition_ = column<std::uint32_t>(in, kDefinition, slices);
  store_.frame_ = column<std::uint32_t>(in, kFrame, slices);
  for (const LongRow& row : column<LongRow>(in, kLong, SIZE_MAX)) {
    store_.long_.emplace_back(static_cast<SliceId>(row.slice), row.duration);
  }
  read_texts(in, slices);
  store_.flows_ = column<Flow>(in, kFlows, SIZE_MAX);
  read_counters(in);
  check_slices();
  store_.index();
  return std::move(store_);
}

void write_gtr(const Store& store, const std::filesystem::path& path) {
  AtomicFile file(path);
  GtrAccess::write(store, file);
  file.commit();
}

Store read_gtr(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw InputError(path.string(), "", "", "cannot be read", "name a file that you may read");
  }
  return GtrAccess(path.string()).read(in);
}

}  // namespace gputwin
