#include "validation/ops/fit_collectives.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "hwmodels/calibrate/collectives_fit.h"
#include "sim/core/error.h"
#include "sim/core/spelling.h"
#include "validation/ops/collective_rows.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kLarge = 1 << 30;
// From this size on NCCL reduces in the switch (Hopper and later, more than four GPUs): the tables
// that name the algorithm switch at 2 MiB.
constexpr double kNvlsFrom = 1.5 * (1 << 20);
constexpr int kNvlsRanks = 5;

struct Curve {
  OpKind kind = OpKind::AllReduce;
  std::int32_t nodes = 1, ranks = 2;
  bool operator<(const Curve& o) const {
    return std::tie(kind, nodes, ranks) < std::tie(o.kind, o.nodes, o.ranks);
  }
};

double rounded(double v) {
  if (v == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(v))) - 5);
  return std::stod(std::to_string(std::round(v / unit) * unit));
}

// Systems of one node whose device has curves of its own.
std::string device_curves(const CollectiveRow& row) {
  static const std::map<std::string, std::string> systems{
      {"dgxc_h100", "curves/h100-sxm-80gb"},  {"xxrjun_cluster01", "curves/h100-sxm-80gb"},
      {"stas_h200", "curves/h200-sxm-141gb"}, {"stas_a100", "curves/a100-sxm-80gb"},
      {"oci_b300", "curves/b300-sxm"},        {"oci_gb200", "curves/gb200"}};
  const auto found = systems.find(row.system);
  if (found == systems.end() || row.nodes != 1 || row.bytes < kLarge) return "";
  return collective_kind(row.collective) == OpKind::SendTo ? "" : found->second;
}

bool reduces_in_switch(const std::string& file, const Curve& curve) {
  if (curve.kind != OpKind::AllReduce || curve.ranks / curve.nodes < kNvlsRanks) return false;
  for (const char* part : {"h100", "h200", "b200", "b300", "gb300"}) {
    if (file.find(part) != std::string::npos && file.find("pairwise") == std::string::npos)
      return true;
  }
  return false;
}

// Which algorithm and protocol a piece is, reconstructed: no table names them. By size NCCL goes
// from LL over LL128 to Simple.
Json words_of(const std::string& file, const Curve& curve, std::size_t piece, std::size_t pieces,
              double upto) {
  const bool direct = curve.kind == OpKind::AllToAll || curve.kind == OpKind::SendTo;
  const bool last = piece + 1 == pieces;
  const bool nvls = reduces_in_switch(file, curve) && (upto > kNvlsFrom || (last && upto > 4096));
  const bool tree = curve.kind == OpKind::AllReduce && curve.nodes > 1 && !last;
  const Algorithm algorithm = nvls     ? Algorithm::NvLink
                              : direct ? Algorithm::Direct
                              : tree   ? Algorithm::Tree
                                       : Algorithm::Ring;
  const bool wide = !direct && pieces > 2;
  const Protocol protocol = nvls || last                  ? Protocol::Simple
                            : piece == 0                  ? Protocol::LL
                            : wide && piece + 2 == pieces ? Protocol::LL128
                                                          : Protocol::LL;
  return Json::array({to_string(algorithm), to_string(protocol)});
}

Json curve_json(const std::string& file, const Curve& curve,
                const std::vector<CurveSample>& samples) {
  const CurveFit fit = fit_curve(samples);
  double first = samples.front().bytes, last = first;
  for (const CurveSample& s : samples) {
    first = std::min(first, s.bytes), last = std::max(last, s.bytes);
  }
  Json out;
  out["collective"] = to_string(curve.kind);
  out["nodes"] = curve.nodes;
  out["ranks"] = curve.ranks;
  out["first_bytes"] = first;
  out["last_bytes"] = last;
  out["low"] = rounded(fit.low);
  out["high"] = rounded(fit.high);
  out["rows"] = samples.size();
  out["error_in"] = std::round(fit.error_in * 1e4) / 1e4;
  out["error_out"] = std::round(fit.error_out * 1e4) / 1e4;
  for (std::size_t i = 0; i < fit.pieces.size(); ++i) {
    const FittedPiece& p = fit.pieces[i];
    Json row = words_of(file, curve, i, fit.pieces.size(), p.upto);
    row.push_back(p.from);
    row.push_back(p.upto);
    row.push_back(rounded(p.start_us));
    row.push_back(rounded(p.ramp_us));
    row.push_back(p.ramp_us > 0 ? p.half_bytes : 0.0);
    row.push_back(p.us_per_byte > 0 ? rounded(1e-3 / p.us_per_byte) : 0.0);
    out["pieces"].push_back(row);
  }
  return out;
}

std::string source_of(const std::string& file) {
  if (file.starts_with("curves/"))
    return "operator tables, NCCL all_reduce, all_gather, reduce_scatter and alltoall of "
           "nccl-tests in one node (AIConfigurator; 1 GiB and more: DGX Cloud, xxrjun, "
           "ml-engineering, "
           "OCI); algorithms and protocols reconstructed";
  return "operator tables, collectives of the system " + file.substr(9) +
         "; algorithms and protocols reconstructed";
}

}  // namespace

std::map<std::string, std::string> fit_collectives(std::span<const Sample> samples) {
  std::map<std::string, std::map<Curve, std::vector<CurveSample>>> groups;
  for (const Sample& m : samples) {
    const auto* row = std::get_if<CollectiveRow>(&m.query);
    if (row == nullptr || is_test(m) || m.time.value <= 0 || row->bytes <= 0) continue;
    const Curve curve{collective_kind(row->collective), row->nodes, row->ranks};
    const CurveSample sample{row->bytes, bus_bytes(curve.kind, row->bytes, curve.ranks),
                             m.time.value * 1e6};
    // The published send/receive table of this system is a copy of the A100 one.
    if (row->system == "vidur-h100_pairwise_nvlink" && curve.kind == OpKind::SendTo) {
      groups["networks/vidur-a100-pairwise-nvlink"][curve].push_back(sample);
    }
    if (row->system.ends_with("_nvls")) continue;  // one size each, algorithms forced
    groups[curves_of(*row)][curve].push_back(sample);
    if (const std::string device = device_curves(*row); !device.empty()) {
      groups[device][curve].push_back(sample);
    }
  }
  std::map<std::string, std::string> files;
  for (const auto& [file, curves] : groups) {
    Json json;
    json["source"] = source_of(file);
    json["curves"] = Json::array();
    for (const auto& [curve, samples] : curves) {
      json["curves"].push_back(curve_json(file, curve, samples));
    }
    // One curve a line: a diff shows which one changed.
    std::string text = "{\n \"source\": " + json["source"].dump() + ",\n";
    // The VM with bridged A100 pairs was not measured beyond sends; its sister with H100 was.
    if (file == "networks/vidur-a100-pairwise-nvlink")
      text += " \"like\": \"vidur-h100-pairwise-nvlink\",\n";
    text += " \"curves\": [\n";
    for (std::size_t i = 0; i < json["curves"].size(); ++i) {
      text += "  " + json["curves"][i].dump() + (i + 1 < json["curves"].size() ? ",\n" : "\n");
    }
    files[file] = text + " ]\n}\n";
  }
  return files;
}

}  // namespace gputwin
