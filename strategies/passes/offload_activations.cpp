// What layers keep for their backward pass lies in host memory in between.
#include <algorithm>
#include <map>
#include <utility>

#include "strategies/passes/offload_program.h"

namespace gputwin::offloading {
namespace {

// One buffer of one micro-batch, by index of the body.
struct Stay {
  BufferId buffer{};
  std::uint32_t frame = 0;
  std::size_t last_before = 0;  // its last use in or before the forward pass
  std::size_t first_back = 0;   // its first one in the backward pass
  bool known = false, returns = false, changed = false;
};

bool is_backward(Phase p) {
  return p == Phase::Recompute || p == Phase::Backward || p == Phase::WeightGrad;
}

class ActivationMove {
 public:
  explicit ActivationMove(const Context& c) : c_(c) {}

  void run() {
    list_stays();
    if (order_.empty()) return;
    const std::vector<Instruction> body = std::exchange(c_.target().body, {});
    std::vector<std::vector<Instruction>> insert(body.size() + 1);
    place_copies(insert);
    std::vector<Instruction> out;
    for (std::size_t i = 0; i <= body.size(); ++i) {
      out.insert(out.end(), insert[i].begin(), insert[i].end());
      if (i < body.size()) out.push_back(redirected(body[i], i));
    }
    c_.target().body = std::move(out);
  }

 private:
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // buffer, frame

  bool may_leave(BufferId id) const {
    const Buffer& b = c_.plan().buffers[id.value];
    return b.framed && !b.persistent && !b.in_place && b.arena == ArenaId(0) &&
           b.memory == MemoryClass::Activations;
  }

  void list_stays() {
    const std::vector<Instruction>& body = c_.target().body;
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (!is_task(body[i].kind) || body[i].frame() == kNoFrame) continue;
      const Call& call = c_.call(body[i]);
      const bool back = is_backward(c_.plan().names[body[i].name].phase);
      for (const View& v : call.reads) touch(v.buffer, body[i].frame(), i, back, false);
      for (const View& v : call.writes) touch(v.buffer, body[i].frame(), i, back, true);
    }
    const std::vector<double> start = timeline(c_);
    for (const auto& [key, s] : stays_) {
      if (!s.known || !s.returns || s.changed) continue;
      // What would not be away for a moment stays.
      const double away = start[s.first_back] - start[s.last_before + 1];
      if (away > 2 * copy_seconds(s.buffer)) order_.push_back(s);
    }
    std::sort(order_.begin(), order_.end(), [](const Stay& a, const Stay& b) {
      return std::pair(a.first_back, a.buffer.value) < std::pair(b.first_back, b.buffer.value);
    });
  }

  void touch(BufferId b, std::uint32_t frame, std::size_t i, bool back, bool writes) {
    if (!may_leave(b)) return;
    Stay& s = stays_[{b.value, frame}];
    if (s.returns) {
      s.changed = s.changed || writes;
    } else if (!back) {
      s = {.buffer = b, .frame = frame, .last_before = i, .known = true};
    } else {
      s.returns = true;
      s.first_back = i;
      s.changed = writes;
    }
  }

  double copy_seconds(BufferId b) const {
    if (c_.costs == nullptr) return 1e-6;
    const GpuId gpu = c_.plan().ranks[c_.rank.value].gpu;
    const Bytes bytes = c_.plan().buffers[b.value].bytes;
    return c_.costs->copy(CopyKind::DeviceToHost, bytes, c_.spec.pinned, gpu).time.value;
  }

  // Out behind the last use; in one stay ahead of its own, so that it runs under what is repeated
  // of the layer before.
  void place_copies(std::vector<std::vector<Instruction>>& insert) {
    std::size_t ahead = 0;
    for (std::size_t k = 0; k < order_.size(); ++k) {
      const Stay& s = order_[k];
      const View gpu = whole(s.buffer), host = whole(twin(s.buffer, host_, ".host", c_.host));
      const View back = whole(twin(s.buffer, back_, ".back", ArenaId(0)));
      const auto number = static_cast<std::int32_t>(s.buffer.value);
      Instruction out =
          c_.copy(CopyKind::DeviceToHost, c_.streams.out, gpu, host, "activation_out", number);
      Instruction in =
          c_.copy(CopyKind::HostToDevice, c_.streams.in, host, back, "activation_in", number);
      out.event = in.event = s.frame;
      insert[s.last_before + 1].push_back(out);
      insert[std::max(ahead, s.last_before + 1)].push_back(in);
      ahead = s.first_back;
      moved_[{s.buffer.value, s.frame}] = s.first_back;
    }
  }

  BufferId twin(BufferId of, std::map<std::uint32_t, BufferId>& twins, const char* suffix,
                ArenaId arena) {
    const auto [found, added] = twins.try_emplace(of.value, BufferId());
    if (added) {
      Buffer b = c_.plan().buffers[of.value];
      b.name += suffix;
      b.arena = arena;
      found->second = c_.builder.buffer(std::move(b));
    }
    return found->second;
  }

  View whole(BufferId id) const {
    const Buffer& b = c_.plan().buffers[id.value];
    const std::int64_t n = b.bytes.value * 8 / bits(b.dtype);
    return {.buffer = id, .rows = 1, .cols = n, .ld = n, .dtype = b.dtype};
  }

  // Backward operations read what came back.
  Instruction redirected(Instruction i, std::size_t at) {
    if (!is_task(i.kind) || i.frame() == kNoFrame) return i;
    Call call = c_.call(i);
    bool changed = false;
    for (View& v : call.reads) {
      const auto found = moved_.find({v.buffer.value, i.frame()});
      if (found == moved_.end() || at < found->second) continue;
      v.buffer = back_.at(v.buffer.value);
      changed = true;
    }
    if (changed) i.call = c_.builder.call(std::move(call)).value;
    return i;
  }

  const Context& c_;
  std::map<Key, Stay> stays_;
  std::vector<Stay> order_;           // by return
  std::map<Key, std::size_t> moved_;  // from which instruction on the returned copy is read
  std::map<std::uint32_t, BufferId> host_, back_;  // by buffer
};

}  // namespace

void move_activations(const Context& c) {
  if (c.spec.activations != OffloadPlace::Gpu) ActivationMove(c).run();
}

}  // namespace gputwin::offloading
