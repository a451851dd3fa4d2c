// One GPU type with every constant its models use. Data lies in hwmodels/devices/*.json, where each
// number has a source and a kind; DESIGN 3.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hwmodels/collectives/curves.h"
#include "hwmodels/constants_file.h"
#include "hwmodels/kernels/library.h"
#include "hwmodels/kernels/residual.h"
#include "sim/core/job.h"
#include "sim/core/units.h"

namespace gputwin {

enum class Architecture : std::uint8_t {
  Maxwell,
  Pascal,
  Volta,
  Turing,
  Ampere,
  Ada,
  Hopper,
  Blackwell
};

inline constexpr std::size_t kArchitectures = 8;

/// The word of data files: "ampere", …
std::string_view to_string(Architecture architecture);

/// Parameters of the GEMM model (kernels/gemm.h).
struct GemmParameters {
  Seconds start_up{};              // t0: ramp-up and drain of one kernel
  double tile_efficiency = 0.0;    // e0: share of the peak a very large tile reaches
  double tile_saturation = 0.0;    // c: how fast the efficiency grows with the tile
  double k_overhead = 0.0;         // k0: prologue and epilogue of a tile, in steps of k
  double memory_efficiency = 0.0;  // em: usable share of the HBM bandwidth
  double norm_exponent = 1.0;      // p: how compute and memory time combine
  Seconds split_cost{};            // reduction after split-K
  // Time factor of the data-gradient layout (neither operand transposed).
  double nn_time = 1.0;
  double nt_time = 1.0;  // time factor of the weight-gradient layout
  // Learned corrections, of 16- and 32-bit operands and of narrower ones: names of
  // hwmodels/residuals, or empty; loaded by attach_corrections. None: the physical model alone.
  std::string correction, narrow_correction;
  std::shared_ptr<const Residual> residual, narrow_residual;
  bool transferred = false;  // no multiplication was measured on this device: wider interval
};

/// Sustained matrix rates of one fused attention kernel, full-sequence causal training shapes, head
/// size 128.
struct AttentionRate {
  FlopsPerSecond forward{}, backward{};  // 0: this kernel does not run on this device
};

struct AttentionParameters {
  std::array<AttentionRate, 5> kernels{};  // indexed by AttentionKernel; Unfused is unused
  double sustained = 1.0;                  // as Device::sustained, of the fused kernels
  double small_head_rate = 1.0;            // factor on the rate for head sizes of 64 and less
  // Unfused: time factor if the head size is no multiple of 8.
  double misaligned_head_time = 1.0;
  Seconds start_up{};
};

/// Memory-bound kernels: t0 and the usable share of the HBM bandwidth by kind of access.
struct MemoryBoundParameters {
  Seconds start_up{};
  double elementwise = 0, norm = 0, softmax = 0, reduction = 0, gather = 0, optimizer = 0;
};

/// NCCL on this device's NVLink. Rates are bus bandwidths measured at `nominal` per GPU and
/// direction and scale with the cluster's NVLink bandwidth.
struct NvLinkParameters {
  BytesPerSecond nominal{};         // 0: no NVLink
  BytesPerSecond ring_bus{};        // ring, Simple protocol, large messages
  BytesPerSecond ll128_bus{};       // ring, LL128 protocol
  BytesPerSecond point_to_point{};  // one GPU to another
  BytesPerSecond nvls_bus{};        // in-switch reduction, all-reduce; 0: not supported
  double ll_latency = 1.0;          // factors on NCCL's latency constants
  double ll128_latency = 1.0;
  double simple_latency = 1.0;
};

struct InterferenceParameters {
  double compute_slowdown = 1.0;  // of kernels while a collective runs on the same GPU
  double collective_sms = 0.0;    // SMs a collective occupies
};

struct DeviceMemoryParameters {
  Bytes context{};           // CUDA context, modules and libraries
  Bytes per_communicator{};  // NCCL buffers of one communicator of two or more ranks
  Bytes workspace{};         // matrix libraries, inside the allocator
};

struct Device {
  std::string name;
  Architecture architecture = Architecture::Ampere;
  std::int32_t sms = 0;
  double clock_MHz = 0.0;
  double power_limit_W = 0.0;  // 0: not known
  double exponentials_per_clock = 16.0;   // of one SM
  std::array<FlopsPerSecond, 10> peak{};  // dense, indexed by DType; 0: not supported
  Bytes memory{};
  BytesPerSecond memory_bandwidth{};
  Bytes l2{};
  /// Rate in a training run over the rate in a short benchmark, indexed by DType: clocks fall under
  /// the power limit, and 8- and 4-bit multiplications reach less of their peak.
  std::array<double, 10> sustained{1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  /// Rate of the best multiplication of a format over that of the 16-bit ones, each by its peak, in
  /// short benchmarks; indexed by DType.
  std::array<double, 10> format_rate{1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  GemmParameters gemm{};
  std::optional<GemmParameters> gemm_fp32;  // without matrix units, where a table measured it
  AttentionParameters attention{};
  MemoryBoundParameters memory_bound{};
  NvLinkParameters nvlink{};
  CollectiveCurves collectives;  // measured by nccl-tests in one node; empty unless attached
  InterferenceParameters interference{};
  DeviceMemoryParameters device_memory{};
  /// Kernels of libraries by kind; those without constants are not known. Corrections are not
  /// loaded with the device but by attach_corrections.
  std::array<LibraryModel, kLibraryKernels> library{};
  std::array<std::string, kLibraryKernels> correction{};  // names of hwmodels/residuals, or empty
  std::vector<Constant> constants;                        // all of the above with source and kind

  /// Dense peak of a compute dtype; the next wider supported format if the device lacks it
  /// (emulated types).
  FlopsPerSecond dense_peak(DType dtype) const;
  /// The format `dtype` is multiplied in: itself, or the one that emulates it.
  DType compute_format(DType dtype) const;
  /// dense_peak times the sustained factor of the format it is multiplied in.
  FlopsPerSecond sustained_rate(DType dtype) const;
};

/// Reads `path`. Throws InputError with file, JSON pointer, value and what would be right.
Device load_device(const std::filesystem::path& path);

/// Loads the corrections that `device` names from `folder` (hwmodels/residuals): of matrix products
/// alone, which training plans need, or of library kernels too.
void attach_gemm_corrections(Device& device, const std::filesystem::path& folder);
void attach_corrections(Device& device, const std::filesystem::path& folder);

/// Names of the devices in `directory` (hwmodels/devices), sorted.
std::vector<std::string> list_devices(const std::filesystem::path& directory);

}  // namespace gputwin
