#include "strategies/lowering/sharding.h"

namespace gputwin {
namespace {

const Bucket& unit(const StageBuilder& b, std::int32_t index) {
  return b.parameters.buckets()[static_cast<std::size_t>(index)];
}

View whole_gradient(const StageBuilder& b, const Bucket& bucket) {
  return flat(bucket.gradient, bucket.elements, b.job.precision.grads);
}

// Summed over the copies of hybrid sharding at the end alone.
bool late_sum(const StageBuilder& b, const Bucket& bucket) {
  return b.wiring.replica.valid() && b.kernels.sums_copies_once && bucket.arriving.valid();
}

}  // namespace

void gather_unit(StageBuilder& b, std::int32_t index, bool again) {
  const Bucket& bucket = unit(b, index);
  const DType params = b.job.precision.params;
  b.collective(b.wiring.dp_stream, b.wiring.shard, OpKind::AllGather,
               again ? "param_all_gather_again" : "param_all_gather",
               flat(bucket.weight_shard, bucket.shard, params),
               flat(again ? bucket.weight_again : bucket.weight, bucket.elements, params));
}

void zero_unit(StageBuilder& b, std::int32_t index) {
  const Bucket& bucket = unit(b, index);
  b.kernel("zero_unit_gradients", {.kind = OpKind::Zero, .dims = {bucket.elements}}, {},
           {whole_gradient(b, bucket)});
}

void reduce_unit(StageBuilder& b, std::int32_t index) {
  const Bucket& bucket = unit(b, index);
  const StageWiring& w = b.wiring;
  const DType grads = b.job.precision.grads;
  const View whole = whole_gradient(b, bucket);
  const View shard = flat(bucket.gradient_shard, bucket.shard, grads);
  const bool first_is_all = !bucket.arriving.valid();
  const View arriving = first_is_all ? shard : flat(bucket.arriving, bucket.shard, grads);
  if (bucket.partial_elements > 0) {
    View partial = flat(bucket.gradient, bucket.partial_elements, grads);
    partial.offset = bucket.partial_begin;
    b.all_reduce("token_shard_all_reduce", partial);
  }
  b.collective(w.dp_stream, w.shard, OpKind::ReduceScatter, "grad_reduce_scatter", whole, arriving);
  if (w.replica.valid() && !late_sum(b, bucket)) {
    b.collective(w.dp_stream, w.replica, OpKind::AllReduce, "grad_all_reduce", arriving, arriving);
  }
  if (!first_is_all) b.add_on(w.dp_stream, "grad_accumulate", arriving, shard, shard);
}

void sum_copies(StageBuilder& b) {
  const std::vector<Bucket>& buckets = b.parameters.buckets();
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (!late_sum(b, buckets[i])) continue;
    const View shard = flat(buckets[i].gradient_shard, buckets[i].shard, b.job.precision.grads);
    b.number(static_cast<std::int32_t>(i));
    b.collective(b.wiring.dp_stream, b.wiring.replica, OpKind::AllReduce, "grad_all_reduce", shard,
                 shard);
  }
  b.number(0);
}

}  // namespace gputwin
