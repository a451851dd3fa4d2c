// What happens once per iteration: zeroing, reduction of gradient buckets, gradient norm, the
// optimizer's step, gathering.
#include "strategies/lowering/optimizer.h"

namespace gputwin {
namespace {

struct BucketViews {
  View gradient, partial, reduced;  // whole bucket; part summed over tp; what the optimizer reads
  View weight, updated;             // whole bucket; what the optimizer writes
};

BucketViews views_of(const StageBuilder& b, const Bucket& bucket) {
  const Precision& p = b.job.precision;
  BucketViews v;
  v.gradient = flat(bucket.gradient, bucket.elements, p.grads);
  v.partial = flat(bucket.gradient, bucket.partial_elements, p.grads);
  v.partial.offset = bucket.partial_begin;
  v.weight = flat(bucket.weight, bucket.elements, bucket.dtype);
  const bool sharded = bucket.gradient_shard.valid();
  v.reduced = sharded ? flat(bucket.gradient_shard, bucket.shard, p.grads) : v.gradient;
  v.updated = sharded ? flat(bucket.weight_shard, bucket.shard, bucket.dtype) : v.weight;
  return v;
}

void reduce_embedding(StageBuilder& b, const View& gradient) {
  const StageWiring& w = b.wiring;
  b.collective(w.dp_stream, w.embedding, OpKind::AllReduce, "embedding_all_reduce", gradient,
               gradient);
}

struct Step {
  const char* name;
  OpKind kind;
};

Step step_of(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::Adam:
    case Optimizer::AdamW: return {"adam", OpKind::AdamStep};
    case Optimizer::Lamb: return {"lamb", OpKind::LambStep};
    case Optimizer::Sgd: return {"sgd", OpKind::SgdStep};
  }
  return {"adam", OpKind::AdamStep};
}

// What the step reads: 16-bit gradients are copied to F32 and unscaled first, fp16 ones unscaled.
View step_gradient(StageBuilder& b, const Bucket& bucket, const View& reduced) {
  if (!b.kernels.optimizer_passes) return reduced;
  const Op pass{.kind = OpKind::CastCopy, .dims = {bucket.shard}};
  if (bits(reduced.dtype) == 16 && b.job.precision.master) {
    const View wide = b.step_gradients(bucket.shard);
    b.kernel("unscale", pass, {reduced}, {wide});
    return wide;
  }
  if (b.job.precision.compute == DType::F16) b.kernel("unscale", pass, {reduced}, {reduced});
  return reduced;
}

void update(StageBuilder& b, const Bucket& bucket, const BucketViews& v, const View& gradient,
            const View& sum) {
  const DType state = state_dtype(b.job.precision);
  std::vector<View> writes;
  if (bucket.master.valid()) {
    writes.push_back(flat(bucket.master, bucket.shard, DType::F32));
  } else if (bucket.weight_shard.valid() && b.parameters.level() < 3) {
    // The step adds to what is there: the rank's own part of the weights.
    b.kernel("own_weights",
             {.kind = OpKind::CastCopy, .slot = bucket.shard_slot, .dims = {bucket.shard}},
             {v.weight}, {v.updated});
  }
  writes.push_back(flat(bucket.m, bucket.shard, state));
  if (bucket.v.valid()) writes.push_back(flat(bucket.v, bucket.shard, state));
  writes.push_back(v.updated);
  const Step step = step_of(b.job.optimizer);
  if (b.kernels.optimizer_passes) {
    b.kernel("clip", {.kind = OpKind::CastCopy, .dims = {bucket.shard}}, {gradient}, {gradient});
  }
  b.kernel(step.name, {.kind = step.kind, .dims = {bucket.shard}}, {gradient, sum},
           std::move(writes));
  if (b.kernels.optimizer_passes && bucket.master.valid()) {
    const View master = flat(bucket.master, bucket.shard, DType::F32);
    b.kernel("copy_master", {.kind = OpKind::CastCopy, .dims = {bucket.shard}}, {master},
             {v.updated});
  }
}

}  // namespace

void zero_gradients(StageBuilder& b, const View& loss) {
  std::int32_t index = 0;
  for (const Bucket& bucket : b.parameters.buckets()) {
    b.number(index++);
    const BucketViews v = views_of(b, bucket);
    const bool sharded = b.parameters.level() >= 2;
    if (sharded && !bucket.arriving.valid()) continue;  // the reduction writes it
    const View& gradient = sharded ? v.reduced : v.gradient;
    b.kernel("zero_gradients", {.kind = OpKind::Zero, .dims = {gradient.elements()}}, {},
             {gradient});
    if (bucket.fresh.valid()) {
      b.kernel("zero_fresh", {.kind = OpKind::Zero, .dims = {bucket.elements}}, {},
               {flat(bucket.fresh, bucket.elements, bucket.dtype)});
    }
  }
  b.number(0);
  if (present(loss)) b.kernel("zero_loss", {.kind = OpKind::Zero, .dims = {1}}, {}, {loss});
}

void accumulate_fresh(StageBuilder& b, std::int32_t chunk) {
  std::int32_t index = 0;
  for (const Bucket& bucket : b.parameters.buckets()) {
    b.number(index++);
    if (!bucket.fresh.valid() || bucket.chunk != chunk) continue;
    const View fresh = flat(bucket.fresh, bucket.elements, bucket.dtype);
    const View gradient = views_of(b, bucket).gradient;
    b.kernel("accumulate", {.kind = OpKind::Add, .dims = {bucket.elements}}, {fresh, gradient},
             {gradient});
    b.kernel("zero_fresh", {.kind = OpKind::Zero, .dims = {bucket.elements}}, {}, {fresh});
  }
  b.number(0);
}

void reduce_bucket(StageBuilder& b, std::int32_t index) {
  const Bucket& bucket = b.parameters.buckets()[static_cast<std::size_t>(index)];
  const StageWiring& w = b.wiring;
  const BucketViews v = views_of(b, bucket);
  const bool sharded = bucket.gradient_shard.valid();
  b.number(index);
  if (bucket.partial_elements > 0) b.all_reduce("token_shard_all_reduce", v.partial);
  // A shard is smaller than the tied tensor, so the other stage's part is added before the scatter.
  if (bucket.tied && sharded) reduce_embedding(b, v.gradient);
  if (w.copies.valid()) {
    b.collective(w.dp_stream, w.copies, OpKind::AllReduce, "grad_all_reduce", v.gradient,
                 v.reduced);
  } else if (bucket.replicas.valid()) {
    b.collective(w.dp_stream, bucket.replicas, sharded ? OpKind::ReduceScatter : OpKind::AllReduce,
                 sharded ? "grad_reduce_scatter" : "grad_all_reduce", v.gradient, v.reduced);
  }
  b.number(0);
}

void validate_step(StageBuilder& b, const View& sum, const View& total) {
  const StageWiring& w = b.wiring;
  const bool last = !w.next.valid();
  if (!last) b.receive(w.gradient_receive_stream, w.next, "receive_norm", total);
  const View& known = last ? sum : total;
  if (w.previous.valid()) b.send(w.gradient_send_stream, w.previous, "send_norm", known);
  if (!last) b.kernel("validate", {.kind = OpKind::CastCopy, .dims = {1}}, {total}, {total});
}

void update_weights(StageBuilder& b, const View& sum, const View& arriving) {
  const std::vector<Bucket>& buckets = b.parameters.buckets();
  const StageWiring& w = b.wiring;
  for (const Bucket& bucket : buckets) {
    // The shards of both stages are of the same elements.
    if (bucket.tied && b.parameters.level() != 1) {
      reduce_embedding(b, views_of(b, bucket).reduced);
    }
  }
  b.kernel("zero_grad_norm", {.kind = OpKind::Zero, .dims = {1}}, {}, {sum});
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    b.number(static_cast<std::int32_t>(i));
    const View gradient = views_of(b, buckets[i]).reduced;
    b.kernel("grad_norm",
             {.kind = OpKind::SumOfSquares, .accumulate = true, .dims = {gradient.elements()}},
             {gradient}, {sum});
  }
  b.number(0);
  if (w.model.valid()) {
    b.collective(w.dp_stream, w.model, OpKind::AllReduce, "grad_norm_all_reduce", sum, sum);
  }
  if (validates_later(b.layout.schedule)) {
    if (w.previous.valid()) {
      b.receive(w.receive_stream, w.previous, "receive_partial_norm", arriving);
      b.kernel("add_norm", {.kind = OpKind::Add, .dims = {1}}, {sum, arriving}, {sum});
    }
    if (w.next.valid()) b.send(w.send_stream, w.next, "send_partial_norm", sum);
  }
  // The norm decides about all buckets, so the gradients of all of them wait for it.
  std::vector<View> gradients;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    b.number(static_cast<std::int32_t>(i));
    gradients.push_back(step_gradient(b, buckets[i], views_of(b, buckets[i]).reduced));
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const BucketViews v = views_of(b, buckets[i]);
    b.number(static_cast<std::int32_t>(i));
    update(b, buckets[i], v, gradients[i], sum);
    if (!buckets[i].weight_shard.valid() || b.parameters.level() == 3) continue;
    b.collective(w.dp_stream, buckets[i].shard_slot, OpKind::AllGather, "param_all_gather",
                 v.updated, v.weight);
  }
  b.number(0);
}

}  // namespace gputwin
