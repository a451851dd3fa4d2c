// How published tables spell devices and systems.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gputwin {

/// Spellings of devices (files of hwmodels/devices) and of systems (clusters of several devices).
class DeviceAliases {
 public:
  /// Reads hwmodels/device_aliases.json. Throws InputError with file and JSON pointer.
  static DeviceAliases load(const std::filesystem::path& path);

  /// The id that `spelling` means in `column` of `table`: as listed there, else as listed for any
  /// table if all of them agree, else itself if it is an id; empty if unknown or ambiguous.
  std::string find(std::string_view table, std::string_view column,
                   const std::string& spelling) const;

 private:
  struct Meaning {
    std::string id, column;
    std::vector<std::string> tables;
  };
  std::multimap<std::string, Meaning> meanings_;  // by spelling
};

}  // namespace gputwin
