#include "sim/trace/perfetto_writer.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "sim/trace/atomic_file.h"
#include "sim/trace/json_text.h"
#include "sim/trace/slice_text.h"

namespace gputwin {

namespace {

constexpr std::size_t kBufferBytes = 1 << 18;

// Perfetto takes process 0 and thread 0 for the idle task and draws them apart, so both count
// from 1.
std::int64_t process_of(RankId rank) { return std::int64_t{rank.value} + 1; }
std::int64_t thread_of(std::uint8_t stream) { return std::int64_t{stream} + 1; }

}  // namespace

/// State of one written rank.
struct PerfettoWriter::Track {
  const Program* program = nullptr;
  MemoryTimeline memory;
  Track(const Plan& plan, const Program& p) : program(&p), memory(plan, p) {}

  std::size_t position(const Instruction* instruction) const {
    const auto inside = [instruction](const std::vector<Instruction>& part) {
      const std::less<const Instruction*> before;
      return !part.empty() && !before(instruction, part.data()) &&
             before(instruction, part.data() + part.size());
    };
    if (inside(program->prologue)) {
      return static_cast<std::size_t>(instruction - program->prologue.data());
    }
    GPUTWIN_CHECK(inside(program->body), "an event's instruction belongs to its rank's program");
    return program->prologue.size() + static_cast<std::size_t>(instruction - program->body.data());
  }
};

PerfettoWriter::PerfettoWriter(const std::filesystem::path& path, const Plan& plan,
                               const Topology& topology, std::vector<RankId> ranks,
                               PerfettoOptions options)
    : plan_(plan),
      topology_(topology),
      ranks_(std::move(ranks)),
      options_(std::move(options)),
      file_(std::make_unique<AtomicFile>(path)),
      tracks_(plan.ranks.size()),
      names_(plan.names.size()),
      arguments_(plan.calls.size()) {
  if (ranks_.empty()) {
    for (std::uint32_t r = 0; r < plan.ranks.size() && r < kMaxTracedRanks; ++r)
      ranks_.emplace_back(r);
  }
  std::sort(ranks_.begin(), ranks_.end());
  ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
  if (ranks_.size() > kMaxTracedRanks) ranks_.resize(kMaxTracedRanks);
  std::vector<GpuId> gpus;
  for (const RankId rank : ranks_) {
    tracks_[rank.value] = std::make_unique<Track>(plan, plan.program_of(rank));
    gpus.push_back(plan.ranks[rank.value].gpu);
  }
  auto& links = options_.links;
  if (links.empty()) links = links_near(topology, gpus, kMaxTracedLinks);
  if (links.size() > kMaxTracedLinks) links.resize(kMaxTracedLinks);
  arrows_ = std::make_unique<FlowArrows>(plan, ranks_);
  loads_ = std::make_unique<LinkLoad>(topology, links);
  power_ = std::make_unique<PowerTimeline>(std::move(options_.power), ranks_);
  buffer_.reserve(2 * kBufferBytes);
  write_metadata();
}

PerfettoWriter::~PerfettoWriter() = default;

void PerfettoWriter::write_metadata() {
  buffer_ += "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"producer\":\"gputwin\",\"title\":";
  append_string(buffer_, options_.title);
  buffer_ += ",\"ranks\":";
  append_number(buffer_, static_cast<std::int64_t>(plan_.ranks.size()));
  buffer_ += "},\"traceEvents\":[\n";
  buffer_ += R"({"ph":"M","pid":1,"name":"trace_title","args":{"name":)";
  append_string(buffer_, options_.title);
  buffer_ += "}}";
  const auto metadata = [this](std::int64_t process, std::int64_t thread, const char* what,
                               auto&& value) {
    begin_event('M', process);
    if (thread > 0) {
      buffer_ += ",\"tid\":";
      append_number(buffer_, thread);
    }
    buffer_ += std::string(",\"name\":\"") + what + "\",\"args\":{";
    value();
    buffer_ += "}}";
  };
  const auto name = [this](std::string text) {
    return [this, text = std::move(text)] {
      buffer_ += "\"name\":";
      append_string(buffer_, text);
    };
  };
  const auto sort_index = [this](std::int64_t index) {
    return [this, index] {
      buffer_ += "\"sort_index\":";
      append_number(buffer_, index);
    };
  };
  for (const RankId id : ranks_) {
    const Rank& rank = plan_.ranks[id.value];
    const Program& program = plan_.programs[rank.program.value];
    const std::int64_t process = process_of(id);
    metadata(process, 0, "process_name",
             name(fmt::format("rank {} · {} · gpu {}", id.value, program.name, rank.gpu.value)));
    metadata(process, 0, "process_sort_index", sort_index(process));
    for (std::size_t s = 0; s < program.streams.size(); ++s) {
      const std::int64_t thread = thread_of(static_cast<std::uint8_t>(s));
      metadata(process, thread, "thread_name", name(program.streams[s].name));
      metadata(process, thread, "thread_sort_index", sort_index(thread));
    }
    write_memory(id, tracks_[id.value]->memory.initial());
  }
  const std::int64_t links = process_of(RankId(static_cast<std::uint32_t>(plan_.ranks.size())));
  metadata(links, 0, "process_name", name("links"));
  metadata(links, 0, "process_sort_index", sort_index(links));
}

void PerfettoWriter::op(const OpEvent& event) {
  Track* track = tracks_[event.rank.value].get();
  if (!track || !error_.empty()) return;
  const std::size_t position = track->position(event.instruction);
  last_end_ = std::max(last_end_, event.end);
  write_slice(event);

  power_->op(event);
  new_samples_.clear();
  track->memory.ran(event.body, position, event.start, event.end, new_samples_);
  write_memory(event.rank, new_samples_);

  const Kind kind = event.instruction->kind;
  if (kind == Kind::Collective || kind == Kind::Send || kind == Kind::Recv) {
    new_arrows_.clear();
    arrows_->add(event, position, new_arrows_);
    for (const Arrow& arrow : new_arrows_) write_arrow(arrow);
  }
  flush(kBufferBytes);
}

void PerfettoWriter::flow(RankId, RankId, Bytes bytes, const Route& route, Ps start, Ps end) {
  last_end_ = std::max(last_end_, end);
  loads_->add(route, bytes, start, end);
}

bool PerfettoWriter::progress(double) { return error_.empty(); }

void PerfettoWriter::close() {
  for (const RankId rank : ranks_) {
    new_samples_.clear();
    tracks_[rank.value]->memory.finish(new_samples_);
    write_memory(rank, new_samples_);
  }
  write_power();
  write_link_loads();
  buffer_ += "\n]}\n";
  flush(0);
  if (!error_.empty()) throw InputError(file_->path().string(), "", "", error_, "");
  file_->commit();
}

void PerfettoWriter::begin_event(char phase, std::int64_t process) {
  buffer_ += ",\n{\"ph\":\"";
  buffer_.push_back(phase);
  buffer_ += "\",\"pid\":";
  append_number(buffer_, process);
}

void PerfettoWriter::write_slice(const OpEvent& event) {
  const Instruction& instruction = *event.instruction;
  begin_event('X', process_of(event.rank));
  buffer_ += ",\"tid\":";
  append_number(buffer_, thread_of(instruction.stream));
  buffer_ += ",\"ts\":";
  append_microseconds(buffer_, event.start);
  buffer_ += ",\"dur\":";
  append_microseconds(buffer_, event.end - event.start);
  buffer_ += ",\"name\":\"";
  const SliceName& name = name_of(instruction);
  const bool framed = instruction.frame() != kNoFrame && !name.before.empty();
  if (framed) {
    buffer_ += name.before;
    append_number(buffer_, instruction.frame());
    buffer_ += name.after;
  } else {
    buffer_ += name.plain;
  }
  buffer_ += "\",\"cat\":\"";
  append(buffer_, to_string(plan_.names[instruction.name].phase));
  buffer_ += "\",\"args\":{";
  if (framed) {
    buffer_ += "\"micro_batch\":";
    append_number(buffer_, instruction.frame());
    buffer_.push_back(',');
  }
  if (event.body > 0) {
    buffer_ += "\"body\":";
    append_number(buffer_, event.body);
    buffer_.push_back(',');
  }
  buffer_ += "\"layer\":";
  append_number(buffer_, plan_.names[instruction.name].layer);
  buffer_ += arguments_of(instruction);
  buffer_ += "}}";
  ++counts_.slices;
}

const SliceName& PerfettoWriter::name_of(const Instruction& instruction) {
  auto& name = names_[instruction.name];
  if (name) return *name;
  // The escaped text without its quotes.
  const auto escaped = [](const std::string& plain) {
    std::string text;
    append_string(text, plain);
    return text.substr(1, text.size() - 2);
  };
  const SliceName spelt = slice_name(plan_, instruction);
  name = std::make_unique<SliceName>(
      SliceName{escaped(spelt.before), escaped(spelt.after), escaped(spelt.plain)});
  return *name;
}

const std::string& PerfettoWriter::arguments_of(const Instruction& instruction) {
  std::string& text = arguments_[instruction.call];
  if (!text.empty()) return text;
  const bool costed = instruction.call < options_.call_costs.size();
  text = "," + slice_arguments(plan_.calls[instruction.call],
                               costed ? &options_.call_costs[instruction.call] : nullptr);
  return text;
}

void PerfettoWriter::write_arrow(const Arrow& arrow) {
  ++counts_.arrows;
  write_arrow_end('s', arrow.from, arrow.from_stream, arrow.at);
  write_arrow_end('f', arrow.to, arrow.to_stream, arrow.at);
}

void PerfettoWriter::write_arrow_end(char phase, RankId rank, std::uint8_t stream, Ps at) {
  begin_event(phase, process_of(rank));
  buffer_ += ",\"tid\":";
  append_number(buffer_, thread_of(stream));
  buffer_ += ",\"ts\":";
  append_microseconds(buffer_, at);
  buffer_ += ",\"id\":";
  append_number(buffer_, counts_.arrows);
  if (phase == 'f') buffer_ += ",\"bp\":\"e\"";  // binds to the slice around `at`, not the next one
  buffer_ += ",\"name\":\"communication\",\"cat\":\"flow\"}";
}

void PerfettoWriter::write_memory(RankId rank, const std::vector<MemorySample>& samples) {
  for (const MemorySample& sample : samples) {
    begin_event('C', process_of(rank));
    buffer_ += ",\"ts\":";
    append_microseconds(buffer_, sample.at);
    buffer_ += ",\"name\":";
    append_string(buffer_, plan_.arenas[sample.arena.value].name + " memory");
    buffer_ += ",\"args\":{";
    for (std::size_t c = 0; c < kMemoryClasses; ++c) {
      if (!tracks_[rank.value]->memory.uses(sample.arena, static_cast<MemoryClass>(c))) continue;
      if (buffer_.back() != '{') buffer_.push_back(',');
      buffer_.push_back('"');
      append(buffer_, to_string(static_cast<MemoryClass>(c)));
      buffer_ += "_bytes\":";
      append_number(buffer_, sample.bytes[c]);
    }
    buffer_ += "}}";
    ++counts_.counters;
  }
}

void PerfettoWriter::write_link_loads() {
  const std::int64_t process = process_of(RankId(static_cast<std::uint32_t>(plan_.ranks.size())));
  for (std::size_t row = 0; row < loads_->links().size(); ++row) {
    const auto& windows = loads_->bytes(row);
    if (windows.empty()) continue;
    std::string name;
    append_string(name, topology_.link_name(loads_->links()[row]));
    std::int64_t before = -1;
    for (std::size_t w = 0; w <= windows.size(); ++w) {
      const std::int64_t now = w < windows.size() ? windows[w] : 0;
      if (now == std::exchange(before, now)) continue;
      begin_event('C', process);
      buffer_ += ",\"ts\":";
      append_microseconds(buffer_, static_cast<Ps>(w) * loads_->width());
      buffer_ += ",\"name\":" + name;
      const double rate = static_cast<double>(now) / to_seconds(loads_->width()).value;
      buffer_ += fmt::format(",\"args\":{{\"GB/s\":{:.6g}}}}}", rate * 1e-9);
      ++counts_.counters;
      flush(kBufferBytes);
    }
  }
}

void PerfettoWriter::write_power() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    for (const PowerTimeline::Sample& s : power_->samples(i)) {
      begin_event('C', process_of(ranks_[i]));
      buffer_ += ",\"ts\":";
      append_microseconds(buffer_, s.at);
      buffer_ += fmt::format(R"(,"name":"{}","args":{{"W":{:.0f}}}}})", kPowerCounter, s.watts);
      ++counts_.counters;
      flush(kBufferBytes);
    }
  }
}

void PerfettoWriter::flush(std::size_t threshold) {
  if (buffer_.size() < threshold) return;
  try {
    if (error_.empty()) file_->write(buffer_);
  } catch (const InputError& error) {
    error_ = error.problem;  // thrown by close(), since the engine must not unwind
  }
  buffer_.clear();
}

}  // namespace gputwin
