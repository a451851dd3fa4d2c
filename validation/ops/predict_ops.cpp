#include <algorithm>
#include <map>
#include <optional>

#include "hwmodels/calibrate/predict.h"
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

OpPrediction predicted(Sample sample, Devices& devices) {
  OpPrediction row;
  const Device* device = sample.device.empty() ? nullptr : devices.find(sample.device);
  if (sample.time.value <= 0) {
    row.reason = "no measured time";
  } else if (sample.device.empty()) {
    row.reason = "unknown device " + sample.spelling;
  } else if (device == nullptr) {
    row.reason = "no file for device " + sample.device;
  } else {
    const std::variant<Cost, std::string> answer = sample_cost(sample, *device);
    if (const auto* cost = std::get_if<Cost>(&answer)) {
      row.predicted_s = cost->time.value;
      row.low_s = cost->time.value * cost->low;
      row.high_s = cost->time.value * cost->high;
      row.extrapolated = cost->extrapolated;
    } else {
      row.reason = std::get<std::string>(answer);
    }
  }
  row.sample = std::move(sample);
  return row;
}

}  // namespace

OpTable predict_ops(const std::filesystem::path& file, Part part,
                    const std::filesystem::path& data) {
  const CsvTable table = CsvTable::read(file);
  const TableFormat& format = format_of(table);
  OpTable out{file.filename().string(), format.name, {}};
  Devices devices(data / "devices");
  const DeviceAliases aliases = DeviceAliases::load(data / "device_aliases.json");
  for (Sample& sample : read_samples(table, format, aliases)) {
    if (part != Part::All && is_test(sample) != (part == Part::Test)) continue;
    out.rows.push_back(predicted(std::move(sample), devices));
  }
  return out;
}

}  // namespace gputwin
