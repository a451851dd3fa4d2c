#include "hwmodels/collectives/curves.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/core/error.h"
#include "sim/core/spelling.h"

namespace gputwin {
namespace {

using Json = nlohmann::json;

constexpr double kFarthestCount = 2.0;  // times the largest measured count of ranks or nodes
constexpr double kDefaultPower = 0.5;   // of the start-up over the count, with one curve alone
// Counts that were not measured are less sure.
constexpr double kOtherCountLow = 0.85, kOtherCountHigh = 1.15;

CurvePoint point_on(const CollectiveCurve& curve, const CurvePiece& piece, double bytes,
                    double scale) {
  CurvePoint point;
  const double half = static_cast<double>(piece.half.value);
  const double ramp = half > 0 ? piece.ramp.value * bytes / (bytes + half) : 0.0;
  point.latency = Seconds(piece.start.value + ramp);
  if (piece.bus.value > 0) {
    point.transfer = Seconds(bus_bytes(curve.kind, bytes, curve.ranks) / (piece.bus.value * scale));
  }
  point.algorithm = piece.algorithm;
  point.protocol = piece.protocol;
  point.low = curve.low, point.high = curve.high;
  return point;
}

// Time, and the share of transfer in it, on a logarithmic line between two points.
CurvePoint between(const CurvePoint& a, const CurvePoint& b, double share) {
  CurvePoint out = share < 0.5 ? a : b;
  const double time =
      std::exp((1 - share) * std::log(a.time().value) + share * std::log(b.time().value));
  const double part =
      (1 - share) * a.transfer.value / a.time().value + share * b.transfer.value / b.time().value;
  out.transfer = Seconds(time * part);
  out.latency = Seconds(time * (1 - part));
  out.low = std::min(a.low, b.low), out.high = std::max(a.high, b.high);
  return out;
}

CurvePoint point_at(const CollectiveCurve& curve, double bytes, double scale) {
  const auto size = [](Bytes b) { return static_cast<double>(b.value); };
  const std::vector<CurvePiece>& pieces = curve.pieces;
  std::size_t i = 0;
  while (i + 1 < pieces.size() && bytes > size(pieces[i].upto)) ++i;
  CurvePoint point = point_on(curve, pieces[i], bytes, scale);
  const double to = size(pieces[i].from);
  if (i > 0 && bytes < to) {
    const double from = size(pieces[i - 1].upto);
    point =
        between(point_on(curve, pieces[i - 1], from, scale), point_on(curve, pieces[i], to, scale),
                std::log(bytes / from) / std::log(to / from));
  }
  point.extrapolated = bytes < size(curve.first) / 2 || bytes > size(curve.last) * 2;
  return point;
}

// Curves of one kind, sorted by a count: ranks inside a node, nodes across.
struct Family {
  std::vector<const CollectiveCurve*> curves;
  bool across = false;
  double count(const CollectiveCurve& c) const { return across ? c.nodes : c.ranks; }
};

// Across nodes: those with the number of ranks per node nearest to the wanted one.
Family family_of(const CollectiveCurves& all, OpKind kind, std::int32_t nodes, std::int32_t ranks) {
  Family family;
  family.across = nodes > 1;
  const double wanted = static_cast<double>(ranks) / nodes;
  double nearest = 1e9;
  for (const CollectiveCurve& c : all.curves) {
    if (c.kind != kind || (c.nodes > 1) != family.across) continue;
    const double off =
        family.across ? std::abs(std::log(static_cast<double>(c.ranks) / c.nodes / wanted)) : 0.0;
    if (off < nearest - 1e-9) family.curves.clear(), nearest = off;
    if (off <= nearest + 1e-9) family.curves.push_back(&c);
  }
  std::sort(family.curves.begin(), family.curves.end(),
            [&](const auto* a, const auto* b) { return family.count(*a) < family.count(*b); });
  return family;
}

// Beyond the measured counts: start-up by a power law, bus traffic at the bandwidth of `near`.
CurvePoint beyond(const CurvePoint& near, const CurvePoint* other, double near_count,
                  double other_count, double count, double traffic) {
  double power = kDefaultPower;
  if (other && other_count != near_count && other->latency.value > 0 && near.latency.value > 0) {
    power =
        std::log(near.latency.value / other->latency.value) / std::log(near_count / other_count);
  }
  power = std::clamp(power, 0.0, 1.0);
  CurvePoint out = near;
  out.latency = near.latency * std::pow(count / near_count, power);
  out.transfer = near.transfer * traffic;
  out.extrapolated = true;
  return out;
}

}  // namespace

bool CollectiveCurves::has(OpKind kind, bool across_nodes) const {
  return std::any_of(curves.begin(), curves.end(), [&](const CollectiveCurve& c) {
    return c.kind == kind && (c.nodes > 1) == across_nodes;
  });
}

double bus_bytes(OpKind kind, double bytes, double ranks) {
  if (kind == OpKind::AllReduce) return 2.0 * (ranks - 1.0) / ranks * bytes;
  const bool parts =
      kind == OpKind::AllGather || kind == OpKind::ReduceScatter || kind == OpKind::AllToAll;
  return parts ? (ranks - 1.0) / ranks * bytes : bytes;
}

std::optional<CurvePoint> evaluate(const CollectiveCurves& curves, OpKind kind, std::int32_t nodes,
                                   std::int32_t ranks, double bytes, double scale) {
  if (kind == OpKind::RecvFrom) kind = OpKind::SendTo;
  const Family family = family_of(curves, kind, nodes, ranks);
  if (family.curves.empty()) return std::nullopt;
  const double count = family.across ? nodes : ranks;
  const auto at = [&](std::size_t i) { return point_at(*family.curves[i], bytes, scale); };
  const auto counted = [&](std::size_t i) { return family.count(*family.curves[i]); };
  const std::size_t last = family.curves.size() - 1;
  std::size_t above = 0;
  while (above <= last && counted(above) < count) ++above;
  if (above <= last && counted(above) == count && family.curves[above]->ranks == ranks) {
    return at(above);
  }
  CurvePoint out;
  if (above > 0 && above <= last) {
    const double share =
        std::log(count / counted(above - 1)) / std::log(counted(above) / counted(above - 1));
    out = between(at(above - 1), at(above), share);
  } else {
    const std::size_t near = above == 0 ? 0 : last;
    if (count > counted(near) * kFarthestCount && !family.across) return std::nullopt;
    const CollectiveCurve& curve = *family.curves[near];
    const CurvePoint here = at(near);
    const double traffic =
        here.algorithm == Algorithm::NvLink
            ? 1.0
            : bus_bytes(kind, bytes, ranks) / bus_bytes(kind, bytes, curve.ranks);
    CurvePoint second;
    if (last > 0) second = at(above == 0 ? 1 : last - 1);
    out = beyond(here, last > 0 ? &second : nullptr, counted(near),
                 last > 0 ? counted(above == 0 ? 1 : last - 1) : 0.0, count, traffic);
  }
  out.low *= kOtherCountLow, out.high *= kOtherCountHigh;
  return out;
}

namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& pointer,
                       const std::string& value, const std::string& problem,
                       const std::string& fix) {
  throw InputError(path.string(), pointer, value, problem, fix);
}

double positive(const std::filesystem::path& path, const Json& at, const std::string& pointer,
                const char* key) {
  const auto found = at.find(key);
  if (found == at.end() || !found->is_number() || !(found->get<double>() > 0)) {
    fail(path, pointer + "/" + key, found == at.end() ? "" : found->dump(), "is no positive number",
         "as in the other curves of this folder");
  }
  return found->get<double>();
}

template <typename Enum>
Enum word(const std::filesystem::path& path, const Json& at, const std::string& pointer) {
  const std::string text = at.is_string() ? at.get<std::string>() : at.dump();
  const auto value = from_string<Enum>(text);
  if (!value) fail(path, pointer, text, "is unknown", "see the other curves of this folder");
  return *value;
}

CurvePiece read_piece(const std::filesystem::path& path, const Json& row,
                      const std::string& pointer) {
  if (!row.is_array() || row.size() != 8) {
    fail(path, pointer, row.dump(), "is no piece",
         "write [algorithm, protocol, from_bytes, upto_bytes, start_us, ramp_us, half_bytes, "
         "bus_GBps]");
  }
  CurvePiece piece;
  piece.algorithm = word<Algorithm>(path, row[0], pointer + "/0");
  piece.protocol = word<Protocol>(path, row[1], pointer + "/1");
  for (std::size_t i = 2; i < row.size(); ++i) {
    if (row[i].is_number() && row[i].get<double>() >= 0) continue;
    fail(path, pointer + "/" + std::to_string(i), row[i].dump(), "is no number of 0 or more",
         "give bytes, microseconds or GB/s");
  }
  piece.from = Bytes(static_cast<std::int64_t>(row[2].get<double>()));
  piece.upto = Bytes(static_cast<std::int64_t>(row[3].get<double>()));
  piece.start = Seconds(row[4].get<double>() * 1e-6);
  piece.ramp = Seconds(row[5].get<double>() * 1e-6);
  piece.half = Bytes(static_cast<std::int64_t>(row[6].get<double>()));
  piece.bus = BytesPerSecond(row[7].get<double>() * 1e9);
  if (piece.start.value + piece.ramp.value + piece.bus.value <= 0) {
    fail(path, pointer, row.dump(), "gives no time", "state a start-up or a bandwidth");
  }
  return piece;
}

CollectiveCurve read_curve(const std::filesystem::path& path, const Json& at,
                           const std::string& pointer) {
  CollectiveCurve curve;
  curve.kind = word<OpKind>(path, at.value("collective", Json("")), pointer + "/collective");
  curve.nodes = static_cast<std::int32_t>(positive(path, at, pointer, "nodes"));
  curve.ranks = static_cast<std::int32_t>(positive(path, at, pointer, "ranks"));
  curve.first = Bytes(static_cast<std::int64_t>(positive(path, at, pointer, "first_bytes")));
  curve.last = Bytes(static_cast<std::int64_t>(positive(path, at, pointer, "last_bytes")));
  curve.low = positive(path, at, pointer, "low");
  curve.high = positive(path, at, pointer, "high");
  const Json pieces = at.value("pieces", Json::array());
  if (!pieces.is_array() || pieces.empty()) {
    fail(path, pointer + "/pieces", "", "are missing", "give at least one piece");
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    curve.pieces.push_back(read_piece(path, pieces[i], pointer + "/pieces/" + std::to_string(i)));
  }
  if (curve.ranks < 2 || curve.ranks < curve.nodes) {
    fail(path, pointer + "/ranks", std::to_string(curve.ranks), "are too few",
         "at least two, and one on each node");
  }
  return curve;
}

// What `explain` shows: start-up and bandwidth of each piece.
void remember(const CollectiveCurve& curve, const std::string& source, Evidence evidence,
              std::vector<Constant>& constants) {
  for (std::size_t i = 0; i < curve.pieces.size(); ++i) {
    const CurvePiece& piece = curve.pieces[i];
    const std::string at = "/collectives/" + std::string(to_string(curve.kind)) + "_" +
                           std::to_string(curve.nodes) + "_nodes_" + std::to_string(curve.ranks) +
                           "_ranks/" + std::to_string(i) + "/";
    constants.push_back({at + "start_us", piece.start.value * 1e6, source, evidence});
    constants.push_back({at + "ramp_us", piece.ramp.value * 1e6, source, evidence});
    constants.push_back({at + "bus_GBps", piece.bus.value * 1e-9, source, evidence});
  }
}

CollectiveCurves load(const std::filesystem::path& path, int depth) {
  CollectiveCurves out;
  std::ifstream in(path);
  if (!in) return out;
  Json json;
  try {
    json = Json::parse(in);
  } catch (const Json::parse_error& e) {
    fail(path, "", "", std::string("is no JSON: ") + e.what(), "repair the file");
  }
  const std::string source = json.value("source", "");
  if (!json.is_object() || source.empty()) {
    fail(path, "/source", "", "is missing", "say where the curves were measured");
  }
  std::set<std::pair<OpKind, std::pair<std::int32_t, std::int32_t>>> own;
  const Json curves = json.value("curves", Json::array());
  for (std::size_t i = 0; i < curves.size(); ++i) {
    CollectiveCurve curve = read_curve(path, curves[i], "/curves/" + std::to_string(i));
    own.insert({curve.kind, {curve.nodes, curve.ranks}});
    remember(curve, source, Evidence::Fitted, out.constants);
    out.curves.push_back(std::move(curve));
  }
  const std::string like = json.value("like", "");
  if (like.empty()) return out;
  const std::filesystem::path base = path.parent_path() / (like + ".json");
  if (depth > 3 || !std::filesystem::exists(base)) {
    fail(path, "/like", like, depth > 3 ? "goes in circles" : "is no file",
         "name a file of this folder");
  }
  for (CollectiveCurve& curve : load(base, depth + 1).curves) {
    if (own.contains({curve.kind, {curve.nodes, curve.ranks}})) continue;
    curve.low *= kOtherCountLow, curve.high *= kOtherCountHigh;
    remember(curve, "as " + like + ": " + source, Evidence::Assumed, out.constants);
    out.curves.push_back(std::move(curve));
  }
  return out;
}

}  // namespace

CollectiveCurves load_collective_curves(const std::filesystem::path& path) { return load(path, 0); }

}  // namespace gputwin
