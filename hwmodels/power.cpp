#include "hwmodels/power.h"

#include <algorithm>

#include "hwmodels/constants_file.h"

namespace gputwin {

PowerShares load_power_shares(const std::filesystem::path& path) {
  ConstantsFile file(path);
  file.text("/name");
  const auto share = [&](const char* name) {
    return file.number(std::string("/share_of_limit/") + name, Range::Fraction);
  };
  PowerShares shares;
  shares.idle = share("idle");
  shares.busy = share("busy");
  shares.memory = share("memory");
  shares.compute = share("compute");
  file.finish();
  return shares;
}

double added_power(const PowerShares& shares, const Cost& cost) {
  if (cost.time.value <= 0) return 0;
  const auto part = [&](Term t) { return std::min(1.0, cost.term(t).value / cost.time.value); };
  return shares.memory * part(Term::Memory) + shares.compute * part(Term::Compute);
}

}  // namespace gputwin
