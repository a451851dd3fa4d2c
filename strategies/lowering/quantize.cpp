#include "strategies/lowering/quantize.h"

namespace gputwin {
namespace {

Recipe recipe_of(const StageBuilder& b) {
  const Precision& p = b.job.precision;
  return p.recipe == Recipe::None ? usual_recipe(p.compute) : p.recipe;
}

// The scale comes from the tensor itself, so its largest magnitude is found first.
bool measures_first(Recipe recipe) {
  return recipe == Recipe::Current || recipe == Recipe::Tensorwise || recipe == Recipe::Nvfp4;
}

bool one_kernel_per_copy(Recipe recipe) {
  return recipe == Recipe::Rowwise || recipe == Recipe::Nvfp4;
}

bool sums_bias(const StageBuilder& b) {
  const Recipe recipe = recipe_of(b);
  return b.kernels.fused_bias_quantize && (recipe == Recipe::Delayed || recipe == Recipe::Mx);
}

void measure(StageBuilder& b, const std::string& name, const View& x, const View& amax) {
  b.kernel(name + "_amax", {.kind = OpKind::AbsMax, .dims = {x.elements()}}, {x}, {amax});
}

View largest_magnitude(StageBuilder& b, const std::string& name, const View& x, bool shard) {
  const View amax = b.temporary(name + "_amax", 1, 1, DType::F32);
  measure(b, name, x, amax);
  if (shard) b.all_reduce(name + "_amax_all_reduce", amax, true);
  return amax;
}

// One kernel that writes every copy given.
void copy(StageBuilder& b, const std::string& name, std::vector<View> reads, const NarrowCopies& to,
          const View& bias_grad) {
  const bool transposed = transposes_copies(b) && present(to.cols) && !to.blocks;
  std::vector<View> writes;
  if (present(to.rows)) writes.push_back(to.rows);
  if (present(to.cols)) writes.push_back(to.cols);
  if (present(bias_grad)) writes.push_back(bias_grad);
  const View x = reads[0];
  b.kernel(name,
           {.kind = OpKind::Quantize,
            .trans_a = transposed && !present(to.rows),
            .trans_b = transposed && present(to.rows),
            .accumulate = present(bias_grad),
            .launches = to.blocks ? b.expert_launches() : std::uint16_t{1},
            .dims = {x.rows, x.cols}},
           std::move(reads), std::move(writes));
}

void copies(StageBuilder& b, const std::string& name, const View& x, const View& amax,
            const NarrowCopies& to, bool apart, const View& bias_grad) {
  std::vector<View> reads{x};
  if (present(amax)) reads.push_back(amax);
  if (apart && present(to.rows) && present(to.cols)) {
    copy(b, name + "_quantize", reads, {.rows = to.rows, .cols = {}, .blocks = to.blocks}, {});
    copy(b, name + "_quantize_columns", std::move(reads),
         {.rows = {}, .cols = to.cols, .blocks = to.blocks}, {});
  } else {
    copy(b, name + "_quantize", std::move(reads), to, bias_grad);
  }
}

// The lasting copies of a weight of the current layer.
const NarrowCopies& lasting_copies(StageBuilder& b, Role role) {
  const auto [found, added] = b.narrow_weights.try_emplace({b.layer(), role});
  if (!added) return found->second;
  const View& w = b.weight(role).value;
  const std::string name = "weight" + std::to_string(static_cast<int>(role));
  const bool transposed = transposes_copies(b) && !is_expert(role);
  NarrowCopies& to = found->second;
  to.blocks = is_expert(role);
  to.rows = w.dtype == b.sizes.gemm ? w : b.lasting(name + "_rows", w.rows, w.cols, b.sizes.gemm);
  to.cols = b.lasting(name + "_cols", transposed ? w.cols : w.rows, transposed ? w.rows : w.cols,
                      b.sizes.gemm);
  return to;
}

// One copy of a weight for the pass that has just gathered it.
View quantize_weight(StageBuilder& b, Role role, bool rows) {
  const View& w = b.weight(role).value;
  const std::string name =
      "weight" + std::to_string(static_cast<int>(role)) + (rows ? "" : "_again");
  const bool transposed = !rows && transposes_copies(b);
  const View to = b.temporary(name + "_copy", transposed ? w.cols : w.rows,
                              transposed ? w.rows : w.cols, b.sizes.gemm);
  const View amax = measures_first(recipe_of(b)) ? largest_magnitude(b, name, w, false) : View{};
  copies(b, name, w, amax,
         rows ? NarrowCopies{.rows = to, .cols = {}} : NarrowCopies{.rows = {}, .cols = to}, false,
         {});
  return to;
}

}  // namespace

bool is_narrow(const StageBuilder& b) { return b.layer() >= 0 && bits(b.sizes.gemm) < 16; }

bool gathers_wide(const StageBuilder& b) {
  return is_narrow(b) && b.layout.sp && recipe_of(b) == Recipe::Rowwise;
}

bool transposes_copies(const StageBuilder& b) { return b.sizes.gemm != DType::Mxf8; }

NarrowCopies quantize(StageBuilder& b, const std::string& name, const View& x,
                      const Wanted& wanted) {
  const bool flips = transposes_copies(b) && !wanted.blocks;
  const bool cols = wanted.cols && !(wanted.shard && flips);
  const bool written = x.dtype == b.sizes.gemm;
  const bool fused_bias = present(wanted.bias_grad) && sums_bias(b);
  if (present(wanted.bias_grad) && !fused_bias) {
    b.kernel_in(Phase::WeightGrad, name + "_bias",
                {.kind = OpKind::BiasGrad, .accumulate = true, .dims = {x.rows, x.cols}}, {x},
                {wanted.bias_grad});
  }
  const auto tensor = [&](const char* what, bool kept, std::int64_t rows, std::int64_t width) {
    return kept ? b.activation(name + what, rows, width, b.sizes.gemm)
                : b.temporary(name + what, rows, width, b.sizes.gemm);
  };
  NarrowCopies to{.rows = {}, .cols = {}, .blocks = wanted.blocks};
  if (wanted.rows && !written) to.rows = tensor("_rows", wanted.keep && !cols, x.rows, x.cols);
  if (cols && flips) to.cols = tensor("_cols", wanted.keep, x.cols, x.rows);
  if (cols && !flips) to.cols = tensor("_cols", wanted.keep, x.rows, x.cols);
  if (written) {
    if (cols) copy(b, name + "_transpose", {x}, to, {});
    to.rows = x;
    return to;
  }
  const Recipe recipe = recipe_of(b);
  const View amax = measures_first(recipe) ? largest_magnitude(b, name, x, wanted.shard) : View{};
  copies(b, name, x, amax, to, one_kernel_per_copy(recipe), fused_bias ? wanted.bias_grad : View{});
  return to;
}

View transposed_copy(StageBuilder& b, const std::string& name, const View& rows) {
  const View cols = b.temporary(name + "_cols", rows.cols, rows.rows, rows.dtype);
  copy(b, name + "_transpose", {rows}, {.rows = {}, .cols = cols}, {});
  return cols;
}

View forward_weight(StageBuilder& b, Role role) {
  if (b.parameters.level() < 3) return lasting_copies(b, role).rows;
  return quantize_weight(b, role, true);
}

View backward_weight(StageBuilder& b, Role role) {
  if (b.parameters.level() < 3) return lasting_copies(b, role).cols;
  return quantize_weight(b, role, false);
}

void quantize_weights(StageBuilder& b) {
  const Recipe recipe = recipe_of(b);
  std::int32_t index = 0;
  for (const auto& [key, to] : b.narrow_weights) {
    if (key.first != b.layer()) continue;
    const View& w = b.weight(key.second).value;
    b.number(index++);
    if (w.dtype == b.sizes.gemm) {
      copy(b, "weight_transpose", {w}, {.rows = {}, .cols = to.cols, .blocks = to.blocks}, {});
      continue;
    }
    View amax;
    if (measures_first(recipe)) {
      // Outside micro-batches, so a tensor of no frame.
      amax = b.lasting("weight_amax" + std::to_string(index), 1, 1, DType::F32);
      measure(b, "weight", w, amax);
    }
    copies(b, "weight", w, amax, to, recipe == Recipe::Rowwise, {});
  }
  b.number(0);
}

View linear_input(StageBuilder& b, const std::string& name, std::int64_t rows, std::int64_t cols,
                  DType dtype) {
  const bool shard = rows < b.sizes.tokens;
  const bool kept =
      !is_narrow(b) || b.job.lora_rank > 0 || (shard && (dtype == b.sizes.gemm || gathers_wide(b)));
  return kept ? b.activation(name, rows, cols, dtype) : b.temporary(name, rows, cols, dtype);
}

DType norm_output(const StageBuilder& b) {
  const bool fused = is_narrow(b) && b.kernels.fused_norm_quantize &&
                     recipe_of(b) == Recipe::Delayed && b.job.lora_rank == 0;
  return fused ? b.sizes.gemm : b.sizes.activation;
}

DType activation_output(const StageBuilder& b) {
  const bool fused = is_narrow(b) && b.kernels.fused_activation_quantize &&
                     recipe_of(b) == Recipe::Delayed && b.job.lora_rank == 0;
  return fused ? b.sizes.gemm : b.sizes.activation;
}

}  // namespace gputwin
