// Refits the shipped GEMM constants and residuals from the tables of the repository.
#include <cstdio>
#include <fstream>
#include <set>

#include "hwmodels/calibrate/device_file.h"
#include "hwmodels/calibrate/gemm_fit.h"
#include "sim/core/error.h"

namespace gputwin {

namespace {

constexpr const char* kTables = "hwmodels/measurements/gemm-*.csv";

std::vector<Sample> all_measurements(const std::filesystem::path& directory) {
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("gemm-") && name.ends_with(".csv")) files.insert(entry.path());
  }
  std::vector<Sample> all;
  for (const auto& file : files) {
    for (Sample& sample : read_gemm_measurements(file)) all.push_back(std::move(sample));
  }
  return all;
}

// Whole or not at all: a file that is cut off is worse than an old one.
void replace(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path draft = path.string() + ".new";
  std::ofstream out(draft, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw InputError(path.string(), "", "", "cannot be written", "check the folder");
  std::filesystem::rename(draft, path);
}

std::string line(const std::string& name, const FitErrors& errors) {
  char text[160];
  std::snprintf(text, sizeof text, "%-28s %6zu rows, mean error %5.2f %%, p90 %5.2f %%\n",
                name.c_str(), errors.rows, 100 * errors.mean, 100 * errors.p90);
  return text;
}

std::string refit_device(const std::filesystem::path& file, std::span<const Sample> samples) {
  Device device = load_device(file);
  std::vector<FamilyFit> fits;
  std::string report;
  for (const DType format : {DType::Bf16, DType::F32}) {
    const DType used = device.compute_format(format);
    if (used != format) continue;
    auto fit = fit_gemm(samples, device, format);
    if (!fit) continue;
    report += line(device.name + " " + fit->family, fit->inside);
    fits.push_back(std::move(*fit));
  }
  if (fits.empty()) return report;
  replace(file, calibrated_device(file, fits, kTables));
  device = load_device(file);
  fits.clear();
  const std::pair<DType, const char*> narrow[] = {{DType::F8, "/gemm/fp8_rate"},
                                                  {DType::Nvf4, "/gemm/nvfp4_rate"}};
  for (const auto& [format, pointer] : narrow) {
    const double rate = fit_format_rate(samples, device, format);
    if (rate > 0) fits.push_back({.family = "gemm", .numbers = {{pointer, {rate}, false}}});
  }
  if (!fits.empty()) replace(file, calibrated_device(file, fits, kTables));
  return report;
}

}  // namespace

std::string refit_gemm(const std::filesystem::path& data) {
  const std::vector<Sample> samples = all_measurements(data / "measurements");
  std::set<std::string> names;
  for (const Sample& s : samples) names.insert(s.device);
  std::string report;
  std::map<std::string, std::map<std::string, Device>> groups;  // by residual
  std::map<std::string, std::vector<Sample>> rows;
  for (const std::string& name : names) {
    std::vector<Sample> own;
    for (const Sample& s : samples) {
      if (s.device == name) own.push_back(s);
    }
    report += refit_device(data / "devices" / (name + ".json"), own);
    const Device device = load_device(data / "devices" / (name + ".json"));
    for (const Sample& s : own) {
      const auto& shape = std::get<GemmQuery>(s.query).shape;
      const bool simt = device.compute_format(shape.dtype) == DType::F32;
      const auto& g = simt && device.gemm_fp32 ? *device.gemm_fp32 : device.gemm;
      if (!g.residual) continue;
      groups[g.residual->name].emplace(name, device);
      rows[g.residual->name].push_back(s);
    }
  }
  for (const auto& [name, devices] : groups) {
    Residual residual = grow_gemm_residual(rows[name], devices);
    residual.source = std::string("gputwin calibrate, ") + kTables + ": " +
                      std::to_string(rows[name].size()) + " rows of";
    for (const auto& [device, unused] : devices) residual.source += " " + device;
    replace(data / "residuals" / (name + ".json"), residual_text(residual));
    report += name + ": " + residual.source + "\n";
  }
  return report;
}

}  // namespace gputwin
