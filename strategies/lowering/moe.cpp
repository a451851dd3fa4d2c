// A mixture of experts: router, dispatch to the ranks that hold the chosen experts, their
// perceptrons as grouped products, combination; shared experts beside them.
//
//   x [t, h] -> logits [t, E] -> weights of the k chosen
//   rows by expert [E c, h] -(all-to-all)-> [ranks, experts, c, h] -> [experts, ranks, c, h]
//   fc1, weighted activation, fc2 of each expert, and the same way back; the rows of a token are
//   summed.
//
// The router's weights travel with the rows and multiply the activation, so that fc2's output need
// not be kept. Where experts have biases, that of fc1 is added by the product, that of fc2 after it
// and weighed like the rows, as TEGroupedMLP does (experts.py, _apply_bias). Source  Megatron Core,
// core/transformer/moe/{router,token_dispatcher,experts}.py. Which rows go where is a table (op.h,
// note 12); `Job::expert_load` makes it uneven in time.
#include "strategies/lowering/linear.h"
#include "strategies/lowering/quantize.h"

namespace gputwin {
namespace {

std::int64_t expert_gates(const StageBuilder& b) { return is_gated(b.model.activation) ? 2 : 1; }

Op routed(const StageBuilder& b, OpKind kind, std::int64_t rows, std::int64_t width,
          std::int64_t choices) {
  return {.kind = kind, .dims = {rows, width, choices, b.sizes.experts, b.sizes.expert_capacity}};
}

// Rows [ranks, experts, c] and [experts, ranks, c] in turn: blocks of c rows are transposed.
Op reordered(const StageBuilder& b, OpKind kind, std::int64_t width) {
  const Sizes& s = b.sizes;
  const std::int64_t ep = b.layout.ep;
  return {.kind = kind,
          .slot = b.expert_load > 0 ? b.wiring.ep : SlotId{},
          .load = b.expert_load,
          .dims = {ep * s.local_experts, s.expert_capacity * width, 1, s.local_experts, ep}};
}

bool sorts(const StageBuilder& b) { return b.layout.ep > 1 && b.sizes.local_experts > 1; }

// Blocks for the ranks of each group of `inner` in turn become blocks by the place in a group:
// [groups, inner] to [inner, groups]. With the counts changed over, the way back.
View aligned(StageBuilder& b, const std::string& name, const View& rows, std::int64_t inner) {
  const View out = b.temporary(name, rows.rows, rows.cols, rows.dtype);
  const std::int64_t ranks = b.layout.ep;
  b.kernel(
      name,
      {.kind = OpKind::Permute, .dims = {ranks, rows.elements() / ranks, 1, inner, ranks / inner}},
      {flat(rows)}, {flat(out)});
  return out;
}

// Block r of `rows` goes to rank r of the experts' group, into the block of the rank it comes from.
// Hierarchical: within a node each rank gets what all of them have for its place in every node,
// then those of a place exchange between the nodes, `inner` blocks at once.
void all_to_all(StageBuilder& b, const std::string& name, const View& rows, const View& there) {
  const StageWiring& w = b.wiring;
  const std::int64_t inner = b.layout.ep_inner;
  if (inner == 0) {
    b.collective(w.ep_stream, w.ep, OpKind::AllToAll, name + "_all_to_all", rows, there);
    return;
  }
  const View by_place = aligned(b, name + "_by_place", rows, inner);
  const View inside = b.temporary(name + "_in_node", rows.rows, rows.cols, rows.dtype);
  b.collective(w.ep_stream, w.ep_inner, OpKind::AllToAll, name + "_in_node_all_to_all", by_place,
               inside);
  const View by_node = aligned(b, name + "_by_node", inside, b.layout.ep / inner);
  b.collective(w.ep_stream, w.ep_outer, OpKind::AllToAll, name + "_all_to_all", by_node, there);
}

View exchange(StageBuilder& b, const std::string& name, const View& rows) {
  const View there = b.temporary(name, rows.rows, rows.cols, rows.dtype);
  all_to_all(b, name, rows, there);
  return there;
}

// From rows by expert of this rank to rows of this rank's experts. `keep`: for the backward pass.
View to_experts(StageBuilder& b, const std::string& name, const View& rows, bool keep) {
  if (b.layout.ep == 1) return rows;
  if (!sorts(b)) {
    const View there = keep ? b.activation(name + "_received", rows.rows, rows.cols, rows.dtype)
                            : b.temporary(name + "_received", rows.rows, rows.cols, rows.dtype);
    all_to_all(b, name + "_dispatch", rows, there);
    return there;
  }
  const View there = exchange(b, name + "_dispatch", rows);
  const View sorted = keep ? b.activation(name + "_sorted", rows.rows, rows.cols, rows.dtype)
                           : b.temporary(name + "_sorted", rows.rows, rows.cols, rows.dtype);
  b.kernel(name + "_sort", reordered(b, OpKind::Permute, rows.cols), {flat(there)}, {flat(sorted)});
  return sorted;
}

View from_experts(StageBuilder& b, const std::string& name, const View& rows) {
  if (b.layout.ep == 1) return rows;
  View back = rows;
  if (sorts(b)) {
    back = b.temporary(name + "_unsorted", rows.rows, rows.cols, rows.dtype);
    b.kernel(name + "_unsort", reordered(b, OpKind::Unpermute, rows.cols), {flat(rows)},
             {flat(back)});
  }
  return exchange(b, name + "_combine", back);
}

struct Operands {
  View rows, cols, weight;
};

// What a product reads: copies where the job multiplies in 8 or 4 bits.
Operands operands(StageBuilder& b, const std::string& name, const View& x, Role role,
                  bool forward) {
  if (!is_narrow(b)) return {x, x, b.weight(role).value};
  const bool train = b.trains(role);
  const NarrowCopies copies =
      quantize(b, name, x, {.cols = train, .keep = forward && train, .blocks = true});
  return {copies.rows, copies.cols, forward ? forward_weight(b, role) : backward_weight(b, role)};
}

Op activation_op(const StageBuilder& b, OpKind kind) {
  return {.kind = kind,
          .weighted = true,
          .activation = b.model.activation,
          .slot = b.expert_load > 0 ? b.wiring.ep : SlotId{},
          .load = b.expert_load,
          .dims = {b.sizes.expert_rows, b.model.moe.ffn}};
}

Op bias_op(const StageBuilder& b, std::int64_t width, std::int64_t launches) {
  return {.kind = OpKind::ExpertBias,
          .launches = static_cast<std::uint16_t>(std::min<std::int64_t>(launches, 0xffff)),
          .slot = b.expert_load > 0 ? b.wiring.ep : SlotId{},
          .load = b.expert_load,
          .dims = {b.sizes.expert_rows, width, b.sizes.local_experts}};
}

// fc2's output with its bias: `cat(t + b * p for each expert)` in F32 and back to 16 bits. Torch
// launches a product and a sum for each expert, a copy and a cast of all.
View with_bias(StageBuilder& b, const View& out, const MoeState& state) {
  if (!b.has(Role::ExpertFc2Bias)) return out;
  // The experts' sums and their concatenation are alive together.
  const View wide = b.temporary("experts_fc2_wide", 2 * out.rows, out.cols, DType::F32);
  const View biased = b.temporary("experts_fc2_biased", out.rows, out.cols);
  b.kernel("experts_fc2_bias", bias_op(b, out.cols, 2 * b.sizes.local_experts + 2),
           {out, b.weight(Role::ExpertFc2Bias).value, state.weights}, {biased, wide});
  return biased;
}

// The gradient of fc2's bias, and the part of the routing weights' gradient that comes through it.
// Of each expert: the cast of its rows, three kernels for the bias, two for the weights, and the
// sum into the gradient; of all: two casts and a copy.
View bias_gradient(StageBuilder& b, const View& dout, const MoeState& state) {
  Op op = bias_op(b, dout.cols, 7 * b.sizes.local_experts + 3);
  op.inverse = true;
  op.accumulate = true;
  const View wide = b.temporary("experts_fc2_wide_grad", dout.rows, dout.cols, DType::F32);
  const View dweights = b.temporary("router_weights_bias_grad", dout.rows, 1, DType::F32);
  std::vector<View> writes{dweights};
  if (b.trains(Role::ExpertFc2Bias)) writes.push_back(b.weight(Role::ExpertFc2Bias).gradient);
  writes.push_back(wide);
  b.kernel("experts_fc2_bias", op, {dout, b.weight(Role::ExpertFc2Bias).value, state.weights},
           std::move(writes));
  return dweights;
}

Weight fc1_bias(const StageBuilder& b) {
  return b.has(Role::ExpertFc1Bias) ? b.weight(Role::ExpertFc1Bias) : Weight{};
}

void route(StageBuilder& b, const View& x, MoeState& state, View& weights) {
  const std::int64_t t = x.rows, k = b.model.moe.top_k, e = b.sizes.experts;
  state.logits = b.activation("router_logits", t, e, DType::F32);
  b.linear("router", x, b.weight(Role::Router).value, {}, state.logits);
  const View gates = b.temporary("router_gates", t, k, DType::F32);
  b.kernel("router_top_k", {.kind = OpKind::RouterForward, .dims = {t, e, k}}, {state.logits},
           {gates});
  View by_choice = gates;
  by_choice.rows = t * k;
  by_choice.cols = by_choice.ld = 1;
  weights = b.temporary("router_weights", b.sizes.expert_rows, 1, DType::F32);
  b.kernel("router_weights_permute", routed(b, OpKind::Permute, t * k, 1, 1), {by_choice},
           {weights});
}

}  // namespace

View moe_forward(StageBuilder& b, const View& x, MoeState& state) {
  const Sizes& s = b.sizes;
  const Experts& moe = b.model.moe;
  const bool shared = moe.shared_ffn > 0;
  state.input = x;
  View weights, beside;
  route(b, x, state, weights);
  if (shared && !b.layout.overlap_shared_experts) beside = mlp_forward(b, x, state.shared);
  const View by_expert = b.temporary("expert_rows", s.expert_rows, x.cols);
  b.kernel("expert_permute", routed(b, OpKind::Permute, x.rows, x.cols, moe.top_k), {x},
           {by_expert});
  state.weights = to_experts(b, "router_weights", weights, true);
  const View rows = to_experts(b, "expert_rows", by_expert, !is_narrow(b));
  // Its kernels run under the exchange.
  if (shared && b.layout.overlap_shared_experts) beside = mlp_forward(b, x, state.shared);
  const Operands in = operands(b, "experts_fc1_input", rows, Role::ExpertFc1, true);
  state.rows = in.cols;
  state.fc1 = b.activation("experts_fc1", s.expert_rows, expert_gates(b) * moe.ffn);
  b.grouped_linear("experts_fc1", in.rows, in.weight, fc1_bias(b).value, state.fc1);
  const View activated = is_narrow(b) ? b.temporary("experts_activated", s.expert_rows, moe.ffn)
                                      : b.activation("experts_activated", s.expert_rows, moe.ffn);
  b.kernel("experts_activation", activation_op(b, OpKind::ActivationForward),
           {state.fc1, state.weights}, {activated});
  const Operands inner = operands(b, "experts_fc2_input", activated, Role::ExpertFc2, true);
  state.activated = inner.cols;
  const View out = b.temporary("experts_fc2", s.expert_rows, x.cols);
  b.grouped_linear("experts_fc2", inner.rows, inner.weight, {}, out);
  const View back = from_experts(b, "expert_rows", with_bias(b, out, state));
  const View sum = b.temporary("experts", x.rows, x.cols);
  b.kernel("expert_unpermute", routed(b, OpKind::Unpermute, x.rows, x.cols, moe.top_k), {back},
           {sum});
  if (!shared) return sum;
  const View all = b.temporary("experts_and_shared", x.rows, x.cols);
  b.kernel("shared_experts_add", {.kind = OpKind::Add, .dims = {x.elements()}}, {sum, beside},
           {all});
  return all;
}

View moe_backward(StageBuilder& b, const View& dy, const MoeState& state) {
  const Sizes& s = b.sizes;
  const Experts& moe = b.model.moe;
  const bool shared = moe.shared_ffn > 0;
  const std::int64_t t = dy.rows, h = dy.cols, k = moe.top_k;
  View beside;
  if (shared && !b.layout.overlap_shared_experts) beside = mlp_backward(b, dy, state.shared);
  const View dby_expert = b.temporary("expert_rows_grad", s.expert_rows, h);
  b.kernel("expert_permute", routed(b, OpKind::Permute, t, h, k), {dy}, {dby_expert});
  const View drows_out = to_experts(b, "expert_out_grad", dby_expert, false);
  if (shared && b.layout.overlap_shared_experts) beside = mlp_backward(b, dy, state.shared);
  View through_bias;
  if (b.has(Role::ExpertFc2Bias)) through_bias = bias_gradient(b, drows_out, state);
  const Operands outer = operands(b, "experts_fc2_grad", drows_out, Role::ExpertFc2, false);
  const View dactivated = b.temporary("experts_activated_grad", s.expert_rows, moe.ffn);
  b.grouped_input_grad("experts_fc2", outer.rows, outer.weight, dactivated);
  const View dfc1 = b.temporary("experts_fc1_grad", s.expert_rows, state.fc1.cols);
  const View dweights = b.temporary("router_weights_grad", s.expert_rows, 1, DType::F32);
  b.kernel("experts_activation", activation_op(b, OpKind::ActivationBackward),
           {dactivated, state.fc1, state.weights}, {dfc1, dweights});
  if (present(through_bias)) {
    b.kernel("router_weights_grad_add", {.kind = OpKind::Add, .dims = {dweights.elements()}},
             {dweights, through_bias}, {dweights});
  }
  if (b.trains(Role::ExpertFc2)) {
    b.grouped_weight_grad("experts_fc2", outer.cols, state.activated,
                          b.weight(Role::ExpertFc2).gradient, {});
  }
  const Operands inner = operands(b, "experts_fc1_grad", dfc1, Role::ExpertFc1, false);
  const View drows = b.temporary("experts_input_grad", s.expert_rows, h);
  b.grouped_input_grad("experts_fc1", inner.rows, inner.weight, drows);
  if (b.trains(Role::ExpertFc1)) {
    b.grouped_weight_grad("experts_fc1", inner.cols, state.rows, b.weight(Role::ExpertFc1).gradient,
                          fc1_bias(b).gradient);
  }
  const View back = from_experts(b, "expert_rows_grad", drows);
  const View dx = b.temporary("experts_grad", t, h);
  b.kernel("expert_unpermute", routed(b, OpKind::Unpermute, t, h, k), {back}, {dx});
  const View weights_back = from_experts(b, "router_weights_grad", dweights);
  View dgates = b.temporary("router_gates_grad", t * k, 1, DType::F32);
  b.kernel("router_weights_unpermute", routed(b, OpKind::Unpermute, t * k, 1, 1), {weights_back},
           {dgates});
  dgates.rows = t;
  dgates.cols = dgates.ld = k;
  const View dlogits = b.temporary("router_logits_grad", t, s.experts);
  b.kernel("router_top_k", {.kind = OpKind::RouterBackward, .dims = {t, s.experts, k}},
           {dgates, state.logits}, {dlogits});
  if (b.trains(Role::Router)) {
    b.linear_weight_grad("router", dlogits, state.input, b.weight(Role::Router).gradient);
  }
  b.linear_input_grad("router", dlogits, b.weight(Role::Router).value, dx, false, true);
  if (!shared) return dx;
  const View sum = b.temporary("experts_and_shared_grad", t, h);
  b.kernel("shared_experts_add", {.kind = OpKind::Add, .dims = {dx.elements()}}, {dx, beside},
           {sum});
  return sum;
}

}  // namespace gputwin
