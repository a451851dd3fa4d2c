// Products of matrices and those of unfused attention, as cuBLASLt takes them.
#include <cmath>

#include "validation/executors/cuda/operands.h"

namespace gputwin::executors {

namespace {

cudaDataType_t type_of(cuda::Element element) {
  return element == cuda::Element::Bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

/// Sets formats; BF16 may be summed into F32, not the other way round.
void set_types(cuda::Product& product, const cuda::Matrix& a, const cuda::Matrix& b,
               const cuda::Matrix& c, const Op& op) {
  need(a.format == b.format, "cuBLASLt takes no product of two formats");
  need(c.format == cuda::Element::Fp32 || a.format == cuda::Element::Bf16,
       "cuBLASLt takes no product of F32 rounded to BF16");
  product.type = type_of(a.format);
  product.out = type_of(c.format);
  product.tf32 = op.dtype == DType::Tf32;
}

std::byte* element(const cuda::Matrix& m, std::int64_t index) {
  const std::int64_t size = codecs::bytes_of(m.format);
  return static_cast<std::byte*>(m.data) + index * size;
}

/// One product of each sample and query head: rows of A, B and C are heads' rows of x, y and z.
struct HeadProducts {
  cuda::Product product;  // of one head
  cuda::Matrix x, y, z;
  std::int64_t samples = 0, heads = 0, group = 0;  // query heads, and of them to one key head
  // Elements from one sample to the next and from one head to the next. Heads of a group share the
  // operands whose `shared` is set: y, or z, which is their sum.
  std::int64_t sample_x = 0, sample_y = 0, sample_z = 0, head_x = 0, head_y = 0, head_z = 0;
  bool share_y = false, share_z = false;

  void enqueue(const Lane& lane) const {
    for (std::int64_t n = 0; n < samples; ++n) {
      for (std::int64_t h = 0; h < heads;) h += enqueue_from(lane, n, h);
    }
  }

 private:
  /// As many heads as one call takes. Returns how many.
  std::int64_t enqueue_from(const Lane& lane, std::int64_t n, std::int64_t h) const {
    cuda::Product p = product;
    const std::int64_t count = group == 1 ? heads : share_z ? 1 : group;
    p.batch = static_cast<std::int32_t>(count);
    p.step_a = head_x;
    p.step_b = share_y && group > 1 ? 0 : head_y;
    p.step_c = head_z;
    p.accumulate = share_z && h % group != 0;
    const std::int64_t head_of_y = share_y ? h / group : h, head_of_z = share_z ? h / group : h;
    lane.products->run(p, element(x, n * sample_x + h * head_x),
                       element(y, n * sample_y + head_of_y * head_y),
                       element(z, n * sample_z + head_of_z * head_z), lane.stream);
    return count;
  }
};

}  // namespace

bool needs_products(const Op& op) { return op.kind == OpKind::Gemm || is_attention_gemm(op.kind); }

PreparedKernel prepare_product(const KernelWork& work) {
  const Op& op = work.op;
  const std::int64_t m = op.dims[0], n = op.dims[1], k = op.dims[2];
  const cuda::Matrix a = read(work, 0, op.trans_a ? k : m, op.trans_a ? m : k);
  const cuda::Matrix b = read(work, 1, op.trans_b ? n : k, op.trans_b ? k : n);
  const cuda::Matrix c = result(work, 0, m, n);
  cuda::Product product{.m = m, .n = n, .k = k, .trans_a = op.trans_a, .trans_b = op.trans_b};
  product.accumulate = op.accumulate;
  product.lda = a.ld;
  product.ldb = b.ld;
  product.ldc = c.ld;
  set_types(product, a, b, c, op);
  const bool biased = work.reads.size() > 2;
  const cuda::Matrix bias = biased ? read(work, 2, 1, n) : cuda::Matrix{};
  return {.enqueue = [=](const Lane& lane) {
    lane.products->run(product, a.data, b.data, c.data, lane.stream);
    if (biased) cuda::add(m, n, c, bias, {}, 1.0f, c, lane.stream.get());
  }};
}

PreparedKernel prepare_attention_product(const KernelWork& work) {
  const Op& op = work.op;
  need(!op.alibi, "no kernel here adds ALiBi to the scores");
  const auto [b, a, g, s, u, d] = op.dims;
  need(g > 0 && a % g == 0, "query heads are not a multiple of key heads");
  const OpKind kind = op.kind;
  const bool to_scores = kind == OpKind::AttentionScores || kind == OpKind::AttentionGradProbs;
  const bool to_queries = kind == OpKind::AttentionContext || kind == OpKind::AttentionGradQuery;
  const bool scaled = kind == OpKind::AttentionScores || kind == OpKind::AttentionGradQuery ||
                      kind == OpKind::AttentionGradKey;
  const std::int64_t score_rows = b * a * s;
  HeadProducts each;
  each.samples = b;
  each.heads = a;
  each.group = a / g;
  each.x = to_scores ? read(work, 0, b * s, a * d) : read(work, 0, score_rows, u);
  const bool keys = to_scores || to_queries;  // y is K or V
  each.y = keys ? read(work, 1, b * u, g * d) : read(work, 1, b * s, a * d);
  each.z = to_scores    ? result(work, 0, score_rows, u)
           : to_queries ? result(work, 0, b * s, a * d)
                        : result(work, 0, b * u, g * d);
  each.share_y = keys;
  each.share_z = !keys;
  const auto heads_of = [](const cuda::Matrix& m, bool scores, std::int64_t rows, std::int64_t all,
                           std::int64_t size, std::int64_t& sample, std::int64_t& head) {
    sample = (scores ? all * rows : rows) * m.ld;
    head = scores ? rows * m.ld : size;
  };
  heads_of(each.x, !to_scores, s, a, d, each.sample_x, each.head_x);
  heads_of(each.y, false, keys ? u : s, a, d, each.sample_y, each.head_y);
  heads_of(each.z, to_scores, keys ? s : u, a, d, each.sample_z, each.head_z);
  cuda::Product& p = each.product;
  p.m = keys ? s : u;
  p.n = to_scores ? u : d;
  p.k = to_scores ? d : to_queries ? u : s;
  p.trans_a = !keys;
  p.trans_b = to_scores;
  p.lda = each.x.ld;
  p.ldb = each.y.ld;
  p.ldc = each.z.ld;
  p.factor = scaled ? 1.0f / std::sqrt(static_cast<float>(d)) : 1.0f;
  set_types(p, each.x, each.y, each.z, op);
  return {.enqueue = [each](const Lane& lane) { each.enqueue(lane); }};
}

}  // namespace gputwin::executors
