#include "sim/app/power.h"

#include <map>
#include <memory>

#include "hwmodels/power.h"
#include "sim/app/data_directory.h"

namespace gputwin {

PowerSource power_source(const Plan& plan, const Topology& topology, const HardwareModel& costs) {
  const PowerShares shares = load_power_shares(data_directory() / "hwmodels" / "power.json");
  const auto kind_of = [&plan, &topology](RankId rank) {
    return topology.device_kind(plan.ranks[rank.value].gpu);
  };
  const auto rates = [=, &costs](RankId rank) {
    return PowerRates{costs.device(kind_of(rank)).power_limit_W, shares.idle, shares.busy};
  };
  using Key = std::pair<std::uint32_t, std::uint32_t>;  // call, kind of device
  const auto known = std::make_shared<std::map<Key, double>>();
  const auto added = [=, &plan, &costs](RankId rank, const Instruction& instruction) {
    const DeviceKindId kind = kind_of(rank);
    const auto [at, made] = known->try_emplace({instruction.call, kind.value}, 0.0);
    if (made) {
      const Call& call = plan.call(instruction);
      at->second = added_power(
          shares, costs.kernel(call.op, bytes_of(call.reads), bytes_of(call.writes), kind));
    }
    return at->second;
  };
  return {rates, added};
}

}  // namespace gputwin
