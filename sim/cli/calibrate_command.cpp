// gputwin calibrate: fits the constants of a device to measured times.
#include <fmt/format.h>

#include <ctime>

#include "hwmodels/calibrate/device_file.h"
#include "hwmodels/calibrate/fit.h"
#include "hwmodels/calibrate/gemm_fit.h"
#include "hwmodels/calibrate/library_fit.h"
#include "hwmodels/calibrate/processor_fit.h"
#include "sim/app/data_directory.h"
#include "sim/cli/commands.h"
#include "sim/core/error.h"
#include "sim/trace/atomic_file.h"
#include "validation/ops/fit_collectives.h"

namespace gputwin::cli {
namespace {

struct Options {
  std::vector<std::string> files, only;
  std::string device, out, card, all;
};

// A device file: as given, or that of a shipped device.
std::filesystem::path device_path(const std::string& name) {
  if (std::filesystem::is_regular_file(name)) return name;
  const std::filesystem::path folder = data_directory() / "hwmodels" / "devices";
  const std::vector<std::string> known = list_devices(folder);
  if (!std::binary_search(known.begin(), known.end(), name)) {
    throw InputError("--device", "", name, "is no device and no file",
                     "nearest: " + nearest_name(name, known) +
                         "; for a new one write its data sheet into a file, \"like\" a known one");
  }
  return folder / (name + ".json");
}

std::vector<Sample> samples_of(const Options& o, const std::string& device) {
  std::vector<Sample> samples;
  const DeviceAliases aliases =
      DeviceAliases::load(data_directory() / "hwmodels" / "device_aliases.json");
  for (const std::string& file : o.files) {
    const CsvTable table = CsvTable::read(file);
    for (Sample& sample : read_samples(table, format_of(table), aliases)) {
      if (sample.device == device) samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::string table_names(const std::vector<std::string>& files) {
  std::vector<std::string> names;
  for (const std::string& file : files) names.push_back(std::filesystem::path(file).filename());
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

// Refits the library kernels of every device of a folder hwmodels, and what they share.
int calibrate_all(const Options& o) {
  const std::filesystem::path folder = o.all;
  const DeviceAliases aliases = DeviceAliases::load(folder / "device_aliases.json");
  std::map<std::string, Device> devices;
  for (const std::string& name : list_devices(folder / "devices")) {
    devices[name] = load_device(folder / "devices" / (name + ".json"));
  }
  std::vector<Sample> samples;
  for (const std::string& file : o.files) {
    const CsvTable table = CsvTable::read(file);
    for (Sample& sample : read_samples(table, format_of(table), aliases)) {
      const bool collective = std::holds_alternative<CollectiveRow>(sample.query);
      if (collective || devices.contains(sample.device)) samples.push_back(std::move(sample));
    }
  }
  for (const auto& [name, text] : fit_collectives(samples)) {
    write_file((folder / "collectives" / (name + ".json")).string(), text);
  }
  const GemmFit gemms = fit_gemms(samples, devices);
  for (const auto& [name, residual] : gemms.corrections) {
    write_file((folder / "residuals" / (name + ".json")).string(), residual_text(residual));
  }
  std::map<std::string, std::vector<FamilyFit>> fits = gemms.devices;
  for (const LibraryFit& fit : fit_libraries(samples, devices)) {
    for (const auto& [name, residual] : fit.corrections) {
      write_file((folder / "residuals" / (name + ".json")).string(), residual_text(residual));
    }
    for (const auto& [device, family] : fit.devices) fits[device].push_back(family);
  }
  for (const auto& [device, families] : fits) {
    const std::filesystem::path path = folder / "devices" / (device + ".json");
    write_file(path.string(), calibrated_device(path, families, device));
    fmt::print("{}\n", model_card(device, families, table_names(o.files), today()));
  }
  return kDone;
}

std::vector<FamilyFit> device_fits(const Options& o, const Device& device) {
  const std::vector<Sample> samples = samples_of(o, device.name);
  std::vector<FamilyFit> fits;
  for (const Family& family : families()) {
    const bool wanted =
        o.only.empty() || std::find(o.only.begin(), o.only.end(), family.name) != o.only.end();
    if (!wanted) continue;
    if (std::optional<FamilyFit> fit = family.fit(samples, device)) fits.push_back(std::move(*fit));
  }
  return fits;
}

// A computer that runs plans itself, from the tables of its probes.
std::vector<FamilyFit> processor_fits(const Options& o) {
  std::vector<CsvTable> tables;
  for (const std::string& file : o.files) tables.push_back(CsvTable::read(file));
  return fit_processor(tables);
}

int calibrate(const Options& o) {
  if (!o.all.empty()) return calibrate_all(o);
  if (o.device.empty()) {
    throw InputError("--device", "", "", "is missing", "name a device, or a folder with --all");
  }
  const std::filesystem::path start = device_path(o.device);
  Device device = load_device(start);
  std::vector<FamilyFit> fits;
  if (device.processor) {
    fits = processor_fits(o);
    if (!o.out.empty()) device.name = std::filesystem::path(o.out).stem().string();
  } else {
    attach_corrections(device, data_directory() / "hwmodels" / "residuals");
    fits = device_fits(o, device);
  }
  if (fits.empty()) {
    throw InputError(table_names(o.files), "", "",
                     fmt::format("holds too few rows of {} for any fit", device.name),
                     "give tables that name this device; spellings: hwmodels/device_aliases.json");
  }
  const std::string card = model_card(device.name, fits, table_names(o.files), today());
  if (!o.out.empty()) write_file(o.out, calibrated_device(start, fits, device.name));
  if (!o.card.empty()) write_file(o.card, card);
  fmt::print("{}", card);
  return kDone;
}

}  // namespace

Action add_calibrate(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("calibrate", "Fit the constants of a device to measured times");
  command->footer(
      "Example: gputwin calibrate hwmodels/measurements/gemm.csv --device a100-sxm-80gb --out "
      "a100.json\n"
      "One shape in five is kept out of the fit and judges it. Tables: validation/ops/README.md.\n"
      "Exit codes: 0 done, 2 bad input.");
  auto o = std::make_shared<Options>();
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.name);
  command->add_option("files", o->files, "Tables of measured times (CSV)")->required();
  CLI::Option* device = command->add_option("--device", o->device,
                                            "A shipped device, or a device file to start from");
  CLI::Option* all = command
                         ->add_option("--all", o->all,
                                      "Refit every device of this folder (hwmodels) and the "
                                      "corrections that devices share, in place")
                         ->check(CLI::ExistingDirectory)
                         ->excludes(device);
  device->excludes(all);
  command->add_option("--out", o->out, "Write the device with fitted constants to this file");
  command->add_option("--card", o->card, "Write the model card (Markdown) to this file");
  command->add_option("--only", o->only, "Fit only these groups of constants")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  return [o] { return calibrate(*o); };
}

}  // namespace gputwin::cli
