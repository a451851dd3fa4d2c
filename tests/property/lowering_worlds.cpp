#include "tests/property/lowering_worlds.h"

#include <algorithm>
#include <utility>

namespace gputwin {
namespace {

struct Grid {
  std::int32_t pp, vpp;
  Schedule schedule;
};

}  // namespace

Transformer drawn_model(Draw& draw, std::int64_t sequence) {
  Transformer m;
  m.name = "tiny";
  m.layers = draw.of({2, 3, 4});
  m.hidden = draw.of({8, 16});
  m.heads = draw.of({2, 4});
  m.kv_heads = m.heads / draw.of({1, 2});
  m.head_dim = m.hidden / m.heads;
  m.ffn = draw.of({8, 12, 24});
  m.vocab = draw.of({16, 32});
  m.activation =
      draw.of({Activation::Gelu, Activation::Swiglu, Activation::Gelu, Activation::Swiglu,
               Activation::Relu, Activation::SqRelu, Activation::Geglu});
  m.norm = draw.of({Norm::LayerNorm, Norm::RmsNorm});
  m.positions = draw.of({Positions::Learned, Positions::Rope, Positions::Alibi});
  m.max_positions = m.positions == Positions::Learned ? sequence + draw.of({0, 2}) : 0;
  m.bias = draw.of({true, false});
  m.tied_embeddings = draw.of({true, false});
  return m;
}

std::string label(const World& w) {
  const Layout& l = w.layout;
  const Transformer& m = w.model;
  const auto n = [](const char* key, std::int64_t value) {
    return std::string(" ") + key + std::to_string(value);
  };
  return n("tp", l.tp) + (l.sp ? " sp" : "") + n("cp", l.cp) +
         n("cp_comm", static_cast<int>(l.cp_comm)) + n("pp", l.pp) + n("vpp", l.vpp) +
         n("dp", l.dp) + n("zero", l.zero) + n("group", l.hsdp_group) +
         n("schedule", static_cast<int>(l.schedule)) +
         n("recompute", static_cast<int>(l.recompute)) +
         n("recompute_layers", l.recompute_layers.empty() ? 0 : l.recompute_layers.back()) +
         n("micro_batch", l.micro_batch) + n("bucket", l.bucket_elements) +
         n("overlap_reduce", l.overlap_grad_reduce) + n("overlap_gather", l.overlap_param_gather) +
         n("layers", m.layers) + n("hidden", m.hidden) + n("heads", m.heads) + n("kv", m.kv_heads) +
         n("ffn", m.ffn) + n("vocab", m.vocab) + n("activation", static_cast<int>(m.activation)) +
         n("norm", static_cast<int>(m.norm)) + n("positions", static_cast<int>(m.positions)) +
         n("table", m.max_positions) + n("bias", m.bias) + n("tied", m.tied_embeddings) +
         n("batch", w.job.global_batch) + n("sequence", w.job.sequence) +
         n("attention", static_cast<int>(w.job.attention)) +
         n("params", static_cast<int>(w.job.precision.params)) +
         n("grads", static_cast<int>(w.job.precision.grads)) + n("master", w.job.precision.master) +
         n("optimizer", static_cast<int>(w.job.optimizer)) +
         n("fused_loss", w.job.fused_cross_entropy) +
         n("compute", static_cast<int>(w.job.precision.compute)) + n("lora", w.job.lora_rank) +
         n("tp_overlap", static_cast<int>(l.tp_overlap)) + " " + w.job.stack;
}

std::vector<World> worlds(Recompute recompute, bool flash) {
  std::vector<World> list;
  const std::vector<Grid> grids{{1, 1, Schedule::None},        {1, 1, Schedule::OneFOneB},
                                {2, 1, Schedule::Gpipe},       {2, 1, Schedule::OneFOneB},
                                {2, 2, Schedule::Interleaved}, {4, 1, Schedule::Gpipe},
                                {4, 1, Schedule::OneFOneB}};
  for (const Grid& grid : grids) {
    for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      for (const auto& [dp, zero] :
           {std::pair{1, 0}, std::pair{1, 1}, std::pair{2, 0}, std::pair{2, 1}}) {
        Draw draw(1000 * static_cast<std::uint64_t>(recompute) + 500 * flash + list.size());
        World w;
        w.job.sequence = draw.of({4, 8});
        w.model = drawn_model(draw, w.job.sequence);
        w.layout.tp = tp;
        w.layout.sp = sp;
        w.layout.pp = grid.pp;
        w.layout.vpp = grid.vpp;
        w.layout.schedule = grid.schedule;
        w.layout.dp = dp;
        w.layout.zero = zero;
        w.layout.recompute = recompute;
        // The last stage has its own count.
        if (recompute == Recompute::Block) {
          w.layout.recompute_layers.assign(static_cast<std::size_t>(grid.pp), draw.of({1, 2}));
          if (grid.pp > 1) w.layout.recompute_layers.back() = 1;
        }
        w.layout.micro_batch = draw.of({1, 2});
        w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
        w.layout.overlap_grad_reduce = draw.of({true, false});
        w.layout.overlap_param_gather = draw.of({true, false});
        if (grid.pp * grid.vpp == 4) w.model.layers = std::max<std::int64_t>(w.model.layers, 4);
        w.job.global_batch = dp * w.layout.micro_batch * draw.of({2, 4});
        w.job.attention = flash ? AttentionKernel::Flash2 : AttentionKernel::Unfused;
        w.job.precision.params = draw.of({DType::Bf16, DType::F32});
        w.job.stack = draw.of<const char*>({"megatron-core", "megatron-lm-2019", "megatron-lm-2021",
                                            "megatron-lm-2022", "torch", "generic"});
        w.job.precision.grads = draw.of({DType::F32, DType::Bf16});
        w.job.precision.master = draw.of({true, true, false});
        w.job.optimizer = draw.of({Optimizer::AdamW, Optimizer::Sgd, Optimizer::Lamb});
        w.job.fused_cross_entropy = draw.of({true, false});
        list.push_back(std::move(w));
      }
    }
  }
  return list;
}

std::vector<World> context_worlds(ContextComm comm, bool flash) {
  std::vector<World> list;
  const std::vector<Grid> grids{
      {1, 1, Schedule::None}, {2, 1, Schedule::OneFOneB}, {2, 2, Schedule::Interleaved}};
  for (const std::int32_t cp : {2, 4}) {
    for (const Grid& grid : grids) {
      for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        for (const auto& [dp, zero] :
             {std::pair{1, 0}, std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 3}}) {
          Draw draw(10'000 * (1 + static_cast<std::uint64_t>(comm)) + 5000 * flash + list.size());
          World w;
          w.job.sequence = 2 * cp * draw.of({1, 2});
          w.model = drawn_model(draw, w.job.sequence);
          if (w.model.positions == Positions::Alibi) w.model.positions = Positions::Rope;
          w.model.layers = grid.pp * grid.vpp == 4 ? 4 : 2;
          if (comm == ContextComm::AllToAll) {
            w.model.kv_heads = tp * cp;
            w.model.heads = w.model.kv_heads * draw.of({1, 2});
            w.model.head_dim = draw.of({2, 4});
          }
          w.layout.tp = tp;
          w.layout.sp = sp;
          w.layout.cp = cp;
          w.layout.cp_comm = comm;
          w.layout.pp = grid.pp;
          w.layout.vpp = grid.vpp;
          w.layout.schedule = grid.schedule;
          w.layout.dp = dp;
          w.layout.zero = zero;
          w.layout.hsdp_group = zero >= 2 ? draw.of({0, cp}) : 0;
          w.layout.recompute =
              draw.of({Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block});
          if (w.layout.recompute == Recompute::Block) w.layout.recompute_layers = {1};
          w.layout.micro_batch = draw.of({1, 2});
          if (draw.of({true, false})) {
            w.layout.rank_order = {Dim::Tp, Dim::Dp, Dim::Pp, Dim::Cp};
          }
          w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
          w.layout.overlap_grad_reduce = draw.of({true, false});
          w.job.global_batch = dp * w.layout.micro_batch * 2;
          w.job.attention = flash ? AttentionKernel::Flash2 : AttentionKernel::Unfused;
          w.job.stack = draw.of<const char*>(
              {"megatron-core", "megatron-lm-2022", "generic", "torchtitan", "deepspeed"});
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

std::vector<World> sharded_worlds(Recompute recompute, bool flash) {
  std::vector<World> list;
  const std::vector<Grid> grids{{1, 1, Schedule::None},
                                {2, 1, Schedule::Gpipe},
                                {2, 1, Schedule::OneFOneB},
                                {2, 2, Schedule::Interleaved}};
  for (const Grid& grid : grids) {
    for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      for (const auto& [dp, group] : {std::pair{2, 0}, std::pair{4, 0}, std::pair{4, 2}}) {
        for (const std::int32_t zero : {2, 3}) {
          Draw draw(50'000 + 1000 * static_cast<std::uint64_t>(recompute) + 500 * flash +
                    list.size());
          World w;
          w.job.sequence = 4;
          w.model = drawn_model(draw, w.job.sequence);
          if (tp == 2) w.model.kv_heads = w.model.heads;
          if (grid.pp * grid.vpp == 4) w.model.layers = 4;
          w.layout = {.tp = tp, .pp = grid.pp, .vpp = grid.vpp, .dp = dp, .sp = sp};
          w.layout.zero = zero;
          w.layout.hsdp_group = group;
          w.layout.schedule = grid.schedule;
          w.layout.recompute = recompute;
          if (recompute == Recompute::Block) w.layout.recompute_layers = {1};
          w.layout.overlap_grad_reduce = draw.of({true, false});
          w.layout.overlap_param_gather = draw.of({true, false});
          w.job.global_batch = dp * (grid.vpp > 1 ? draw.of({2, 4}) : draw.of({1, 3}));
          w.job.attention = flash ? AttentionKernel::Flash2 : AttentionKernel::Unfused;
          w.job.precision.params = draw.of({DType::Bf16, DType::F32});
          w.job.stack = draw.of<const char*>({"torch-fsdp-2024", "torchtitan", "sagemaker-mics",
                                              "deepspeed", "megatron-core", "megatron-lm-2022"});
          w.job.precision.master = draw.of({true, true, false});
          w.job.optimizer = draw.of({Optimizer::AdamW, Optimizer::Sgd});
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

std::vector<World> linear_worlds(const LinearMode& mode) {
  std::vector<World> list;
  const std::vector<Grid> grids{
      {1, 1, Schedule::None}, {2, 1, Schedule::OneFOneB}, {2, 2, Schedule::Interleaved}};
  for (const Grid& grid : grids) {
    for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
      for (const auto& [dp, zero] :
           {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}, std::pair{2, 3}}) {
        for (const Recompute recompute : {Recompute::None, Recompute::Selective, Recompute::Full}) {
          if (mode.adapters && zero == 3) continue;
          const auto recipe = static_cast<std::uint64_t>(mode.precision.recipe);
          Draw draw(70'000 + 1000 * recipe + 500 * mode.adapters + list.size());
          World w;
          w.job.sequence = draw.of({4, 8});
          w.model = drawn_model(draw, w.job.sequence);
          w.model.layers = grid.pp * grid.vpp == 4 ? 4 : 2;
          w.layout.tp = tp;
          w.layout.sp = sp;
          w.layout.tp_overlap = sp ? draw.of({TpOverlap::None, TpOverlap::Userbuffers,
                                              TpOverlap::Ring, TpOverlap::RingBothWays})
                                   : TpOverlap::None;
          w.layout.pp = grid.pp;
          w.layout.vpp = grid.vpp;
          w.layout.schedule = grid.schedule;
          w.layout.dp = dp;
          w.layout.zero = zero;
          w.layout.recompute = recompute;
          w.layout.micro_batch = draw.of({1, 2});
          w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
          w.job.global_batch = dp * w.layout.micro_batch * 2;
          w.job.attention = draw.of({AttentionKernel::Unfused, AttentionKernel::Flash2});
          w.job.precision = mode.precision;
          if (mode.precision.compute == DType::F8 && zero < 2) {
            w.job.precision.params = draw.of({DType::Bf16, DType::F8});
          }
          w.job.lora_rank = mode.adapters ? draw.of({1, 3}) : 0;
          w.job.lora_qkv_only = draw.of({true, false});
          w.job.stack =
              draw.of<const char*>({"megatron-core", "megatron-lm-2021", "torch", "generic"});
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

std::vector<World> schedule_worlds(Schedule schedule, std::int32_t vpp) {
  std::vector<World> list;
  const std::int32_t ways = placement(schedule) == Placement::TwoWay ? 2 : 1;
  for (const std::int32_t pp : {2, 3, 4}) {
    if (ways == 2 && pp % 2 != 0) continue;
    for (std::int32_t m : {1, 2, 5}) {
      if (schedule == Schedule::DualPipe || schedule == Schedule::PipedreamAsync) m += pp - 1;
      for (const auto& [tp, sp] : {std::pair{1, false}, std::pair{2, false}, std::pair{2, true}}) {
        for (const auto& [dp, zero] : {std::pair{1, 0}, std::pair{2, 0}, std::pair{2, 1}}) {
          if (ways == 2 && zero > 0) continue;
          Draw draw(200'000 + 1000 * static_cast<std::uint64_t>(schedule) + list.size());
          World w;
          w.job.sequence = draw.of({4, 8});
          w.model = drawn_model(draw, w.job.sequence);
          if (tp == 2) w.model.kv_heads = w.model.heads;
          w.model.layers = pp * vpp + draw.of({0, 1});
          w.layout = {.tp = tp, .pp = pp, .vpp = vpp, .dp = dp, .sp = sp};
          w.layout.zero = zero;
          w.layout.schedule = schedule;
          w.layout.recompute =
              draw.of({Recompute::None, Recompute::Selective, Recompute::Full, Recompute::Block});
          if (w.layout.recompute == Recompute::Block) w.layout.recompute_layers = {1};
          w.layout.micro_batch = draw.of({1, 2});
          w.layout.bucket_elements = draw.of<std::int64_t>({300, 2000, 40'000'000});
          w.layout.overlap_grad_reduce = draw.of({true, false});
          w.job.global_batch = dp * w.layout.micro_batch * m * ways;
          w.job.attention = draw.of({AttentionKernel::Unfused, AttentionKernel::Flash2});
          w.job.stack =
              draw.of<const char*>({"megatron-core", "megatron-lm-2019", "megatron-lm-2021",
                                    "megatron-deepspeed", "torch", "generic"});
          w.job.precision.grads = draw.of({DType::F32, DType::Bf16});
          w.job.optimizer = draw.of({Optimizer::AdamW, Optimizer::Sgd});
          // Codes that keep every value, of gradients and messages.
          const Codec every{.kind = CodecKind::Block, .bits = 8};
          if (dp > 1 && ways == 1 && draw.of({true, false})) {
            w.layout.compression.reduced = every;
            w.layout.compression.feedback = draw.of({true, false});
            w.layout.compression.sum = draw.of({CompressedSum::Gather, CompressedSum::TwoStep});
          }
          if (draw.of({true, false})) w.layout.compression.sent = every;
          if (draw.of({true, false})) w.layout.compression.sent_back = every;
          list.push_back(std::move(w));
        }
      }
    }
  }
  return list;
}

}  // namespace gputwin
