// Parses plans; see plan_text.h for the grammar.
#include <algorithm>
#include <charconv>
#include <map>

#include "sim/core/error.h"
#include "sim/core/plan_builder.h"
#include "sim/core/plan_text.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace {

constexpr std::uint32_t kNone = 0xffffffffu;

struct Shape {
  std::int64_t rows = 1, cols = 0;
};

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Plan parse() {
    while (next_line()) {
      if (!words_.empty()) statement();
    }
    Plan& plan = builder_.plan();
    if (plan.arenas.empty()) plan.arenas.push_back({"gpu", Bytes(0)});
    for (Program& p : plan.programs) p.buffers = used_buffers(plan, p);
    return std::move(builder_).take();
  }

 private:
  [[noreturn]] void fail(const std::string& value, const std::string& problem,
                         const std::string& fix = "see the grammar in sim/core/plan_text.h") const {
    throw InputError("plan", "line " + std::to_string(line_number_), value, problem, fix);
  }

  bool next_line() {
    if (text_.empty()) return false;
    ++line_number_;
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    std::string_view line = text_.substr(0, end);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    words_.clear();
    position_ = 0;
    for (std::size_t i = 0; i < line.size();) {
      if (line[i] == ' ' || line[i] == '\t' || line[i] == '\r') {
        ++i;
        continue;
      }
      if (line[i] == '#') break;  // a comment; "#" inside a word belongs to the word
      const std::size_t stop = std::min(line.find_first_of(" \t\r", i), line.size());
      words_.emplace_back(line.substr(i, stop - i));
      i = stop;
    }
    return true;
  }

  bool more() const { return position_ < words_.size(); }
  const std::string& word(const char* what) {
    if (!more()) fail("", std::string("the line ends where ") + what + " is expected");
    return words_[position_++];
  }

  std::int64_t integer(std::string_view text) const {
    std::int64_t v = 0;
    const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
    if (r.ec != std::errc() || r.ptr != text.data() + text.size())
      fail(std::string(text), "is not an integer");
    return v;
  }

  std::uint32_t index(std::string_view text) const {
    const std::int64_t v = integer(text);
    if (v < 0 || v >= kNone) fail(std::string(text), "is not an index");
    return static_cast<std::uint32_t>(v);
  }

  double real(std::string_view text) const {
    double v = 0;
    const auto r = std::from_chars(text.data(), text.data() + text.size(), v);
    if (r.ec != std::errc() || r.ptr != text.data() + text.size())
      fail(std::string(text), "is not a number");
    return v;
  }

  template <class Enum>
  Enum spelt(const std::string& text, const char* what) const {
    if (const auto value = from_string<Enum>(text)) return *value;
    std::string all;
    for (const std::string_view s : spellings<Enum>())
      all += (all.empty() ? "" : ", ") + std::string(s);
    fail(text, std::string("is no ") + what, "one of: " + all);
  }

  void statement() {
    const std::string head = word("a statement");
    if (head == "arena") return arena();
    if (head == "jitter") return jitter();
    if (head == "cuda_graph") return void(builder_.plan().cuda_graph = true);
    if (head == "load") return load();
    if (head == "buffer") return buffer();
    if (head == "communicator") return communicator();
    if (head == "program") return program();
    if (head == "rank") return rank();
    if (builder_.plan().programs.empty()) fail(head, "needs a program before it");
    if (head == "stream") return stream();
    if (head == "slot") return slot();
    if (head == "param") return parameter();
    if (head == "input") return input();
    if (head == "loss") return void(current().loss = buffer_id(word("a buffer")));
    if (head == "prologue") return void(into_ = &current().prologue);
    if (head == "body") return void(into_ = &current().body);
    instruction(spelt<Kind>(head, "statement or instruction"));
  }

  Program& current() { return builder_.plan().programs.back(); }

  // Splits "key=value"; the key is empty for a bare word.
  static std::pair<std::string, std::string> field(const std::string& text) {
    const std::size_t at = text.find('=');
    if (at == std::string::npos) return {"", text};
    return {text.substr(0, at), text.substr(at + 1)};
  }

  void arena() {
    Arena a{word("a name"), Bytes(0)};
    while (more()) {
      const auto [key, value] = field(word("a field"));
      if (key != "capacity") fail(key + value, "is no field of an arena");
      a.capacity = Bytes(integer(value));
    }
    builder_.arena(a);
  }

  void jitter() {
    while (more()) {
      const auto [key, value] = field(word("a field"));
      if (key == "sigma") {
        builder_.plan().jitter.sigma = real(value);
      } else if (key == "seed") {
        builder_.plan().jitter.seed = static_cast<std::uint64_t>(integer(value));
      } else {
        fail(key + value, "is no field of jitter");
      }
    }
  }

  void load() {
    LoadTable table;
    while (more()) table.factor.push_back(real(word("a factor")));
    builder_.plan().loads.push_back(std::move(table));
  }

  bool shape_of(const std::string& text, Shape& shape) const {
    const std::size_t x = text.find('x');
    if (x == std::string::npos || text.find_first_not_of("0123456789x") != std::string::npos)
      return false;
    shape = {integer(std::string_view(text).substr(0, x)),
             integer(std::string_view(text).substr(x + 1))};
    return true;
  }

  void buffer() {
    Buffer b;
    Shape shape;
    b.name = word("a name");
    std::int64_t stated = -1;
    while (more()) {
      const std::string w = word("a field");
      const auto [key, value] = field(w);
      if (key == "bytes") {
        stated = integer(value);
      } else if (key == "class") {
        b.memory = spelt<MemoryClass>(value, "memory class");
      } else if (key == "arena") {
        b.arena = arena_id(value);
      } else if (key == "address") {
        b.address = integer(value);
      } else if (key == "seed") {
        b.seed = static_cast<std::uint64_t>(integer(value));
      } else if (w == "framed") {
        b.framed = true;
      } else if (w == "persistent") {
        b.persistent = true;
      } else if (w == "in_place") {
        b.in_place = true;
      } else if (!shape_of(w, shape)) {
        b.dtype = spelt<DType>(w, "shape, dtype or field of a buffer");
      }
    }
    const int width = bits(b.dtype);
    if (stated >= 0 && shape.cols == 0) shape = {1, stated * 8 / width};
    b.bytes = Bytes(stated >= 0 ? stated : (shape.rows * shape.cols * width + 7) / 8);
    if (buffers_.count(b.name) != 0) fail(b.name, "is declared twice");
    buffers_[b.name] = builder_.buffer(b);
    shapes_.push_back(shape);
  }

  ArenaId arena_id(const std::string& name) const {
    const auto& arenas = builder_.plan().arenas;
    for (std::uint32_t i = 0; i < arenas.size(); ++i) {
      if (arenas[i].name == name) return ArenaId(i);
    }
    fail(name, "is no arena declared above");
  }

  BufferId buffer_id(const std::string& name) const {
    const auto it = buffers_.find(name);
    if (it == buffers_.end()) fail(name, "is no buffer declared above");
    return it->second;
  }

  void communicator() {
    Communicator c{word("a name"), {}};
    while (more()) c.members.emplace_back(index(word("a rank")));
    communicators_[c.name] = builder_.communicator(c);
  }

  void program() {
    Program p;
    p.name = word("a name");
    while (more()) {
      const auto [key, value] = field(word("a field"));
      if (key != "frames") fail(key + value, "is no field of a program");
      p.frames = index(value);
    }
    builder_.program(std::move(p));
    into_ = nullptr;
  }

  void stream() {
    Stream s{word("a name"), StreamKind::Compute};
    s.kind = spelt<StreamKind>(word("a stream kind"), "stream kind");
    current().streams.push_back(s);
  }

  void slot() {
    Slot s{word("a name"), Domain::Tp, false};
    s.domain = spelt<Domain>(word("a domain"), "domain");
    if (more() && word("peer") == "peer") s.peer = true;
    current().slots.push_back(s);
  }

  SlotId slot_id(const std::string& name) {
    const auto& slots = current().slots;
    for (std::uint32_t i = 0; i < slots.size(); ++i) {
      if (slots[i].name == name) return SlotId(i);
    }
    fail(name, "is no slot of the program");
  }

  void parameter() {
    Parameter q;
    q.name = word("a name");
    Shape shape;
    const std::string dims = word("a shape");
    if (!shape_of(dims, shape)) fail(dims, "is no shape", "for example 8x16");
    q.rows = shape.rows;
    q.cols = shape.cols;
    while (more()) {
      const std::string w = word("a field");
      const auto [key, value] = field(w);
      if (key == "weight") {
        q.weight = view(value);
      } else if (key == "gradient") {
        q.gradient = view(value);
      } else if (key == "weight_shards") {
        q.weight_shards = slot_id(value);
      } else if (key == "gradient_shards") {
        q.gradient_shards = slot_id(value);
      } else if (key == "axis") {
        q.sharding.axis = spelt<Axis>(value, "axis");
      } else if (key == "slot") {
        q.sharding.slot = slot_id(value);
      } else if (key == "blocks") {
        q.sharding.blocks = static_cast<std::int32_t>(integer(value));
      } else if (w == "ones") {
        q.ones = true;
      } else if (w == "zeros") {
        q.zeros = true;
      } else {
        fail(w, "is no field of a parameter");
      }
    }
    current().parameters.push_back(std::move(q));
  }

  void input() {
    Input i;
    i.buffer = buffer_id(word("a buffer"));
    i.frames = current().frames;
    while (more()) {
      const std::string w = word("a field");
      const auto [key, value] = field(w);
      if (w == "targets") {
        i.targets = true;
      } else if (w == "shared_frames") {
        i.shared_frames = true;
      } else if (key == "samples") {
        i.samples = integer(value);
      } else if (key == "sequence") {
        i.sequence = integer(value);
      } else if (key == "vocab") {
        i.vocab = integer(value);
      } else if (key == "frames") {
        i.frames = integer(value);
      } else if (key == "data") {
        i.data_slot = slot_id(value);
      } else if (key == "cp") {
        i.cp_slot = slot_id(value);
      } else {
        fail(w, "is no field of an input");
      }
    }
    current().inputs.push_back(i);
  }

  // "a:b" within [0, size); both may be missing.
  std::pair<std::int64_t, std::int64_t> range(std::string_view text, std::int64_t size) const {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) fail(std::string(text), "is no range", "for example 0:4");
    const std::string_view from = text.substr(0, colon), to = text.substr(colon + 1);
    return {from.empty() ? 0 : integer(from), to.empty() ? size : integer(to)};
  }

  View view(const std::string& text) const {
    const std::size_t open = text.find_first_of("[{");
    const BufferId id = buffer_id(text.substr(0, open));
    const Shape& shape = shapes_[id.value];
    const DType dtype = builder_.plan().buffers[id.value].dtype;
    if (open == std::string::npos) return {id, 0, shape.rows, shape.cols, shape.cols, dtype};
    if (text.back() != (text[open] == '[' ? ']' : '}')) fail(text, "has no closing bracket");
    const std::string_view inner(text.data() + open + 1, text.size() - open - 2);
    std::vector<std::string> parts(1);
    for (const char c : inner) {
      if (c == ',') {
        parts.emplace_back();
      } else {
        parts.back() += c;
      }
    }
    if (text[open] == '{') {
      if (parts.size() != 5) fail(text, "is no view", "x{offset,rows,cols,ld,dtype}");
      return {id,
              integer(parts[0]),
              integer(parts[1]),
              integer(parts[2]),
              integer(parts[3]),
              spelt<DType>(parts[4], "dtype")};
    }
    if (parts.size() > 2) fail(text, "is no view", "x[rows,cols]");
    const auto rows = range(parts[0], shape.rows);
    const auto cols =
        parts.size() == 2 ? range(parts[1], shape.cols) : std::pair{std::int64_t{0}, shape.cols};
    return {id,
            rows.first * shape.cols + cols.first,
            rows.second - rows.first,
            cols.second - cols.first,
            shape.cols,
            dtype};
  }

  std::uint32_t name(std::string text) {
    if (text == "-") return kNone;
    Name n;
    const std::size_t phase = kPhaseLetters.find(text[0]);
    if (text.size() < 3 || text[1] != '/' || phase == std::string::npos) {
      fail(text, "is no instruction name", "for example F/L0/fc1 or O/adam#2");
    }
    n.phase = static_cast<Phase>(phase);
    text.erase(0, 2);
    if (text.starts_with("head/")) {
      n.layer = -2;
      text.erase(0, 5);
    } else if (text[0] == 'L' && text.size() > 1 && text[1] >= '0' && text[1] <= '9') {
      const std::size_t slash = text.find('/');
      if (slash == std::string::npos) fail(text, "has no op");
      n.layer = static_cast<std::int32_t>(integer(std::string_view(text).substr(1, slash - 1)));
      text.erase(0, slash + 1);
    }
    const std::size_t hash = text.find('#');
    if (hash != std::string::npos) {
      n.occurrence = static_cast<std::int32_t>(integer(std::string_view(text).substr(hash + 1)));
      text.erase(hash);
    }
    n.op = text;
    return builder_.name(n).value;
  }

  std::uint32_t event(const std::string& text) {
    if (text.size() < 2 || text[0] != 'e') fail(text, "is no event", "for example e0");
    const std::uint32_t e = index(std::string_view(text).substr(1));
    current().events = std::max(current().events, e + 1);
    return e;
  }

  std::uint8_t stream_id(const std::string& text) {
    const auto& streams = current().streams;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].name == text) return static_cast<std::uint8_t>(i);
    }
    fail(text, "is no stream of the program");
  }

  static bool flag_word(const std::string& w, std::uint16_t& flags) {
    if (w == "grouped") return flags |= kGrouped, true;
    if (w == "previous") return flags |= kPreviousBody, true;
    if (w == "derived") return flags |= kDerived, true;
    return false;
  }

  void instruction(Kind kind) {
    if (into_ == nullptr)
      fail(std::string(to_string(kind)), "needs `body` or `prologue` before it");
    Instruction i;
    i.kind = kind;
    if (kind == Kind::Alloc || kind == Kind::Free) {
      i.call = buffer_id(word("a buffer")).value;
      if (more()) i.event = frame(word("a frame"));
    } else if (kind == Kind::HostWait) {
      i.event = event(word("an event"));
    } else {
      i.stream = stream_id(word("a stream"));
      if (kind == Kind::Record || kind == Kind::Wait) {
        i.event = event(word("an event"));
      } else {
        task(i);
      }
    }
    while (more()) {
      const std::string w = word("a flag");
      if (!flag_word(w, i.flags)) fail(w, "is no flag of an instruction");
    }
    into_->push_back(i);
  }

  std::uint32_t frame(const std::string& text) const {
    if (text.size() < 2 || text[0] != '@') fail(text, "is no frame", "for example @0");
    return index(std::string_view(text).substr(1));
  }

  void task(Instruction& i) {
    i.name = name(word("a name"));
    if (more() && words_[position_][0] == '@') i.event = frame(word("a frame"));
    Call call;
    const std::string op = word("an op");
    call.op.kind = spelt<OpKind>(op, "op");
    while (more() && words_[position_] != ":") {
      const std::string w = word("a field");
      if (!flag_word(w, i.flags)) op_field(call.op, w);
    }
    if (more()) word(":");
    while (more() && words_[position_] != ":") call.reads.push_back(view(word("a view")));
    if (more()) word(":");
    while (more()) call.writes.push_back(view(word("a view")));
    i.call = builder_.call(std::move(call)).value;
  }

  void op_field(Op& op, const std::string& w) {
    const auto [key, value] = field(w);
    if (key.size() == 1) {
      const std::size_t d = dimension_letters(op.kind).find(key[0]);
      if (d == std::string_view::npos) fail(w, "is no dimension of this op");
      op.dims[d] = integer(value);
    } else if (key.empty()) {
      op_flag(op, w);
    } else {
      op_word(op, key, value);
    }
  }

  void filter(Op& op, const std::string& value) {
    std::size_t begin = 0;
    for (std::int64_t& w : op.filter) {
      const std::size_t end = std::min(value.find(',', begin), value.size());
      w = integer(value.substr(begin, end - begin));
      begin = std::min(end + 1, value.size());
    }
  }

  void op_flag(Op& op, const std::string& w) {
    if (w == "ta") return void(op.trans_a = true);
    if (w == "tb") return void(op.trans_b = true);
    if (w == "accumulate") return void(op.accumulate = true);
    if (w == "causal") return void(op.causal = true);
    if (w == "alibi") return void(op.alibi = true);
    if (w == "inverse") return void(op.inverse = true);
    if (w == "max") return void(op.reduce_max = true);
    if (w == "pageable") return void(op.pinned = false);
    if (w == "weighted") return void(op.weighted = true);
    fail(w, "is no flag of an op");
  }

  void op_word(Op& op, const std::string& key, const std::string& value) {
    if (key == "slot") return void(op.slot = slot_id(value));
    if (key == "cp") return void(op.cp_slot = slot_id(value));
    if (key == "ring_step") return void(op.ring_step = index(value));
    if (key == "dtype") return void(op.dtype = spelt<DType>(value, "dtype"));
    if (key == "out") return void(op.out = spelt<DType>(value, "dtype"));
    if (key == "activation") return void(op.activation = spelt<Activation>(value, "activation"));
    if (key == "norm") return void(op.norm = spelt<Norm>(value, "norm"));
    if (key == "attention") return void(op.attention = spelt<AttentionKernel>(value, "kernel"));
    if (key == "copy") return void(op.copy = spelt<CopyKind>(value, "copy kind"));
    if (key == "fused") return void(op.fused = static_cast<std::uint8_t>(integer(value)));
    if (key == "launches") return void(op.launches = static_cast<std::uint16_t>(integer(value)));
    if (key == "value_size") {
      return void(op.value_size = static_cast<std::int32_t>(integer(value)));
    }
    if (key == "window") return void(op.window = static_cast<std::int32_t>(integer(value)));
    if (key == "dropout") return void(op.dropout = static_cast<float>(real(value)));
    if (key == "scale") return void(op.scale = static_cast<float>(real(value)));
    if (key == "root") return void(op.root = index(value));
    if (key == "load") return void(op.load = index(value));
    if (key == "flops") return void(op.flops = Flops(real(value)));
    if (key == "filter") return filter(op, value);
    if (key == "stated") return void(op.stated = Seconds(real(value)));
    if (key == "workspace") return void(op.workspace = Bytes(integer(value)));
    fail(key, "is no field of an op");
  }

  void rank() {
    Rank r;
    const std::string name = word("a program");
    const auto& programs = builder_.plan().programs;
    for (std::uint32_t p = 0; p < programs.size(); ++p) {
      if (programs[p].name == name) r.program = ProgramId(p);
    }
    if (!r.program.valid()) fail(name, "is no program declared above");
    const Program& p = programs[r.program.value];
    r.slots.assign(p.slots.size(), kNone);
    r.gpu = GpuId(static_cast<std::uint32_t>(builder_.plan().ranks.size()));
    while (more()) {
      const auto [key, value] = field(word("a field"));
      if (key == "gpu") {
        r.gpu = GpuId(index(value));
      } else if (key == "slowdown") {
        r.slowdown = real(value);
      } else {
        fill_slot(p, key, value, r);
      }
    }
    builder_.rank(std::move(r));
  }

  void fill_slot(const Program& p, const std::string& key, const std::string& value,
                 Rank& r) const {
    for (std::size_t s = 0; s < p.slots.size(); ++s) {
      if (p.slots[s].name != key) continue;
      if (value == "-") return;
      if (p.slots[s].peer) return void(r.slots[s] = index(value));
      const auto it = communicators_.find(value);
      if (it == communicators_.end()) fail(value, "is no communicator declared above");
      return void(r.slots[s] = it->second.value);
    }
    fail(key, "is neither gpu, slowdown nor a slot of the program");
  }

  std::string_view text_;
  int line_number_ = 0;
  std::vector<std::string> words_;
  std::size_t position_ = 0;
  PlanBuilder builder_;
  std::map<std::string, BufferId> buffers_;
  std::map<std::string, CommunicatorId> communicators_;
  std::vector<Shape> shapes_;  // by buffer
  std::vector<Instruction>* into_ = nullptr;
};

}  // namespace

Plan parse_plan(std::string_view text) { return Parser(text).parse(); }

}  // namespace gputwin
