// What collectives do to numbers. Sums run in member order.
#include <algorithm>

#include "validation/executors/interpreter/interpreter_state.h"

namespace gputwin::interpreted {

namespace {

using Arrays = std::vector<std::vector<double>>;

void need(bool condition, const std::string& what) {
  if (!condition) throw Fault(what);
}

std::vector<double> reduced(const Op& op, const Arrays& reads) {
  std::vector<double> total = reads[0];
  for (std::size_t m = 1; m < reads.size(); ++m) {
    need(reads[m].size() == total.size(), "members of a reduction bring different sizes");
    for (std::size_t k = 0; k < total.size(); ++k) {
      total[k] = op.reduce_max ? std::max(total[k], reads[m][k]) : total[k] + reads[m][k];
    }
  }
  return total;
}

Arrays gathered(const Arrays& reads) {
  std::vector<double> all;
  for (const auto& shard : reads) {
    need(shard.size() == reads[0].size(), "members of an all-gather bring different sizes");
    all.insert(all.end(), shard.begin(), shard.end());
  }
  return Arrays(reads.size(), all);
}

Arrays scattered(const std::vector<double>& total, std::size_t members) {
  need(total.size() % members == 0, "a reduce-scatter does not divide by its members");
  const std::size_t shard = total.size() / members;
  Arrays writes;
  for (std::size_t m = 0; m < members; ++m) {
    const auto first = total.begin() + static_cast<std::ptrdiff_t>(m * shard);
    writes.emplace_back(first, first + static_cast<std::ptrdiff_t>(shard));
  }
  return writes;
}

Arrays exchanged(const Arrays& reads) {
  const std::size_t members = reads.size();
  need(reads[0].size() % members == 0, "an all-to-all does not divide by its members");
  const std::size_t part = reads[0].size() / members;
  Arrays writes(members);
  for (std::size_t to = 0; to < members; ++to) {
    for (const auto& from : reads) {
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(to * part);
      writes[to].insert(writes[to].end(), first, first + static_cast<std::ptrdiff_t>(part));
    }
  }
  return writes;
}

}  // namespace

std::vector<std::vector<double>> collect(const Op& op,
                                         const std::vector<std::vector<double>>& reads,
                                         const std::vector<std::int64_t>& write_elements) {
  Arrays writes;
  if (op.kind == OpKind::AllReduce) {
    writes.assign(reads.size(), reduced(op, reads));
  } else if (op.kind == OpKind::AllGather) {
    writes = gathered(reads);
  } else if (op.kind == OpKind::ReduceScatter) {
    writes = scattered(reduced(op, reads), reads.size());
  } else if (op.kind == OpKind::AllToAll) {
    writes = exchanged(reads);
  } else if (op.kind == OpKind::Broadcast) {
    need(op.root < reads.size(), "the root of a broadcast is no member");
    writes.assign(reads.size(), reads[op.root]);
  } else {
    throw Fault("a Collective instruction carries an op that is none");
  }
  const std::int64_t largest =
      static_cast<std::int64_t>(std::max(reads[0].size(), writes[0].size()));
  need(op.dims[0] == largest, "dims of a collective differ from its views");
  for (std::size_t m = 0; m < writes.size(); ++m) {
    need(static_cast<std::int64_t>(writes[m].size()) == write_elements[m],
         "the output of a collective has the wrong size");
  }
  return writes;
}

}  // namespace gputwin::interpreted
