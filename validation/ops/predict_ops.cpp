#include <algorithm>
#include <map>
#include <optional>

#include "hwmodels/calibrate/predict.h"
#include "validation/ops/collective_rows.h"
#include "validation/ops/ops.h"

namespace gputwin {

namespace {

// Device files, each read once.
class Devices {
 public:
  explicit Devices(std::filesystem::path folder)
      : folder_(std::move(folder)), known_(list_devices(folder_)) {}

  const Device* find(const std::string& name) {
    if (!std::binary_search(known_.begin(), known_.end(), name)) return nullptr;
    const auto [at, fresh] = read_.try_emplace(name);
    if (fresh) {
      at->second = load_device(folder_ / (name + ".json"));
      attach_corrections(at->second, folder_.parent_path() / "residuals");
    }
    return &at->second;
  }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> known_;
  std::map<std::string, Device> read_;
};

OpPrediction answered(Sample sample, const std::variant<Cost, std::string>& answer) {
  OpPrediction row;
  if (const auto* cost = std::get_if<Cost>(&answer)) {
    row.predicted_s = cost->time.value;
    row.low_s = cost->time.value * cost->low;
    row.high_s = cost->time.value * cost->high;
    row.extrapolated = cost->extrapolated;
  } else {
    row.reason = std::get<std::string>(answer);
  }
  row.sample = std::move(sample);
  return row;
}

// What the models say about a sample, or why they say nothing.
std::variant<Cost, std::string> cost_of(const Sample& sample, Devices& devices,
                                        CollectivePredictor& collectives) {
  if (sample.time.value <= 0) return std::string("no measured time");
  if (const auto* row = std::get_if<CollectiveRow>(&sample.query)) return collectives.predict(*row);
  if (sample.device.empty()) return "unknown device " + sample.spelling;
  const Device* device = devices.find(sample.device);
  if (device == nullptr) return "no file for device " + sample.device;
  return sample_cost(sample, *device);
}

}  // namespace

OpTable predict_ops(const std::filesystem::path& file, Part part,
                    const std::filesystem::path& data) {
  const CsvTable table = CsvTable::read(file);
  const TableFormat& format = format_of(table);
  OpTable out{file.filename().string(), format.name, {}};
  Devices devices(data / "devices");
  CollectivePredictor collectives(data, data.parent_path() / "validation" / "ops" / "systems");
  const DeviceAliases aliases = DeviceAliases::load(data / "device_aliases.json");
  for (Sample& sample : read_samples(table, format, aliases)) {
    if (part != Part::All && is_test(sample) != (part == Part::Test)) continue;
    const std::variant<Cost, std::string> cost = cost_of(sample, devices, collectives);
    out.rows.push_back(answered(std::move(sample), cost));
  }
  return out;
}

}  // namespace gputwin
