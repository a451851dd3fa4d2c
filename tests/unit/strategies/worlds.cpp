#include "tests/unit/strategies/worlds.h"

#include <stdexcept>

#include "strategies/strategy.h"

namespace gputwin {

Transformer tiny_gpt() {
  Transformer m;
  m.name = "tiny_gpt";
  m.layers = 4;
  m.hidden = 8;
  m.heads = m.kv_heads = 4;
  m.head_dim = 2;
  m.ffn = 32;
  m.vocab = 16;
  m.max_positions = 4;
  return m;
}

Transformer tiny_llama() {
  Transformer m = tiny_gpt();
  m.name = "tiny_llama";
  m.kv_heads = 2;
  m.ffn = 12;
  m.max_positions = 0;
  m.activation = Activation::Swiglu;
  m.positions = Positions::Rope;
  m.norm = Norm::RmsNorm;
  m.bias = false;
  m.tied_embeddings = false;
  return m;
}

Cluster one_node(std::int32_t gpus) {
  Cluster c;
  c.name = "one_node";
  NodeGroup group;
  group.type.device = "a100_80gb";
  group.type.gpus = gpus;
  group.count = 1;
  c.groups.push_back(group);
  return c;
}

Job tiny_job(std::int64_t global_batch) {
  Job job;
  job.sequence = 4;
  job.global_batch = global_batch;
  job.attention = AttentionKernel::Unfused;
  return job;
}

Plan plan_of(const Transformer& model, const Layout& layout, const Job& job) {
  auto outcome = make_plan(model, one_node(layout.ranks()), layout, job);
  if (const auto* infeasible = std::get_if<Infeasible>(&outcome)) {
    throw std::runtime_error("infeasible: " + infeasible->reason);
  }
  return std::move(std::get<Plan>(outcome));
}

std::int64_t count(const Plan& plan, std::uint32_t program,
                   const std::function<bool(const Instruction&)>& match) {
  std::int64_t n = 0;
  for (const Instruction& i : plan.programs[program].body) n += match(i) ? 1 : 0;
  return n;
}

std::int64_t count_ops(const Plan& plan, Phase phase, std::int32_t layer, OpKind kind) {
  std::int64_t n = 0;
  for (std::uint32_t p = 0; p < plan.programs.size(); ++p) {
    n += count(plan, p, [&](const Instruction& i) {
      if (!is_task(i.kind) || i.frame() != 0) return false;
      const Name& name = plan.names[i.name];
      return name.phase == phase && name.layer == layer && plan.calls[i.call].op.kind == kind;
    });
  }
  return n;
}

}  // namespace gputwin
