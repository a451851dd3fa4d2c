// Prints plans; see plan_text.h for the grammar.
#include <array>
#include <charconv>
#include <map>

#include "sim/core/plan_text.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace {

constexpr std::uint32_t kNone = 0xffffffffu;

std::string number(double v) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), v).ptr;
  return {text.data(), end};
}

std::string number(std::int64_t v) { return std::to_string(v); }

class Printer {
 public:
  explicit Printer(const Plan& plan) : plan_(plan) {
    std::map<std::string, int> uses;
    for (const Buffer& b : plan.buffers) ++uses[b.name];
    for (std::uint32_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& b = plan.buffers[i];
      const bool unique = uses[b.name] == 1 && !b.name.empty();
      buffer_names_.push_back(unique ? b.name : b.name + "~" + std::to_string(i));
    }
  }

  std::string whole() {
    for (const Arena& a : plan_.arenas) {
      line("arena " + a.name + (a.capacity.value ? " capacity=" + number(a.capacity.value) : ""));
    }
    if (plan_.jitter.sigma > 0) {
      line("jitter sigma=" + number(plan_.jitter.sigma) +
           " seed=" + std::to_string(plan_.jitter.seed));
    }
    if (plan_.cuda_graph) line("cuda_graph");
    for (const LoadTable& t : plan_.loads) {
      std::string text = "load";
      for (const double f : t.factor) text += " " + number(f);
      line(text);
    }
    for (std::uint32_t b = 0; b < plan_.buffers.size(); ++b) buffer(b);
    for (const Communicator& c : plan_.communicators) {
      std::string text = "communicator " + c.name;
      for (const RankId r : c.members) text += " " + std::to_string(r.value);
      line(text);
    }
    for (const Program& p : plan_.programs) program(p);
    for (const Rank& r : plan_.ranks) rank(r);
    return std::move(out_);
  }

  std::string body(const Program& p) {
    for (const Instruction& i : p.body) instruction(p, i);
    return std::move(out_);
  }

 private:
  void line(const std::string& text) { out_ += text + "\n"; }

  void buffer(std::uint32_t id) {
    const Buffer& b = plan_.buffers[id];
    std::string text = "buffer " + buffer_names_[id] + " bytes=" + number(b.bytes.value) + " ";
    text += std::string(to_string(b.dtype)) + " class=" + std::string(to_string(b.memory));
    if (b.arena.value != 0 && b.arena.value < plan_.arenas.size()) {
      text += " arena=" + plan_.arenas[b.arena.value].name;
    }
    if (b.address >= 0) text += " address=" + number(b.address);
    if (b.framed) text += " framed";
    if (b.persistent) text += " persistent";
    if (b.in_place) text += " in_place";
    if (b.seed != 0) text += " seed=" + std::to_string(b.seed);
    line(text);
  }

  std::string view(const View& v) const {
    return buffer_names_[v.buffer.value] + "{" + number(v.offset) + "," + number(v.rows) + "," +
           number(v.cols) + "," + number(v.ld) + "," + std::string(to_string(v.dtype)) + "}";
  }

  void program(const Program& p) {
    line("program " + p.name + " frames=" + std::to_string(p.frames));
    for (const Stream& s : p.streams)
      line("  stream " + s.name + " " + std::string(to_string(s.kind)));
    for (const Slot& s : p.slots) {
      line("  slot " + s.name + " " + std::string(to_string(s.domain)) + (s.peer ? " peer" : ""));
    }
    for (const Parameter& q : p.parameters) parameter(p, q);
    for (const Input& i : p.inputs) input(p, i);
    if (p.loss.valid()) line("  loss " + buffer_names_[p.loss.value]);
    if (!p.prologue.empty()) {
      line("prologue");
      for (const Instruction& i : p.prologue) instruction(p, i);
    }
    line("body");
    for (const Instruction& i : p.body) instruction(p, i);
  }

  void parameter(const Program& p, const Parameter& q) {
    std::string text = "  param " + q.name + " " + number(q.rows) + "x" + number(q.cols);
    text += " weight=" + view(q.weight);
    if (q.gradient.buffer.valid()) text += " gradient=" + view(q.gradient);
    if (q.sharding.axis != Axis::None) {
      text +=
          " axis=" + std::string(to_string(q.sharding.axis)) + " slot=" + slot(p, q.sharding.slot);
    }
    if (q.weight_shards.valid()) text += " weight_shards=" + slot(p, q.weight_shards);
    if (q.gradient_shards.valid()) text += " gradient_shards=" + slot(p, q.gradient_shards);
    if (q.sharding.blocks != 1) text += " blocks=" + std::to_string(q.sharding.blocks);
    if (q.ones) text += " ones";
    if (q.zeros) text += " zeros";
    line(text);
  }

  void input(const Program& p, const Input& i) {
    std::string text = "  input " + buffer_names_[i.buffer.value] + (i.targets ? " targets" : "");
    text += " samples=" + number(i.samples) + " sequence=" + number(i.sequence);
    text += " vocab=" + number(i.vocab) + " frames=" + number(i.frames);
    if (i.data_slot.valid()) text += " data=" + slot(p, i.data_slot);
    if (i.cp_slot.valid()) text += " cp=" + slot(p, i.cp_slot);
    if (i.shared_frames) text += " shared_frames";
    line(text);
  }

  static std::string slot(const Program& p, SlotId s) { return p.slots.at(s.value).name; }

  std::string name(std::uint32_t id) const {
    if (id >= plan_.names.size()) return "-";
    const Name& n = plan_.names[id];
    std::string text(1, kPhaseLetters[static_cast<std::size_t>(n.phase)]);
    if (n.layer >= 0) text += "/L" + std::to_string(n.layer);
    if (n.layer == -2) text += "/head";
    text += "/" + n.op;
    if (n.occurrence != 0) text += "#" + std::to_string(n.occurrence);
    return text;
  }

  std::string op(const Program& p, const Op& o) const {
    const Op plain;
    std::string text(to_string(o.kind));
    const std::string_view letters = dimension_letters(o.kind);
    for (std::size_t d = 0; d < letters.size(); ++d) {
      text += std::string(" ") + letters[d] + "=" + number(o.dims[d]);
    }
    for (std::size_t w = 0; is_convolution(o.kind) && w < o.filter.size(); ++w) {
      text += (w == 0 ? " filter=" : ",") + number(o.filter[w]);
    }
    const auto word = [&](bool differs, const char* key, std::string_view value) {
      if (differs) text += std::string(" ") + key + "=" + std::string(value);
    };
    const auto flag = [&](bool on, const char* key) {
      if (on) text += std::string(" ") + key;
    };
    word(o.slot.valid(), "slot", o.slot.valid() ? slot(p, o.slot) : "");
    word(o.cp_slot.valid(), "cp", o.cp_slot.valid() ? slot(p, o.cp_slot) : "");
    word(o.ring_step != 0, "ring_step", std::to_string(o.ring_step));
    word(o.dtype != plain.dtype, "dtype", to_string(o.dtype));
    word(o.out != plain.out, "out", to_string(o.out));
    flag(o.trans_a, "ta");
    flag(o.trans_b, "tb");
    flag(o.accumulate, "accumulate");
    flag(o.causal, "causal");
    flag(o.alibi, "alibi");
    flag(o.inverse, "inverse");
    flag(o.reduce_max, "max");
    flag(!o.pinned, "pageable");
    flag(o.weighted, "weighted");
    word(o.activation != plain.activation, "activation", to_string(o.activation));
    word(o.norm != plain.norm, "norm", to_string(o.norm));
    word(o.attention != plain.attention, "attention", to_string(o.attention));
    word(o.copy != plain.copy, "copy", to_string(o.copy));
    word(o.fused != plain.fused, "fused", std::to_string(o.fused));
    word(o.launches != plain.launches, "launches", std::to_string(o.launches));
    word(o.value_size != 0, "value_size", std::to_string(o.value_size));
    word(o.window != 0, "window", std::to_string(o.window));
    word(o.dropout != plain.dropout, "dropout", number(static_cast<double>(o.dropout)));
    word(o.scale != plain.scale, "scale", number(static_cast<double>(o.scale)));
    word(o.root != 0, "root", std::to_string(o.root));
    word(o.load != 0, "load", std::to_string(o.load));
    word(o.flops.value != 0, "flops", number(o.flops.value));
    word(o.stated.value != 0, "stated", number(o.stated.value));
    word(o.workspace.value != 0, "workspace", number(o.workspace.value));
    return text;
  }

  void instruction(const Program& p, const Instruction& i) {
    const std::string kind = "  " + std::string(to_string(i.kind));
    const std::string frame = i.event == kNoFrame ? "" : " @" + std::to_string(i.event);
    if (i.kind == Kind::Alloc || i.kind == Kind::Free) {
      return line(kind + " " + buffer_names_[i.call] + frame);
    }
    std::string flags;
    if ((i.flags & kGrouped) != 0) flags += " grouped";
    if ((i.flags & kPreviousBody) != 0) flags += " previous";
    if ((i.flags & kDerived) != 0) flags += " derived";
    const std::string event = " e" + std::to_string(i.event);
    if (i.kind == Kind::HostWait) return line(kind + event + flags);
    const std::string stream = " " + p.streams.at(i.stream).name;
    if (i.kind == Kind::Record || i.kind == Kind::Wait) return line(kind + stream + event + flags);
    const Call& call = plan_.calls[i.call];
    std::string text =
        kind + stream + " " + name(i.name) + frame + " " + op(p, call.op) + flags + " :";
    for (const View& v : call.reads) text += " " + view(v);
    text += " :";
    for (const View& v : call.writes) text += " " + view(v);
    line(text);
  }

  void rank(const Rank& r) {
    const Program& p = plan_.programs[r.program.value];
    std::string text = "rank " + p.name + " gpu=" + std::to_string(r.gpu.value);
    if (r.slowdown != 1.0) text += " slowdown=" + number(r.slowdown);
    for (std::size_t s = 0; s < r.slots.size(); ++s) {
      const std::uint32_t value = r.slots[s];
      text += " " + p.slots[s].name + "=";
      if (value == kNone) {
        text += "-";
      } else {
        text += p.slots[s].peer ? std::to_string(value) : plan_.communicators[value].name;
      }
    }
    line(text);
  }

  const Plan& plan_;
  std::vector<std::string> buffer_names_;
  std::string out_;
};

}  // namespace

std::string to_text(const Plan& plan) { return Printer(plan).whole(); }

std::string to_text(const Plan& plan, const Program& program) {
  return Printer(plan).body(program);
}

}  // namespace gputwin
