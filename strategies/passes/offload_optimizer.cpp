// The optimizer's step on the host: gradients come down, Adam runs there, weights go up.
#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "strategies/passes/offload_program.h"

namespace gputwin::offloading {
namespace {

bool has_master(const Call& adam) { return adam.writes.size() > 3; }

View flat_view(BufferId buffer, std::int64_t elements, DType dtype) {
  return {.buffer = buffer, .rows = 1, .cols = elements, .ld = elements, .dtype = dtype};
}

// One bucket's step as lowering wrote it.
struct Step {
  std::size_t adam = 0;
  std::vector<std::size_t> passes;  // unscaling, clipping, copy of the master weights
  View gradient, sum, weight;       // the gradient as it was reduced
  std::int64_t elements = 0;
};

class OptimizerMove {
 public:
  OptimizerMove(const Context& c, const Leaving& leaving) : c_(c), leaving_(leaving) {}

  bool run() {
    if (!find_steps()) return false;
    const std::vector<Instruction> body = std::exchange(c_.target().body, {});
    insert_.resize(body.size() + 1);
    drop_.assign(body.size(), 0);
    body_ = &body;
    list_uses();
    for (const Step& s : steps_) move(s);
    std::vector<Instruction> out;
    if (c_.spec.delayed_update) out = late_;
    for (std::size_t i = 0; i <= body.size(); ++i) {
      const bool first = !steps_.empty() && i == steps_.front().adam;
      for (const auto* list : {&clipped_, &copied_down_, &stepped_, &copied_up_}) {
        if (first) out.insert(out.end(), list->begin(), list->end());
      }
      out.insert(out.end(), insert_[i].begin(), insert_[i].end());
      if (i < body.size() && drop_[i] == 0) out.push_back(body[i]);
    }
    c_.target().body = std::move(out);
    return true;
  }

 private:
  // Steps of Adam in order; those of the last buckets stay on the GPU if only a share leaves.
  bool find_steps() {
    const std::vector<Instruction>& body = c_.target().body;
    std::map<std::uint32_t, View> unscaled;
    std::map<std::uint32_t, std::vector<std::size_t>> passes;  // by gradient or weight buffer
    std::vector<CallId> calls;
    for (std::size_t i = 0; i < body.size(); ++i) {
      if (body[i].kind != Kind::Kernel) continue;
      const Call& call = c_.call(body[i]);
      const std::string& name = c_.plan().names[body[i].name].op;
      if (call.op.kind == OpKind::LambStep || call.op.kind == OpKind::SgdStep) return false;
      if (name == "unscale" || name == "clip") {
        passes[call.writes[0].buffer.value].push_back(i);
        if (call.reads[0].buffer != call.writes[0].buffer) {
          unscaled[call.writes[0].buffer.value] = call.reads[0];
        }
      }
      if (name == "copy_master" && !steps_.empty() &&
          call.writes[0].buffer == steps_.back().weight.buffer) {
        steps_.back().passes.push_back(i);
      }
      if (call.op.kind != OpKind::AdamStep) continue;
      const View& read = call.reads[0];
      const auto source = unscaled.find(read.buffer.value);
      steps_.push_back({.adam = i,
                        .passes = std::exchange(passes[read.buffer.value], {}),
                        .gradient = source == unscaled.end() ? read : source->second,
                        .sum = call.reads[1],
                        .weight = call.writes.back(),
                        .elements = read.elements()});
      calls.push_back(body[i].call_id());
    }
    steps_.resize(steps_that_leave(c_, calls));
    return true;
  }

  // The host's copy of a buffer that stays on the GPU.
  BufferId twin(BufferId of) {
    const auto [found, added] = twins_.try_emplace(of.value, BufferId());
    if (!added) return found->second;
    Buffer b = c_.plan().buffers[of.value];
    b.name += ".host";
    b.arena = c_.host;
    b.framed = b.in_place = false;
    b.persistent = true;
    return found->second = c_.builder.buffer(std::move(b));
  }
  View on_host(const View& v) {
    View host = v;
    if (!leaving_.holds(v.buffer)) host.buffer = twin(v.buffer);
    return host;
  }

  // Where gradients and weights of steps that leave are touched.
  void list_uses() {
    for (const Step& s : steps_) {
      const Call& adam = c_.call((*body_)[s.adam]);
      for (const View& v : {s.gradient, s.weight, adam.reads[0], adam.writes[0]}) {
        uses_[v.buffer.value].clear();
      }
    }
    for (std::size_t i = 0; i < body_->size(); ++i) {
      if (!is_task((*body_)[i].kind)) continue;
      const Call& call = c_.call((*body_)[i]);
      for (const auto* views : {&call.reads, &call.writes}) {
        for (const View& v : *views) {
          const auto found = uses_.find(v.buffer.value);
          if (found != uses_.end()) found->second.push_back(i);
        }
      }
    }
  }

  // Right behind the last instruction before `end` that touches the buffer.
  std::size_t behind_last_use(BufferId buffer, std::size_t end) const {
    const std::vector<std::size_t>& at = uses_.at(buffer.value);
    for (auto i = std::lower_bound(at.begin(), at.end(), end); i != at.begin();) {
      if (drop_[*--i] == 0) return *i + 1;
    }
    return 0;
  }

  void move(const Step& s) {
    const std::int32_t k = number_++;
    const Call adam = c_.call((*body_)[s.adam]);
    const bool keeps_master = c_.spec.masters_on_gpu && has_master(adam);
    const bool casts = !keeps_master && casts_on_gpu(s, adam);
    drop_[s.adam] = 1;
    for (const std::size_t i : s.passes) drop_[i] = keeps_master ? 0 : 1;
    const bool clipped_first = keeps_master && clip_first(s);
    // One optimizer steps when all gradients are there and before the first weights go up: the
    // gradient of the first bucket comes down last, the weights of the last one go up first.
    const bool at_once = keeps_master && !c_.spec.overlap_copies && !c_.spec.delayed_update;
    const bool wide = keeps_master || casts;  // F32 both ways
    const View down = keeps_master ? adam.reads[0] : s.gradient;
    const View up_to = keeps_master ? adam.writes[0] : s.weight;
    const View gradient = casts ? wide_on_host(s) : on_host(down);
    const View weight = casts ? adam.writes[0] : on_host(up_to);
    std::size_t at = s.adam;
    if (c_.spec.optimizer_by_bucket) {
      at = std::max(behind_last_use(down.buffer, s.adam), behind_last_use(up_to.buffer, s.adam));
    }
    if (casts) {
      const std::size_t when = behind_last_use(down.buffer, s.adam);
      cast_down(s, gradient, k, insert_[when]);
      at = std::max(at, when);
    } else if (!leaving_.holds(down.buffer)) {
      const std::size_t when = behind_last_use(down.buffer, s.adam);
      take_down(down, gradient, k,
                at_once         ? copied_down_
                : clipped_first ? clipped_
                                : insert_[when],
                at_once);
      at = std::max(at, when);
    }
    Call call{.op = {.kind = OpKind::CpuAdam,
                     .dtype = gradient.dtype,
                     .out = adam.op.out,
                     .dims = {s.elements, c_.ranks_on_node()}},
              .reads = {gradient},
              .writes = {}};
    if (c_.spec.clip_by_norm) call.reads.push_back(norm(s, at_once ? clipped_ : insert_[s.adam]));
    // Without a master among what is written the host steps the weight itself (op.h, note 4).
    std::vector<View> states(adam.writes.begin() + (wide ? 1 : 0), adam.writes.end() - 1);
    for (const View& v : states) c_.plan().buffers[v.buffer.value].arena = c_.host;
    if (casts) c_.plan().buffers[weight.buffer.value].arena = c_.host;
    std::vector<Instruction>& here = at_once                  ? stepped_
                                     : c_.spec.delayed_update ? late_
                                                              : insert_[at];
    const std::vector<View> used = from_nvme(states, k, here);
    call.writes = used;
    call.writes.push_back(weight);
    here.push_back({.kind = Kind::HostTask,
                    .stream = c_.streams.cpu,
                    .call = c_.builder.call(std::move(call)).value,
                    .name = c_.builder
                                .name({.phase = Phase::Optimizer,
                                       .layer = c_.plan().names[(*body_)[s.adam].name].layer,
                                       .op = "cpu_adam",
                                       .occurrence = k})
                                .value});
    to_nvme(states, used, k, here);
    // Casts wait for the step: between kernels of the backward pass they would hold these up.
    if (casts) return cast_up(s, weight, k, insert_[s.adam]);
    if (leaving_.holds(up_to.buffer)) return;
    bring_up(s, weight, up_to, k, at, at_once);
    if (keeps_master && !copies_master(s)) {
      (c_.spec.delayed_update ? insert_[s.adam] : insert_[at]).push_back(master_copy(s, up_to));
    }
  }

  void take_down(const View& down, const View& gradient, std::int32_t k,
                 std::vector<Instruction>& into, bool in_front) {
    const Instruction copy =
        c_.copy(CopyKind::DeviceToHost, c_.streams.out, down, gradient, "gradient_out", k);
    into.insert(in_front ? into.begin() : into.end(), copy);
  }

  void bring_up(const Step& s, const View& weight, const View& up_to, std::int32_t k,
                std::size_t at, bool at_once) {
    const Instruction copy =
        c_.copy(CopyKind::HostToDevice, c_.streams.in, weight, up_to, "weight_in", k);
    if (at_once) {
      copied_up_.insert(copied_up_.begin(), copy);
    } else {
      insert_[c_.spec.delayed_update ? s.adam : at].push_back(copy);
    }
  }

  // Weights that leave come back in 16 bits for every use, and a delayed update does not wait.
  bool casts_on_gpu(const Step& s, const Call& adam) const {
    const bool can = has_master(adam) && bits(s.gradient.dtype) == 16 && !c_.spec.delayed_update &&
                     c_.spec.optimizer == OffloadPlace::Cpu && !leaving_.holds(s.weight.buffer);
    if (!can || c_.spec.cast == OffloadCast::Host) return false;
    if (c_.spec.cast == OffloadCast::Gpu || c_.costs == nullptr) return true;
    const GpuId gpu = c_.plan().ranks[c_.rank.value].gpu;
    const auto copied = [&](std::int64_t bytes) {
      return c_.costs->copy(CopyKind::DeviceToHost, Bytes(bytes), c_.spec.pinned, gpu).time.value;
    };
    const double dram = c_.topology->node_type(gpu).host.dram.value /
                        static_cast<double>(std::max<std::int64_t>(c_.ranks_on_node(), 1));
    const double pass = dram > 0 ? static_cast<double>(6 * s.elements) / dram : 0.0;
    return copied(4 * s.elements) - copied(2 * s.elements) < pass;
  }

  View wide_on_host(const Step& s) {
    Buffer b = c_.plan().buffers[s.gradient.buffer.value];
    b.name = c_.target().name + ".wide_gradient" + std::to_string(number_);
    b.bytes = Bytes(stored_bytes(DType::F32, s.elements));
    b.dtype = DType::F32;
    b.arena = c_.host;
    b.framed = b.in_place = false;
    b.persistent = true;
    return flat_view(c_.builder.buffer(std::move(b)), s.elements, DType::F32);
  }

  // Two buffers of GPU memory each way, in turn.
  View wide_on_gpu(const Step& s, const View& like, std::size_t way, std::int32_t k) {
    const auto [found, added] = wide_.try_emplace({way, k % 2}, BufferId());
    if (added) {
      Buffer b = c_.plan().buffers[like.buffer.value];
      b.name = c_.target().name + (way == 0 ? ".wide_out" : ".wide_in") + std::to_string(k % 2);
      b.dtype = DType::F32;
      b.memory = MemoryClass::Temporary;
      b.arena = ArenaId(0);
      b.framed = b.in_place = false;
      b.persistent = true;
      b.bytes = Bytes();
      for (const Step& one : steps_) {
        b.bytes = std::max(b.bytes, Bytes(stored_bytes(DType::F32, one.elements)));
      }
      found->second = c_.builder.buffer(std::move(b));
    }
    return flat_view(found->second, s.elements, DType::F32);
  }

  void cast_down(const Step& s, const View& host, std::int32_t k, std::vector<Instruction>& to) {
    const View wide = wide_on_gpu(s, s.gradient, 0, k);
    to.push_back(cast(s, s.gradient, wide, kCastGradient));
    to.push_back(c_.copy(CopyKind::DeviceToHost, c_.streams.out, wide, host, "gradient_out", k));
  }
  void cast_up(const Step& s, const View& master, std::int32_t k, std::vector<Instruction>& to) {
    const View wide = wide_on_gpu(s, s.weight, 1, k);
    to.push_back(c_.copy(CopyKind::HostToDevice, c_.streams.in, master, wide, "weight_in", k));
    to.push_back(cast(s, wide, s.weight, "copy_master"));
  }

  // All gradients are clipped before the first of them goes down, so that no clip waits for the
  // weights of the bucket before. False: clipping is no pass of its own.
  bool clip_first(const Step& s) {
    bool found = false;
    for (const std::size_t i : s.passes) {
      if (c_.plan().names[(*body_)[i].name].op != "clip") continue;
      drop_[i] = 1;
      clipped_.push_back((*body_)[i]);
      found = true;
    }
    return found;
  }

  // The step wrote the weight itself; from a master that came up it is copied.
  bool copies_master(const Step& s) const {
    return std::any_of(s.passes.begin(), s.passes.end(), [&](std::size_t i) {
      return c_.plan().names[(*body_)[i].name].op == "copy_master";
    });
  }
  Instruction master_copy(const Step& s, const View& master) const {
    return cast(s, master, s.weight, "copy_master");
  }
  Instruction cast(const Step& s, const View& from, const View& to, const char* op_name) const {
    Instruction i = (*body_)[s.adam];
    const Op op{
        .kind = OpKind::CastCopy, .dtype = from.dtype, .out = to.dtype, .dims = {s.elements}};
    Name name = c_.plan().names[i.name];
    name.op = op_name;
    i.call = c_.builder.call({.op = op, .reads = {from}, .writes = {to}}).value;
    i.name = c_.builder.name(std::move(name)).value;
    return i;
  }

  // The sum of squares of all gradients, which the host needs before its first step.
  View norm(const Step& s, std::vector<Instruction>& before) {
    const View host = on_host(s.sum);
    if (!std::exchange(norm_copied_, true)) {
      before.push_back(
          c_.copy(CopyKind::DeviceToHost, c_.streams.out, s.sum, host, "grad_norm_out", 0));
    }
    return host;
  }

  // With states on NVMe buckets take turns in two sets of buffers of host memory.
  std::vector<View> from_nvme(const std::vector<View>& states, std::int32_t k,
                              std::vector<Instruction>& to) {
    if (c_.spec.optimizer != OffloadPlace::Nvme) return states;
    std::vector<View> staged;
    for (std::size_t i = 0; i < states.size(); ++i) {
      const View& v = states[i];
      Buffer& home = c_.plan().buffers[v.buffer.value];
      home.arena = c_.nvme;
      const BufferId stage = staging(i, k % 2, home);
      staged.push_back(flat_view(stage, v.elements(), v.dtype));
      to.push_back(c_.copy(CopyKind::NvmeToHost, c_.streams.nvme_in, v, staged.back(), "state_in",
                           k * 4 + static_cast<std::int32_t>(i)));
    }
    return staged;
  }
  void to_nvme(const std::vector<View>& states, const std::vector<View>& used, std::int32_t k,
               std::vector<Instruction>& to) {
    if (c_.spec.optimizer != OffloadPlace::Nvme) return;
    for (std::size_t i = 0; i < states.size(); ++i) {
      to.push_back(c_.copy(CopyKind::HostToNvme, c_.streams.nvme_out, used[i], states[i],
                           "state_out", k * 4 + static_cast<std::int32_t>(i)));
    }
  }
  BufferId staging(std::size_t state, std::int32_t turn, const Buffer& like) {
    const auto [found, added] = staging_.try_emplace({state, turn}, BufferId());
    if (added) {
      Buffer b = like;
      b.name = c_.target().name + ".staged" + std::to_string(state) + "." + std::to_string(turn);
      b.arena = c_.host;
      for (const Step& s : steps_) {
        b.bytes = std::max(b.bytes, Bytes(stored_bytes(like.dtype, s.elements)));
      }
      found->second = c_.builder.buffer(std::move(b));
    }
    return found->second;
  }

  const Context& c_;
  const Leaving& leaving_;
  const std::vector<Instruction>* body_ = nullptr;
  std::vector<Step> steps_;
  std::vector<std::vector<Instruction>> insert_;  // before the instruction of that index
  std::vector<Instruction> clipped_;              // before the first step: clips and their copies
  // Then, where all are stepped at once:
  std::vector<Instruction> copied_down_, stepped_, copied_up_;
  std::vector<Instruction> late_;  // at the start of the body: delayed updates
  std::vector<char> drop_;
  std::unordered_map<std::uint32_t, std::vector<std::size_t>> uses_;  // of `body_`, by buffer
  std::map<std::uint32_t, BufferId> twins_;
  std::map<std::pair<std::size_t, std::int32_t>, BufferId> staging_, wide_;
  std::int32_t number_ = 0;
  bool norm_copied_ = false;
};

}  // namespace

namespace {

bool of_a_layer(const Context& c, const View& weight) {
  const std::vector<Parameter>& all = c.target().parameters;
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const Parameter& p) { return p.weight.buffer == weight.buffer; });
  return found == all.end() || found->name.starts_with("layer");
}

}  // namespace

std::size_t steps_that_leave(const Context& c, const std::vector<CallId>& steps) {
  const auto adam = [&](std::size_t i) -> const Call& { return c.plan().calls[steps[i].value]; };
  std::size_t leave = steps.size();
  for (std::int64_t window = c.spec.window; window > 0 && leave > 0; --leave) {
    if (of_a_layer(c, adam(leave - 1).writes.back())) --window;
  }
  double kept = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    kept += static_cast<double>(adam(i).reads[0].elements()) * (1.0 - c.spec.optimizer_share);
  }
  for (; leave > 0; --leave) {
    kept -= static_cast<double>(adam(leave - 1).reads[0].elements());
    if (kept < -0.5) break;
  }
  return leave;
}

void gather_uses(const Context& c, const std::vector<BufferId>& gradients) {
  if (gradients.empty()) return;
  std::set<std::uint32_t> leave;
  for (const BufferId b : gradients) leave.insert(b.value);
  std::vector<Instruction> body, first;
  std::map<std::uint32_t, Instruction> zeroing;     // not placed yet, by buffer
  std::map<std::uint32_t, std::size_t> last_use;    // in `body`, by buffer
  std::multimap<std::size_t, Instruction> squares;  // to be placed behind that index of `body`
  std::set<std::uint32_t> sums;
  for (const Instruction& i : c.target().body) {
    if (!is_task(i.kind)) {
      body.push_back(i);
      continue;
    }
    const Call& call = c.call(i);
    if (call.op.kind == OpKind::Zero && leave.contains(call.writes[0].buffer.value)) {
      zeroing[call.writes[0].buffer.value] = i;
      continue;
    }
    if (call.op.kind == OpKind::SumOfSquares && leave.contains(call.reads[0].buffer.value) &&
        last_use.contains(call.reads[0].buffer.value)) {
      const std::size_t behind = last_use[call.reads[0].buffer.value];
      Instruction moved = i;
      moved.stream = body[behind].stream;
      squares.emplace(behind, moved);
      sums.insert(call.writes[0].buffer.value);
      continue;
    }
    for (const auto* views : {&call.reads, &call.writes}) {
      for (const View& v : *views) {
        if (!leave.contains(v.buffer.value)) continue;
        if (const auto z = zeroing.find(v.buffer.value); z != zeroing.end()) {
          body.push_back(z->second);
          zeroing.erase(z);
        }
      }
    }
    for (const auto* views : {&call.reads, &call.writes}) {
      for (const View& v : *views) {
        if (leave.contains(v.buffer.value)) last_use[v.buffer.value] = body.size();
      }
    }
    body.push_back(i);
  }
  std::vector<Instruction> out;
  for (const Instruction& i : body) {  // the sum is zeroed before its first part
    const bool zero = i.kind == Kind::Kernel && c.call(i).op.kind == OpKind::Zero;
    if (zero && sums.contains(c.call(i).writes[0].buffer.value)) out.push_back(i);
  }
  for (std::size_t i = 0; i < body.size(); ++i) {
    const bool zero = body[i].kind == Kind::Kernel && c.call(body[i]).op.kind == OpKind::Zero;
    if (!zero || !sums.contains(c.call(body[i]).writes[0].buffer.value)) out.push_back(body[i]);
    const auto [from, to] = squares.equal_range(i);
    for (auto s = from; s != to; ++s) out.push_back(s->second);
  }
  c.target().body = std::move(out);
}

void fuse_steps(const Context& c) {
  std::map<std::uint32_t, View> unscaled;
  std::vector<Instruction> out;
  for (Instruction i : c.target().body) {
    const std::string name = is_task(i.kind) ? c.plan().names[i.name].op : "";
    if (name == "unscale" || name == "clip") {
      const Call& call = c.call(i);
      if (call.reads[0].buffer != call.writes[0].buffer) {
        unscaled[call.writes[0].buffer.value] = call.reads[0];
      }
      continue;
    }
    if (i.kind == Kind::Kernel && c.call(i).op.kind == OpKind::AdamStep) {
      Call step = c.call(i);
      const auto source = unscaled.find(step.reads[0].buffer.value);
      if (source != unscaled.end()) {
        step.reads[0] = source->second;
        step.op.dtype = source->second.dtype;
      }
      i.call = c.builder.call(std::move(step)).value;
    }
    out.push_back(i);
  }
  c.target().body = std::move(out);
}

bool move_optimizer(const Context& c, const Leaving& leaving) {
  return OptimizerMove(c, leaving).run();
}

}  // namespace gputwin::offloading
