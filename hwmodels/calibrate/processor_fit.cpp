#include "hwmodels/calibrate/processor_fit.h"

#include <algorithm>
#include <boost/math/tools/minima.hpp>
#include <cmath>
#include <functional>
#include <map>

#include "sim/core/error.h"
#include "sim/core/median.h"
#include "sim/core/spelling.h"

namespace gputwin {

namespace {

constexpr std::size_t kFewestProducts = 8;  // rows of a layout, for four constants
constexpr double kBinsPerOctave = 2.0;
constexpr std::size_t kFewestOfFactor = 2;  // rows of a bin, or it says nothing
constexpr double kNoPart = 1e9;             // GB/s: a part that takes no time

bool kept_out(const std::string& shape) {
  std::uint64_t hash = 1469598103934665603ull;  // FNV-1a
  for (const char c : shape) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash % 5 == 0;
}

std::string file_name(const CsvTable& table) {
  const std::size_t slash = table.file().find_last_of('/');
  return slash == std::string::npos ? table.file() : table.file().substr(slash + 1);
}

double positive(const CsvTable& table, std::size_t row, const char* column) {
  const double value = table.number(row, column);
  if (!(value > 0)) table.fail(row, column, "is not above 0", "measure again");
  return value;
}

struct ProductRow {
  ProductShape shape;
  double time = 0;
  bool test = false;
};

struct CurveRow {
  double size = 0, time = 0;
  bool test = false;
  double rows = 0;  // of softmax
};

struct Rows {
  std::map<std::string, std::vector<ProductRow>> products;
  std::map<std::string, std::vector<CurveRow>> operators, collectives, copies;
  std::map<std::string, std::vector<double>> machine;
  std::map<std::string, std::string> table_of;  // group, "products/gemm_nt"
};

void read_product_rows(const CsvTable& t, Rows& rows) {
  for (std::size_t r = 0; r < t.rows(); ++r) {
    ProductRow row;
    row.shape.batch = static_cast<double>(t.extent(r, "batch"));
    row.shape.m = static_cast<double>(t.extent(r, "m"));
    row.shape.n = static_cast<double>(t.extent(r, "n"));
    row.shape.k = static_cast<double>(t.extent(r, "k"));
    row.shape.accumulate = t.number_or(r, "accumulate", 0) != 0;
    row.time = positive(t, r, "time_us") * 1e-6;
    row.test = kept_out(t.text(r, "batch") + "," + t.text(r, "m") + "," + t.text(r, "n") + "," +
                        t.text(r, "k"));
    rows.products[t.text(r, "op")].push_back(row);
    rows.table_of["products/" + t.text(r, "op")] = file_name(t);
  }
}

void read_curve_rows(const CsvTable& t, const char* name, const char* size, const char* group,
                     std::map<std::string, std::vector<CurveRow>>& into, Rows& rows) {
  for (std::size_t r = 0; r < t.rows(); ++r) {
    const std::string& key = t.text(r, name);
    into[key].push_back({positive(t, r, size), positive(t, r, "time_us") * 1e-6,
                         kept_out(key + t.text(r, size) + t.text(r, "cols")), 0.0});
    const auto kind = from_string<OpKind>(key.substr(0, key.find('.')));
    if (kind && works_by_row(*kind)) into[key].back().rows = positive(t, r, "rows");
    rows.table_of[std::string(group) + "/" + key] = file_name(t);
  }
}

void read_table(const CsvTable& t, Rows& rows) {
  if (t.has("batch") && t.has("m") && t.has("n") && t.has("k") && t.has("time_us")) {
    read_product_rows(t, rows);
  } else if (t.has("op") && t.has("bytes") && t.has("time_us")) {
    read_curve_rows(t, "op", "bytes", "operators", rows.operators, rows);
  } else if (t.has("collective") && t.has("size_bytes") && t.has("time_us")) {
    read_curve_rows(t, "collective", "size_bytes", "collectives", rows.collectives, rows);
  } else if (t.has("direction") && t.has("size_bytes") && t.has("time_us")) {
    read_curve_rows(t, "direction", "size_bytes", "copies", rows.copies, rows);
  } else if (t.has("quantity") && t.has("value")) {
    for (std::size_t r = 0; r < t.rows(); ++r) {
      rows.machine[t.text(r, "quantity")].push_back(t.number(r, "value"));
      rows.table_of["machine"] = file_name(t);
    }
  } else {
    throw InputError(t.file(), "", "", "is no table of probes",
                     "give the tables that gputwin probes run writes");
  }
}

ProductModel product_of(std::span<const double> x) {
  ProductModel model;
  model.call = Seconds(x[0] * 1e-6);
  model.rate = FlopsPerSecond(x[1] * 1e9);
  model.pack = BytesPerSecond(x[2] * 1e9);
  model.result = BytesPerSecond(x[3] * 1e9);
  return model;
}

double with_factor(const ProductModel& model, const ProductShape& shape) {
  const double factor = model.factor.size.empty() ? 1.0 : model.factor.at(item_flops(shape));
  return product_formula(model, shape) * factor;
}

// The medians of measured / formula by flops; a bin of one row is left out.
SizeCurve factor_curve(const ProductModel& model, const std::vector<const ProductRow*>& rows) {
  std::map<int, std::pair<std::vector<double>, double>> bins;  // shares, sum of log flops
  for (const ProductRow* row : rows) {
    const double log_flops = std::log2(item_flops(row->shape));
    auto& [shares, sum] = bins[static_cast<int>(std::floor(log_flops))];
    shares.push_back(row->time / product_formula(model, row->shape));
    sum += log_flops;
  }
  SizeCurve curve;
  for (const auto& [bin, content] : bins) {
    const auto& [shares, sum] = content;
    if (shares.size() < kFewestOfFactor) continue;
    curve.size.push_back(rounded(std::exp2(sum / static_cast<double>(shares.size()))));
    curve.value.push_back(rounded(median(shares)));
  }
  return curve;
}

FitErrors errors_of(const ProductModel& model, const std::vector<ProductRow>& rows, bool test) {
  std::vector<double> errors;
  for (const ProductRow& row : rows) {
    if (row.test == test) errors.push_back(std::log(with_factor(model, row.shape) / row.time));
  }
  return fit_errors(errors);
}

std::optional<FamilyFit> fit_product(const std::string& name, const std::vector<ProductRow>& all) {
  std::vector<const ProductRow*> used;
  for (const ProductRow& row : all) {
    if (!row.test) used.push_back(&row);
  }
  if (used.size() < kFewestProducts) return std::nullopt;
  double best_rate = 0;
  for (const ProductRow* r : used) {
    best_rate = std::max(best_rate, r->shape.batch * item_flops(r->shape) / r->time * 1e-9);
  }
  const std::vector<FreeConstant> start{{1.0, 0, 100},
                                        {best_rate, best_rate * 0.8, best_rate * 3},
                                        {10, 0.1, kNoPart},
                                        {10, 0.1, kNoPart}};
  const LogErrors errors = [&](std::span<const double> x, std::span<double> residual) {
    const ProductModel model = product_of(x);
    for (std::size_t i = 0; i < used.size(); ++i) {
      residual[i] = std::log(product_formula(model, used[i]->shape) / used[i]->time);
    }
  };
  const std::vector<double> x = least_squares(start, used.size(), errors);
  ProductModel model = product_of(x);
  model.factor = factor_curve(model, used);
  FamilyFit fit;
  fit.family = name;
  const std::string at = "/processor/products/" + name;
  fit.numbers = {{at + "/call_us", {x[0]}},
                 {at + "/rate_GFLOPS", {x[1]}},
                 {at + "/pack_GBps", {x[2]}},
                 {at + "/result_GBps", {x[3]}}};
  if (!model.factor.size.empty()) {
    std::vector<double> mflop;
    for (const double size : model.factor.size) mflop.push_back(rounded(size * 1e-6));
    fit.numbers.push_back({at + "/factor/MFLOP", mflop, true});
    fit.numbers.push_back({at + "/factor/share", model.factor.value, true});
  }
  fit.inside = errors_of(model, all, false);
  fit.outside = errors_of(model, all, true);
  fit.range = "shapes of small transformer layers";
  return fit;
}

double operator_time(const OperatorModel& model, const CurveRow& row) {
  return model.row.value * row.rows + model.curve.at(row.size);
}

OperatorModel with_row_time(const std::vector<CurveRow>& rows, double row_s) {
  std::vector<double> size, time;
  for (const CurveRow& row : rows) {
    size.push_back(row.size);
    time.push_back(row.time - row_s * row.rows);
  }
  return {Seconds(row_s), median_curve(size, time)};
}

// The time of a row under which the curve misses its own points least.
OperatorModel operator_of(const std::vector<CurveRow>& rows) {
  constexpr double kMost = 0.95;  // of the shortest time of a row: the curve stays positive
  constexpr int kBits = 16;
  double most = rows.front().rows > 0 ? 1.0 : 0.0;
  for (const CurveRow& row : rows) {
    if (most > 0) most = std::min(most, kMost * row.time / row.rows);
  }
  if (most <= 0) return with_row_time(rows, 0.0);
  const auto miss = [&](double row_s) {
    const OperatorModel model = with_row_time(rows, row_s);
    double sum = 0;
    for (const CurveRow& row : rows)
      sum += std::abs(std::log(operator_time(model, row) / row.time));
    return sum;
  };
  return with_row_time(rows, boost::math::tools::brent_find_minima(miss, 0.0, most, kBits).first);
}

FamilyFit fit_curve(const std::string& group, const std::string& name,
                    const std::vector<CurveRow>& rows) {
  std::vector<CurveRow> used;
  for (const CurveRow& row : rows) {
    if (!row.test || rows.size() <= kFewestProducts) used.push_back(row);
  }
  if (used.empty()) used.push_back(rows.front());  // every row was kept out
  const OperatorModel model = operator_of(used);
  const SizeCurve& curve = model.curve;
  std::vector<double> inside, outside, time_us;
  for (const CurveRow& row : rows) {
    (row.test ? outside : inside).push_back(std::log(operator_time(model, row) / row.time));
  }
  for (const double t : curve.value) time_us.push_back(rounded(t * 1e6));
  FamilyFit fit;
  fit.family = name;
  fit.measured = true;
  const std::string at = "/processor/" + group + "/" + name;
  fit.numbers = {{at + "/bytes", curve.size, true}, {at + "/time_us", time_us, true}};
  if (model.row.value > 0) {
    fit.numbers.push_back({at + "/row_ns", {rounded(model.row.value * 1e9)}});
  }
  fit.inside = fit_errors(inside);
  fit.outside = fit_errors(outside);
  char range[80];
  std::snprintf(range, sizeof range, "%.3g to %.3g bytes", curve.size.front(), curve.size.back());
  fit.range = range;
  return fit;
}

}  // namespace

SizeCurve median_curve(std::span<const double> size, std::span<const double> time) {
  std::map<int, std::pair<std::vector<double>, double>> bins;  // time / size, sum of log size
  for (std::size_t i = 0; i < size.size(); ++i) {
    const double log_size = std::log2(size[i]);
    auto& [rates, sum] = bins[static_cast<int>(std::floor(log_size * kBinsPerOctave))];
    rates.push_back(time[i] / size[i]);
    sum += log_size;
  }
  SizeCurve curve;
  for (const auto& [bin, content] : bins) {
    const auto& [rates, sum] = content;
    const double middle = rounded(std::exp2(sum / static_cast<double>(rates.size())));
    curve.size.push_back(middle);
    curve.value.push_back(median(rates) * middle);
  }
  return curve;
}

std::vector<FamilyFit> fit_processor(std::span<const CsvTable> tables) {
  Rows rows;
  for (const CsvTable& table : tables) read_table(table, rows);
  std::vector<FamilyFit> fits;
  for (const auto& [name, list] : rows.products) {
    if (auto fit = fit_product(name, list))
      fits.push_back(std::move(*fit));
    else
      continue;
    fits.back().tables = rows.table_of.at("products/" + name);
  }
  const auto curves = [&](const char* group, const auto& of) {
    for (const auto& [name, list] : of) {
      fits.push_back(fit_curve(group, name, list));
      fits.back().tables = rows.table_of.at(std::string(group) + "/" + name);
    }
  };
  curves("operators", rows.operators);
  curves("collectives", rows.collectives);
  curves("copies", rows.copies);
  for (const auto& [quantity, values] : rows.machine) {
    FamilyFit fit;
    fit.family = quantity;
    fit.measured = true;
    fit.numbers = {{"/" + quantity, {rounded(median(values))}}};
    fit.inside.rows = values.size();
    fit.tables = rows.table_of.at("machine");
    fits.push_back(std::move(fit));
  }
  return fits;
}

}  // namespace gputwin
