#include "sim/trace/chrome_export.h"

#include <map>

#include "sim/trace/atomic_file.h"
#include "sim/trace/json_text.h"

namespace gputwin {

namespace {

constexpr std::size_t kPiece = 1 << 18;  // bytes gathered before they are written

class Writer {
 public:
  Writer(const Store& store, const std::filesystem::path& path) : store_(store), file_(path) {}

  void run() {
    buffer_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    write_names();
    for (std::size_t t = 0; t < store_.tracks.size(); ++t) write_track(t);
    write_flows();
    write_counters();
    buffer_ += "\n]}\n";
    file_.write(buffer_);
    file_.commit();
  }

 private:
  void begin(char phase, std::uint32_t process) {
    if (buffer_.size() > kPiece) {
      file_.write(buffer_);
      buffer_.clear();
    }
    buffer_ += first_ ? "" : ",\n";
    first_ = false;
    buffer_ += "{\"ph\":\"";
    buffer_.push_back(phase);
    buffer_ += "\",\"pid\":";
    append_number(buffer_, process);
  }

  void place(std::uint32_t thread, Ps at) {
    buffer_ += ",\"tid\":";
    append_number(buffer_, thread);
    buffer_ += ",\"ts\":";
    append_microseconds(buffer_, at - zero_);
  }

  void write_names() {
    zero_ = std::min<Ps>(0, store_.range().begin);  // the format's times are not negative
    for (std::uint32_t p = 0; p < store_.processes.size(); ++p) {
      begin('M', p);
      buffer_ += ",\"name\":\"process_name\",\"args\":{\"name\":";
      append_string(buffer_, store_.processes[p].name);
      buffer_ += "}}";
      begin('M', p);
      buffer_ += ",\"name\":\"process_sort_index\",\"args\":{\"sort_index\":";
      append_number(buffer_, p);
      buffer_ += "}}";
    }
    std::map<std::pair<std::uint32_t, std::string>, std::uint32_t> threads;
    for (const Track& track : store_.tracks) {
      const auto next = static_cast<std::uint32_t>(threads.size());
      const auto [at, made] = threads.try_emplace({track.process, track.name}, next);
      threads_.push_back(at->second);
      if (!made) continue;
      begin('M', track.process);
      buffer_ += ",\"tid\":";
      append_number(buffer_, at->second);
      buffer_ += ",\"name\":\"thread_name\",\"args\":{\"name\":";
      append_string(buffer_, track.name);
      buffer_ += "}}";
    }
  }

  void write_track(std::size_t t) {
    const Track& track = store_.tracks[t];
    for (SliceId s = track.first; s < track.first + track.count; ++s) {
      begin('X', track.process);
      place(threads_[t], store_.start(s));
      buffer_ += ",\"dur\":";
      append_microseconds(buffer_, store_.duration(s));
      buffer_ += ",\"name\":";
      append_string(buffer_, store_.name(s));
      buffer_ += ",\"cat\":";
      append_string(buffer_, store_.definition(s).phase);
      if (const std::string_view arguments = store_.arguments(s); !arguments.empty()) {
        buffer_ += ",\"args\":";
        buffer_ += arguments;
      }
      buffer_ += "}";
    }
  }

  void write_flow_end(char phase, std::size_t id, SliceId s) {
    const std::uint32_t track = store_.track_of(s);
    begin(phase, store_.tracks[track].process);
    place(threads_[track], store_.start(s));
    buffer_ += ",\"cat\":\"flow\",\"name\":\"to\",\"id\":";
    append_number(buffer_, static_cast<std::int64_t>(id));
    buffer_ += phase == 'f' ? ",\"bp\":\"e\"}" : "}";
  }

  void write_flows() {
    for (std::size_t i = 0; i < store_.flows().size(); ++i) {
      write_flow_end('s', i, store_.flows()[i].from);
      write_flow_end('f', i, store_.flows()[i].to);
    }
  }

  void write_counters() {
    for (const Counter& c : store_.counters) {
      for (std::size_t i = 0; i < c.at.size(); ++i) {
        begin('C', c.process);
        buffer_ += ",\"ts\":";
        append_microseconds(buffer_, c.at[i] - zero_);
        buffer_ += ",\"name\":";
        append_string(buffer_, c.name);
        buffer_ += ",\"args\":{";
        append_string(buffer_, c.series);
        fmt::format_to(std::back_inserter(buffer_), ":{}}}}}", c.value[i]);
      }
    }
  }

  const Store& store_;
  AtomicFile file_;
  std::string buffer_;
  std::vector<std::uint32_t> threads_;  // by track
  Ps zero_ = 0;
  bool first_ = true;
};

}  // namespace

void write_chrome(const Store& store, const std::filesystem::path& path) {
  Writer(store, path).run();
}

}  // namespace gputwin
