#include "hwmodels/calibrate/library_fit.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "hwmodels/calibrate/boost.h"

namespace gputwin {

namespace {

constexpr double kLeastHbmOfBlackwell = 3e12;
constexpr std::size_t kLeastRows = 20;
constexpr std::size_t kMostRows = 4000;  // more do not change three constants

struct Row {
  const Sample* sample;
  KernelEstimate estimate;
};

// The kind a sample belongs to, and its estimate; none for kernels that have models of their own.
struct Estimate {
  const Device& device;
  LibraryKernel wanted;

  using Answer = std::optional<KernelEstimate>;

  Answer operator()(const GemmQuery&) const { return std::nullopt; }
  Answer operator()(const WholeModelShape&) const { return std::nullopt; }
  Answer operator()(const CollectiveRow&) const { return std::nullopt; }
  Answer operator()(const PromptPassShape& s) const { return of(LibraryKernel::PromptPass, s); }
  Answer operator()(const AttentionShape& s) const { return of(kernel_of(s), s); }
  Answer operator()(const MoeShape& s) const { return of(LibraryKernel::Moe, s); }
  Answer operator()(const PointwiseShape& s) const { return of(s.kind, s); }
  Answer operator()(const ConvolutionShape& s) const { return of(LibraryKernel::Convolution, s); }
  Answer operator()(const RnnShape& s) const { return of(LibraryKernel::Rnn, s); }
  Answer operator()(const AllReduceShape& s) const { return of(kernel_of(s), s); }
  Answer operator()(const ExpertExchangeShape& s) const { return of(kernel_of(s), s); }

  template <class Shape>
  Answer of(LibraryKernel kernel, const Shape& shape) const {
    return kernel == wanted ? Answer(estimate(device, shape)) : std::nullopt;
  }
};

std::vector<Row> rows_of(std::span<const Sample> samples, const Device& device,
                         LibraryKernel kernel) {
  std::vector<Row> rows;
  for (const Sample& sample : samples) {
    if (sample.device != device.name || sample.time.value <= 0) continue;
    const auto e = std::visit(Estimate{device, kernel}, sample.query);
    if (e) rows.push_back({&sample, *e});
  }
  return rows;
}

// Shortest and longest time of the rows, in words.
std::string range_of(const std::vector<Row>& rows) {
  double least = 1e300, most = 0;
  for (const Row& row : rows) {
    least = std::min(least, row.sample->time.value);
    most = std::max(most, row.sample->time.value);
  }
  char text[64];
  std::snprintf(text, sizeof text, "%.3g to %.3g us", least * 1e6, most * 1e6);
  return text;
}

double corrected_time(const LibraryModel& model, const KernelEstimate& e) {
  return library_cost(model, e, "", "").time.value;
}

LibraryModel fitted_constants(const std::vector<Row>& rows, const LibraryModel& start) {
  std::vector<const Row*> used;
  const std::size_t step = 1 + rows.size() / kMostRows;
  std::size_t count = 0;
  for (const Row& row : rows) {
    if (!is_test(*row.sample) && count++ % step == 0) used.push_back(&row);
  }
  const auto model_of = [&](std::span<const double> x) {
    LibraryModel model = start;
    model.start_up = Seconds(x[0] * 1e-6);
    model.compute_efficiency = x[1];
    model.memory_efficiency = x[2];
    return model;
  };
  const LogErrors errors = [&](std::span<const double> x, std::span<double> out) {
    const LibraryModel model = model_of(x);
    for (std::size_t i = 0; i < used.size(); ++i) {
      out[i] = std::log(corrected_time(model, used[i]->estimate) / used[i]->sample->time.value);
    }
  };
  const std::array<FreeConstant, 3> parameters{
      FreeConstant{start.known() ? start.start_up.value * 1e6 : 5.0, 0.1, 200.0},
      FreeConstant{start.known() ? start.compute_efficiency : 0.5, 0.005, 2.0},
      FreeConstant{start.known() ? start.memory_efficiency : 0.7, 0.01, 10.0}};
  return model_of(least_squares(parameters, used.size(), errors, 0.3, 60));
}

FamilyFit family_fit(LibraryKernel kernel, const std::vector<Row>& rows, const LibraryModel& model,
                     const std::string& correction) {
  const std::string at = std::string("/library/") + to_string(kernel);
  FamilyFit fit;
  fit.family = to_string(kernel);
  fit.numbers = {{at + "/start_up_us", {rounded(model.start_up.value * 1e6)}},
                 {at + "/compute_efficiency", {model.compute_efficiency}},
                 {at + "/memory_efficiency", {model.memory_efficiency}}};
  if (!correction.empty()) fit.texts = {{at + "/correction", correction}};
  std::vector<double> inside, outside;
  for (const Row& row : rows) {
    (is_test(*row.sample) ? outside : inside)
        .push_back(std::log(corrected_time(model, row.estimate) / row.sample->time.value));
  }
  fit.inside = fit_errors(inside);
  fit.outside = fit_errors(outside);
  fit.range = range_of(rows);
  std::set<std::string> tables;
  for (const Row& row : rows) tables.insert(row.sample->table);
  for (const std::string& table : tables) fit.tables += (fit.tables.empty() ? "" : ", ") + table;
  return fit;
}

void add_rows(const std::vector<Row>& rows, const LibraryModel& model, ResidualRows& out) {
  for (const Row& row : rows) {
    if (is_test(*row.sample)) continue;
    std::size_t count = 0;
    const auto features = features_with(model, row.estimate, count);
    out.add({features.begin(), features.begin() + static_cast<std::ptrdiff_t>(count)},
            row.sample->time.value, physical_time(model, row.estimate), row.sample->shape);
  }
}

// Serving kernels and experts were measured on every architecture by thousands of rows.
bool by_architecture(LibraryKernel kernel) {
  return kernel <= LibraryKernel::DecodeTrtLlm || kernel == LibraryKernel::Moe;
}

// Attention and experts: a few libraries differ by up to five times, and some have only tens of
// rows. With the usual scale their errors would count for too little to ever be corrected. Chosen
// on the rows kept out of the fit, among three to five settings.
BoostOptions options_of(LibraryKernel kernel) {
  BoostOptions options;
  if (kernel <= LibraryKernel::DecodeTrtLlm || kernel == LibraryKernel::Moe) {
    options.scale = 0.3, options.prior = 3, options.rate = 0.35;
  } else if (kernel <= LibraryKernel::UnfusedBackward) {
    options.scale = 0.5, options.prior = 1;
  } else if (kernel == LibraryKernel::Norm || kernel >= LibraryKernel::Convolution) {
    options.scale = 1, options.prior = 2, options.rate = 0.3;
  } else {
    options.scale = 0.3, options.prior = 3, options.rate = 0.35;
  }
  return options;
}

LibraryFit fit_kernel(LibraryKernel kernel, std::span<const Sample> samples,
                      const std::map<std::string, Device>& devices) {
  struct Fitted {
    const Device* device;
    std::vector<Row> rows;
    LibraryModel model;
  };
  std::map<std::string, std::vector<Fitted>> groups;  // by correction
  for (const auto& [name, device] : devices) {
    std::vector<Row> rows = rows_of(samples, device, kernel);
    if (rows.size() < kLeastRows) continue;
    LibraryModel model = fitted_constants(rows, {});
    groups[correction_name(kernel, device)].push_back({&device, std::move(rows), model});
  }
  LibraryFit out;
  out.kernel = kernel;
  for (auto& [name, members] : groups) {
    ResidualRows rows;
    for (const char* feature : features_of(kernel)) rows.names.emplace_back(feature);
    for (const Fitted& f : members) add_rows(f.rows, f.model, rows);
    auto residual = std::make_shared<Residual>(grow_residual(rows, options_of(kernel)));
    residual->name = name;
    residual->source = "gputwin calibrate: " + std::to_string(rows.x.size()) + " rows of " +
                       std::to_string(members.size()) + " devices";
    for (Fitted& f : members) {
      f.model.residual = residual;
      out.devices.emplace(f.device->name, family_fit(kernel, f.rows, f.model, name));
    }
    out.corrections.emplace(name, *residual);
  }
  return out;
}

}  // namespace

std::string correction_name(LibraryKernel kernel, const Device& device) {
  const std::string name = to_string(kernel);
  if (!by_architecture(kernel)) return name;
  // Blackwell parts with GDDR memory have other matrix units and kernels than those with HBM.
  const bool consumer = device.architecture == Architecture::Blackwell &&
                        device.memory_bandwidth.value < kLeastHbmOfBlackwell;
  return name + "_" + std::string(to_string(device.architecture)) + (consumer ? "_gddr" : "");
}

std::vector<LibraryFit> fit_libraries(std::span<const Sample> samples,
                                      const std::map<std::string, Device>& devices) {
  std::vector<LibraryFit> fits;
  for (std::size_t i = 0; i < kLibraryKernels; ++i) {
    LibraryFit fit = fit_kernel(static_cast<LibraryKernel>(i), samples, devices);
    if (!fit.devices.empty()) fits.push_back(std::move(fit));
  }
  return fits;
}

std::optional<FamilyFit> fit_library_constants(LibraryKernel kernel,
                                               std::span<const Sample> samples,
                                               const Device& start) {
  const std::vector<Row> rows = rows_of(samples, start, kernel);
  if (rows.size() < kLeastRows) return std::nullopt;
  const auto i = static_cast<std::size_t>(kernel);
  const LibraryModel model = fitted_constants(rows, start.library[i]);
  return family_fit(kernel, rows, model, start.correction[i]);
}

}  // namespace gputwin
