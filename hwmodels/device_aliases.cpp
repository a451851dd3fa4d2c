#include "hwmodels/device_aliases.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/error.h"

namespace gputwin {

DeviceAliases DeviceAliases::load(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw InputError(path.string(), "", "", "cannot be read", "restore the file");
  DeviceAliases out;
  std::size_t row = 0;
  try {
    const auto root = nlohmann::json::parse(in);
    for (const auto& alias : root.at("aliases")) {
      out.meanings_.emplace(
          alias.at("spelling").get<std::string>(),
          Meaning{alias.at("id").get<std::string>(), alias.at("column").get<std::string>(),
                  alias.value("tables", std::vector<std::string>())});
      ++row;
    }
  } catch (const nlohmann::json::exception& error) {
    throw InputError(path.string(), "/aliases/" + std::to_string(row), "", "is no alias",
                     "write {\"spelling\", \"id\", \"kind\", \"column\", \"tables\"}");
  }
  return out;
}

std::string DeviceAliases::find(std::string_view table, std::string_view column,
                                const std::string& spelling) const {
  std::set<std::string> here, anywhere;
  const auto [first, last] = meanings_.equal_range(spelling);
  for (auto m = first; m != last; ++m) {
    const auto& tables = m->second.tables;
    anywhere.insert(m->second.id);
    if (m->second.column != column) continue;
    if (std::find(tables.begin(), tables.end(), table) != tables.end()) here.insert(m->second.id);
  }
  const std::set<std::string>& found = here.empty() ? anywhere : here;
  if (found.size() == 1) return *found.begin();
  if (!found.empty()) return "";
  const bool known_id = std::any_of(meanings_.begin(), meanings_.end(),
                                    [&](const auto& m) { return m.second.id == spelling; });
  return known_id ? spelling : "";
}

}  // namespace gputwin
