#include "sim/trace/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "sim/core/check.h"
#include "sim/core/spelling.h"
#include "sim/trace/address_map.h"
#include "sim/trace/perfetto_writer.h"
#include "sim/trace/slice_text.h"

namespace gputwin {

namespace {

constexpr std::uint32_t kNoCounter = 0xffffffffu;

}  // namespace

/// State of one watched rank.
struct RunTrace::Rows {
  const Program* program;
  MemoryTimeline memory;
  std::vector<std::uint32_t> threads;                               // by stream
  std::vector<std::array<std::uint32_t, kMemoryClasses>> counters;  // by arena
  std::unordered_map<std::uint32_t, std::uint32_t> placed;  // counter by buffer with an address
  std::uint32_t process = 0;
  Rows(const Plan& plan, const Program& p) : program(&p), memory(plan, p) {}

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

RunTrace::RunTrace(const Plan& plan, const Topology& topology, std::vector<RankId> ranks,
                   PowerSource power)
    : plan_(plan), topology_(topology), ranks_(std::move(ranks)), rows_(plan.ranks.size()) {
  std::sort(ranks_.begin(), ranks_.end());
  std::vector<GpuId> gpus;
  for (const RankId rank : ranks_) {
    add_rank(rank);
    gpus.push_back(plan.ranks[rank.value].gpu);
  }
  arrows_ = std::make_unique<FlowArrows>(plan, ranks_);
  loads_ = std::make_unique<LinkLoad>(topology, links_near(topology, gpus, kMaxTracedLinks));
  power_ = std::make_unique<PowerTimeline>(std::move(power), ranks_);
}

RunTrace::~RunTrace() = default;

void RunTrace::add_rank(RankId id) {
  const Rank& rank = plan_.ranks[id.value];
  const Program& program = plan_.programs[rank.program.value];
  auto rows = std::make_unique<Rows>(plan_, program);
  const std::uint32_t process = builder_.process(
      {fmt::format("rank {} · {} · gpu {}", id.value, program.name, rank.gpu.value), program.name,
       static_cast<std::int32_t>(id.value), topology_.node_of(rank.gpu)});
  rows->process = process;
  for (std::size_t s = 0; s < program.streams.size(); ++s) {
    rows->threads.push_back(
        builder_.thread(process, program.streams[s].name, static_cast<std::int64_t>(s)));
  }
  for (std::uint32_t a = 0; a < plan_.arenas.size(); ++a) {
    auto& row = rows->counters.emplace_back();
    for (std::size_t c = 0; c < kMemoryClasses; ++c) {
      const auto memory = static_cast<MemoryClass>(c);
      row[c] = rows->memory.uses(ArenaId(a), memory)
                   ? builder_.counter(process, plan_.arenas[a].name + " memory",
                                      std::string(to_string(memory)) + "_bytes")
                   : kNoCounter;
    }
  }
  for (const BufferId id : program.buffers) {
    const Buffer& buffer = plan_.buffers[id.value];
    if (buffer.address < 0) continue;
    rows->placed[id.value] = builder_.counter(
        process, address_counter(plan_.arenas[buffer.arena.value]), address_series(buffer));
  }
  take_memory(*rows, rows->memory.initial());
  rows_[id.value] = std::move(rows);
}

void RunTrace::take_memory(Rows& rows, const std::vector<MemorySample>& samples) {
  for (const MemorySample& sample : samples) {
    const auto& counters = rows.counters[sample.arena.value];
    for (std::size_t c = 0; c < kMemoryClasses; ++c) {
      if (counters[c] == kNoCounter) continue;
      builder_.sample(counters[c], sample.at, static_cast<double>(sample.bytes[c]));
    }
  }
  for (const PlacementSample& sample : rows.memory.take_placements()) {
    builder_.sample(rows.placed.at(sample.buffer.value), sample.at, sample.instances);
  }
}

std::uint32_t RunTrace::definition_of(const Instruction& instruction, const Program& program) {
  const bool framed = instruction.frame() != kNoFrame;
  const auto [at, made] =
      definitions_.try_emplace({instruction.name, instruction.call, framed ? 1u : 0u}, 0);
  if (!made) return at->second;
  const SliceName name = slice_name(plan_, instruction);
  const Name& meaning = plan_.names[instruction.name];
  Definition d;
  d.framed = framed && !name.before.empty();
  d.before = d.framed ? name.before : name.plain;
  d.after = d.framed ? name.after : "";
  d.kind = slice_kind(instruction, plan_, program);
  d.phase = std::string(to_string(meaning.phase));
  d.op = meaning.op;
  d.layer = meaning.layer;
  d.arguments = "{" + slice_arguments(plan_.calls[instruction.call], nullptr) + "}";
  at->second = builder_.definition(std::move(d));
  return at->second;
}

void RunTrace::op(const OpEvent& event) {
  Rows* rows = rows_[event.rank.value].get();
  if (rows == nullptr) return;
  const Instruction& instruction = *event.instruction;
  const std::size_t position = rows->position(event.instruction);
  builder_.slice(rows->threads[instruction.stream], event.start, event.end - event.start,
                 definition_of(instruction, *rows->program), instruction.frame(), event.body);
  power_->op(event);
  new_samples_.clear();
  rows->memory.ran(event.body, position, event.start, event.end, new_samples_);
  take_memory(*rows, new_samples_);
  if (instruction.kind != Kind::Collective && instruction.kind != Kind::Send &&
      instruction.kind != Kind::Recv) {
    return;
  }
  new_arrows_.clear();
  arrows_->add(event, position, new_arrows_);
  for (const Arrow& a : new_arrows_) {
    builder_.flow(rows_[a.from.value]->threads[a.from_stream], a.at,
                  rows_[a.to.value]->threads[a.to_stream], a.at);
  }
}

void RunTrace::flow(RankId, RankId, Bytes bytes, const Route& route, Ps start, Ps end) {
  loads_->add(route, bytes, start, end);
}

void RunTrace::take_link_loads() {
  std::uint32_t process = kNoCounter;
  for (std::size_t row = 0; row < loads_->links().size(); ++row) {
    const auto& windows = loads_->bytes(row);
    if (windows.empty()) continue;
    if (process == kNoCounter) process = builder_.process({"links", "", -1, -1});
    const std::uint32_t counter =
        builder_.counter(process, topology_.link_name(loads_->links()[row]), "GB/s");
    std::int64_t before = -1;
    for (std::size_t w = 0; w <= windows.size(); ++w) {
      const std::int64_t now = w < windows.size() ? windows[w] : 0;
      if (now == std::exchange(before, now)) continue;
      const double rate = static_cast<double>(now) / to_seconds(loads_->width()).value;
      builder_.sample(counter, static_cast<Ps>(w) * loads_->width(), rate * 1e-9);
    }
  }
}

void RunTrace::take_power() {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const std::vector<PowerTimeline::Sample> samples = power_->samples(i);
    if (samples.empty()) continue;
    const std::uint32_t counter =
        builder_.counter(rows_[ranks_[i].value]->process, kPowerCounter, "W");
    for (const PowerTimeline::Sample& s : samples) builder_.sample(counter, s.at, s.watts);
  }
}

Store RunTrace::finish(std::string title, std::string scenario_json, std::string result_json) {
  for (const RankId rank : ranks_) {
    new_samples_.clear();
    rows_[rank.value]->memory.finish(new_samples_);
    take_memory(*rows_[rank.value], new_samples_);
  }
  take_power();
  take_link_loads();
  Store store = builder_.finish(std::move(title));
  store.scenario_json = std::move(scenario_json);
  store.result_json = std::move(result_json);
  return store;
}

}  // namespace gputwin
