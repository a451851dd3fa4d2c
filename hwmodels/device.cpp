#include "hwmodels/device.h"

#include <array>

#include "hwmodels/kernels/gemm.h"
#include "sim/core/check.h"
#include "sim/core/error.h"

namespace gputwin {

namespace {

Seconds microseconds(double v) { return Seconds(v * 1e-6); }
BytesPerSecond gigabytes_per_second(double v) { return BytesPerSecond(v * 1e9); }
Bytes mebibytes(double v) { return Bytes(static_cast<std::int64_t>(v * 1048576.0)); }

constexpr std::array<std::string_view, kArchitectures> kArchitectureNames{
    "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"};

// Architectures of other makers, and the one whose kernels, collective tables and stack factors
// stand in for theirs: nothing of RCCL, ROCm or oneAPI was fitted.
constexpr std::array<std::pair<std::string_view, Architecture>, 5> kTransferred{
    {{"cdna", Architecture::Volta},
     {"cdna2", Architecture::Ampere},
     {"cdna3", Architecture::Hopper},
     {"cdna4", Architecture::Blackwell},
     {"xe2", Architecture::Ada}}};

Architecture architecture_of(const std::string& file, const std::string& name) {
  for (std::size_t i = 0; i < kArchitectures; ++i) {
    if (kArchitectureNames[i] == name) return static_cast<Architecture>(i);
  }
  for (const auto& [word, nearest] : kTransferred) {
    if (word == name) return nearest;
  }
  throw InputError(
      file, "/architecture", name, "is unknown",
      "nearest: " + nearest_name(name, {kArchitectureNames.begin(), kArchitectureNames.end()}));
}

void read_peaks(ConstantsFile& file, Device& device) {
  const auto set = [&](DType dtype, const char* key) {
    const std::string pointer = std::string("/peak/") + key + "_TFLOPS";
    device.peak[static_cast<std::size_t>(dtype)] =
        FlopsPerSecond(file.number_or(pointer, 0.0) * 1e12);
  };
  set(DType::F32, "fp32");
  set(DType::Tf32, "tf32");
  set(DType::F16, "fp16");
  set(DType::Bf16, "bf16");
  set(DType::F8, "fp8");
  set(DType::Mxf8, "mxfp8");
  set(DType::Nvf4, "nvfp4");
}

// One factor for all formats, and those of the formats that differ from it.
void read_sustained(ConstantsFile& file, Device& device) {
  device.sustained.fill(file.number("/sustained/compute_factor", Range::Fraction));
  const auto own = [&](DType dtype, const char* key) {
    double& factor = device.sustained[static_cast<std::size_t>(dtype)];
    factor = file.number_or(std::string("/sustained/") + key, factor, Range::Fraction);
  };
  own(DType::F32, "fp32_factor");
  own(DType::F8, "fp8_factor");
  own(DType::Mxf8, "mxfp8_factor");
  own(DType::Nvf4, "nvfp4_factor");
}

void read_format_rates(ConstantsFile& file, Device& device) {
  const auto set = [&](DType dtype, const char* key) {
    device.format_rate[static_cast<std::size_t>(dtype)] = file.number_or(key, 1.0, Range::Positive);
  };
  set(DType::F8, "/gemm/fp8_rate");
  set(DType::Mxf8, "/gemm/mxfp8_rate");
  set(DType::Nvf4, "/gemm/nvfp4_rate");
}

GemmParameters read_gemm(ConstantsFile& file, const std::string& at) {
  GemmParameters g;
  g.start_up = microseconds(file.number(at + "/start_up_us", Range::NotNegative));
  g.tile_efficiency = file.number(at + "/tile_efficiency", Range::Fraction);
  g.tile_saturation = file.number(at + "/tile_saturation");
  g.k_overhead = file.number(at + "/k_overhead", Range::NotNegative);
  g.memory_efficiency = file.number(at + "/memory_efficiency", Range::Fraction);
  g.norm_exponent = file.number(at + "/norm_exponent");
  g.split_cost = microseconds(file.number(at + "/split_cost_us", Range::NotNegative));
  g.nn_time = file.number(at + "/nn_time");
  g.nt_time = file.number(at + "/nt_time");
  if (file.has(at + "/correction")) g.correction = file.text(at + "/correction");
  if (file.has(at + "/narrow_correction")) {
    g.narrow_correction = file.text(at + "/narrow_correction");
  }
  for (const Constant& c : file.constants()) {
    if (c.pointer == at + "/tile_efficiency") g.transferred = c.kind == Evidence::Assumed;
  }
  return g;
}

AttentionParameters read_attention(ConstantsFile& file) {
  AttentionParameters a;
  const auto rate = [&](AttentionKernel kernel, const std::string& key) {
    const std::string at = "/attention/" + key;
    a.kernels[static_cast<std::size_t>(kernel)] = {
        FlopsPerSecond(file.number_or(at + "_forward_TFLOPS", 0.0) * 1e12),
        FlopsPerSecond(file.number_or(at + "_backward_TFLOPS", 0.0) * 1e12)};
  };
  rate(AttentionKernel::Flash1, "flash1");
  rate(AttentionKernel::Flash2, "flash2");
  rate(AttentionKernel::Flash3, "flash3");
  rate(AttentionKernel::Cudnn, "cudnn");
  a.small_head_rate = file.number("/attention/small_head_rate", Range::Fraction);
  a.misaligned_head_time = file.number("/attention/misaligned_head_time");
  a.start_up = microseconds(file.number("/attention/start_up_us", Range::NotNegative));
  return a;
}

MemoryBoundParameters read_memory_bound(ConstantsFile& file) {
  MemoryBoundParameters m;
  const std::string at = "/memory_bound/";
  m.start_up = microseconds(file.number(at + "start_up_us", Range::NotNegative));
  m.elementwise = file.number(at + "elementwise_efficiency", Range::Fraction);
  m.norm = file.number(at + "norm_efficiency", Range::Fraction);
  m.softmax = file.number(at + "softmax_efficiency", Range::Fraction);
  m.reduction = file.number(at + "reduction_efficiency", Range::Fraction);
  m.gather = file.number(at + "gather_efficiency", Range::Fraction);
  m.optimizer = file.number(at + "optimizer_efficiency", Range::Fraction);
  return m;
}

NvLinkParameters read_nvlink(ConstantsFile& file) {
  NvLinkParameters n;
  n.ll_latency = file.number("/nccl/ll_latency_factor");
  n.ll128_latency = file.number_or("/nccl/ll128_latency_factor", 1.0, Range::Positive);
  n.simple_latency = file.number("/nccl/simple_latency_factor");
  if (!file.has("/nvlink")) return n;
  n.nominal = gigabytes_per_second(file.number("/nvlink/per_gpu_GBps"));
  n.ring_bus = gigabytes_per_second(file.number("/nvlink/ring_bus_GBps"));
  n.ll128_bus = gigabytes_per_second(file.number("/nvlink/ll128_bus_GBps"));
  n.point_to_point = gigabytes_per_second(file.number("/nvlink/point_to_point_GBps"));
  n.nvls_bus = gigabytes_per_second(file.number_or("/nvlink/nvls_bus_GBps", 0.0));
  return n;
}

void read_library(ConstantsFile& file, Device& device) {
  for (std::size_t i = 0; i < kLibraryKernels; ++i) {
    const std::string at = std::string("/library/") + to_string(static_cast<LibraryKernel>(i));
    if (!file.has(at)) continue;
    LibraryModel& model = device.library[i];
    model.start_up = microseconds(file.number(at + "/start_up_us"));
    model.compute_efficiency = file.number(at + "/compute_efficiency");
    model.memory_efficiency = file.number(at + "/memory_efficiency");
    if (file.has(at + "/correction")) device.correction[i] = file.text(at + "/correction");
  }
}

DeviceMemoryParameters read_memory(ConstantsFile& file) {
  DeviceMemoryParameters m;
  m.context = mebibytes(file.number("/device_memory/context_MiB", Range::NotNegative));
  m.per_communicator =
      mebibytes(file.number("/device_memory/per_communicator_MiB", Range::NotNegative));
  m.workspace = mebibytes(file.number("/device_memory/workspace_MiB", Range::NotNegative));
  return m;
}

}  // namespace

std::string_view to_string(Architecture architecture) {
  return kArchitectureNames[static_cast<std::size_t>(architecture)];
}

DType Device::compute_format(DType dtype) const {
  const auto first = [&](std::initializer_list<DType> order) {
    for (DType d : order) {
      if (peak[static_cast<std::size_t>(d)].value > 0) return d;
    }
    return DType::F32;
  };
  switch (dtype) {
    case DType::Nvf4: return first({DType::Nvf4, DType::F8, DType::F16});
    case DType::Mxf8: return first({DType::Mxf8, DType::F8, DType::F16});
    case DType::F8: return first({DType::F8, DType::F16});
    // GPUs before Ampere multiply bf16 in fp32.
    case DType::Bf16: return first({DType::Bf16});
    case DType::F16: return first({DType::F16});
    case DType::Tf32: return first({DType::Tf32});
    case DType::F32:
    case DType::I64:
    case DType::I32:
    case DType::U8: return DType::F32;
  }
  return DType::F32;
}

FlopsPerSecond Device::dense_peak(DType dtype) const {
  return peak[static_cast<std::size_t>(compute_format(dtype))];
}

FlopsPerSecond Device::sustained_rate(DType dtype) const {
  const auto format = static_cast<std::size_t>(compute_format(dtype));
  return FlopsPerSecond(peak[format].value * sustained[format]);
}

Device load_device(const std::filesystem::path& path) {
  ConstantsFile file(path);
  Device device;
  device.name = file.text("/name");
  if (device.name != path.stem().string()) {
    throw InputError(path.string(), "/name", device.name, "is not the file's name",
                     "write " + path.stem().string());
  }
  device.architecture = architecture_of(path.string(), file.text("/architecture"));
  device.sms = static_cast<std::int32_t>(file.number("/sms"));
  device.clock_MHz = file.number("/clock_MHz");
  device.power_limit_W = file.number_or("/power_limit_W", 0.0, Range::Positive);
  device.exponentials_per_clock = file.number_or("/exponentials_per_clock", 16.0, Range::Positive);
  read_peaks(file, device);
  if (device.peak[static_cast<std::size_t>(DType::F32)].value <= 0)
    file.number("/peak/fp32_TFLOPS");
  device.memory = mebibytes(file.number("/hbm/capacity_GiB") * 1024.0);
  device.memory_bandwidth = gigabytes_per_second(file.number("/hbm/bandwidth_GBps"));
  device.l2 = mebibytes(file.number("/l2_MiB"));
  read_sustained(file, device);
  device.gemm = read_gemm(file, "/gemm");
  if (file.has("/gemm_fp32")) device.gemm_fp32 = read_gemm(file, "/gemm_fp32");
  read_format_rates(file, device);
  device.attention = read_attention(file);
  device.attention.sustained =
      file.number_or("/sustained/attention_factor",
                     device.sustained[static_cast<std::size_t>(DType::F16)], Range::Fraction);
  device.memory_bound = read_memory_bound(file);
  device.nvlink = read_nvlink(file);
  device.interference.compute_slowdown = file.number("/interference/compute_slowdown");
  device.interference.collective_sms =
      file.number("/interference/collective_sms", Range::NotNegative);
  device.device_memory = read_memory(file);
  read_library(file, device);
  file.finish();
  device.constants = file.constants();
  return device;
}

void attach_gemm_corrections(Device& device, const std::filesystem::path& folder) {
  const auto gemm = [&](const std::string& name, std::shared_ptr<const Residual>& residual) {
    if (!name.empty()) residual = load_residual(folder / (name + ".json"), gemm_features());
  };
  gemm(device.gemm.correction, device.gemm.residual);
  gemm(device.gemm.narrow_correction, device.gemm.narrow_residual);
  if (device.gemm_fp32) gemm(device.gemm_fp32->correction, device.gemm_fp32->residual);
}

void attach_corrections(Device& device, const std::filesystem::path& folder) {
  attach_gemm_corrections(device, folder);
  for (std::size_t i = 0; i < kLibraryKernels; ++i) {
    if (device.correction[i].empty()) continue;
    device.library[i].residual = load_residual(folder / (device.correction[i] + ".json"),
                                               features_of(static_cast<LibraryKernel>(i)));
  }
}

std::vector<std::string> list_devices(const std::filesystem::path& directory) {
  return list_json_names(directory);
}

}  // namespace gputwin
