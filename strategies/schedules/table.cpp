#include "strategies/schedules/table.h"

#include <algorithm>

#include "sim/core/check.h"

namespace gputwin {
namespace {

// `warm_up` forwards, pairs of forward and backward, the remaining backwards; `pass(backward, k)`
// is the k-th pass of its kind.
template <class PassAt>
StageTable warmed_up(std::int32_t total, std::int32_t warm_up, PassAt pass) {
  StageTable table;
  table.reserve(static_cast<std::size_t>(2 * total));
  warm_up = std::min(warm_up, total);
  for (std::int32_t k = 0; k < warm_up; ++k) table.push_back(pass(false, k));
  for (std::int32_t k = warm_up; k < total; ++k) {
    table.push_back(pass(false, k));
    table.push_back(pass(true, k - warm_up));
  }
  for (std::int32_t k = total - warm_up; k < total; ++k) table.push_back(pass(true, k));
  return table;
}

}  // namespace

StageTable gpipe_table(std::int32_t micro_batches) {
  return warmed_up(micro_batches, micro_batches, [](bool backward, std::int32_t k) {
    return Pass{backward, 0, k};
  });
}

StageTable one_f_one_b_table(std::int32_t stages, std::int32_t stage, std::int32_t micro_batches) {
  return warmed_up(micro_batches, stages - stage - 1, [](bool backward, std::int32_t k) {
    return Pass{backward, 0, k};
  });
}

StageTable interleaved_table(std::int32_t stages, std::int32_t chunks, std::int32_t stage,
                             std::int32_t micro_batches) {
  GPUTWIN_CHECK(micro_batches % stages == 0, "groups of p micro-batches fill the schedule");
  const std::int32_t total = micro_batches * chunks;
  const std::int32_t warm_up =
      micro_batches == stages ? total : 2 * (stages - stage - 1) + (chunks - 1) * stages;
  return warmed_up(total, warm_up, [=](bool backward, std::int32_t k) {
    const std::int32_t in_group = k % (stages * chunks);
    const std::int32_t chunk = in_group / stages;
    const std::int32_t micro_batch = k / (stages * chunks) * stages + in_group % stages;
    return Pass{backward, backward ? chunks - 1 - chunk : chunk, micro_batch};
  });
}

std::vector<StageTable> schedule_tables(const Layout& layout, std::int32_t micro_batches) {
  std::vector<StageTable> tables;
  for (std::int32_t stage = 0; stage < layout.pp; ++stage) {
    switch (layout.schedule) {
      case Schedule::Gpipe: tables.push_back(gpipe_table(micro_batches)); break;
      case Schedule::None:  // one stage: each micro-batch forward and backward, gradients
                            // accumulate
      case Schedule::OneFOneB:
        tables.push_back(one_f_one_b_table(layout.pp, stage, micro_batches));
        break;
      case Schedule::Interleaved:
        // With one chunk per stage Megatron runs the plain order.
        tables.push_back(layout.vpp == 1
                             ? one_f_one_b_table(layout.pp, stage, micro_batches)
                             : interleaved_table(layout.pp, layout.vpp, stage, micro_batches));
        break;
    }
  }
  return tables;
}

}  // namespace gputwin
