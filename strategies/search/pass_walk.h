// Time and memory of the passes of one stage, walked on their own: streams, events, collectives and
// interference as the executors have them, neighbours taken as being in step.
#pragma once

#include <map>
#include <vector>

#include "strategies/schedules/pass_templates.h"
#include "strategies/search/prices.h"

namespace gputwin {

/// What passes allocate and free on the GPU, in bytes above where they began.
struct PassMemory {
  double kept = 0;  // still held at the end
  double peak = 0;
};

/// Walks instructions of one rank in issue order. Collectives start when this rank is ready for
/// them, as all members are alike; messages of pipelines are left out.
class PassWalk {
 public:
  /// `place[r]`: GPU of rank r of `plan`. `host_paced`: the host does not run ahead, so that tasks
  /// wait for their launch.
  PassWalk(const Plan& plan, RankId rank, const std::vector<GpuId>& place, Prices& prices,
           bool host_paced);

  void run(const std::vector<Instruction>& piece);
  /// All streams and the host wait for each other.
  void meet();
  double end() const;                    // seconds until every stream is done
  double host() const { return host_; }  // seconds of launches so far

 private:
  struct Interval {
    double begin = 0, end = 0;
  };

  void task(const Instruction& i);
  double kernel_end(double start, double work) const;
  double collective_time(const Call& call);
  const std::vector<Group>& groups(SlotId slot);
  bool is_pipeline(const Instruction& i) const;

  const Plan& plan_;
  RankId rank_;
  const std::vector<GpuId>& place_;
  Prices& prices_;
  bool host_paced_;
  HostCost launch_;
  double slowdown_;
  std::vector<double> streams_, events_;
  std::vector<Interval> collectives_;  // latest last
  double host_ = 0;
  std::map<std::uint32_t, std::vector<Group>> groups_;  // by slot
  std::map<std::uint32_t, double> sent_;                // end of the latest message by bytes
};

/// What the GPU's allocator (blocks of 512 B) hands out over `pieces` in order.
PassMemory pass_memory(const Plan& plan,
                       const std::vector<const std::vector<Instruction>*>& pieces);

}  // namespace gputwin
