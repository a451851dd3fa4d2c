// Reads one JSON file of constants, in which every number is an object {value, source, kind}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gputwin {

/// What a constant rests on. `assumed` ones state their reasoning as their source.
enum class Evidence : std::uint8_t { Datasheet, Measured, Fitted, Assumed };

std::string_view to_string(Evidence);

/// One number of a file with its origin, as `gputwin explain` prints it.
struct Constant {
  std::string pointer;  // "/gemm/start_up_us"; the key ends in the unit
  double value = 0.0;   // in the unit of the key
  std::string source;
  Evidence kind = Evidence::Assumed;
};

/// Legal values of a constant.
enum class Range : std::uint8_t { Positive, NotNegative, Fraction, Any };

/// A file of constants, read key by key; `finish` refuses keys that nobody asked for.
///
/// Throws InputError with file, JSON pointer and value: unreadable file, broken JSON, missing or
/// unknown key, wrong type, number outside its range, missing source, unknown kind.
///
/// "like": "NAME" takes the keys the file lacks from NAME.json beside it, which may be like another
/// in turn; null removes a key. What is taken over counts as assumed and its source says from
/// where.
class ConstantsFile {
 public:
  explicit ConstantsFile(const std::filesystem::path& path);
  ~ConstantsFile();
  ConstantsFile(ConstantsFile&&) noexcept;
  ConstantsFile& operator=(ConstantsFile&&) noexcept;

  double number(const std::string& pointer, Range range = Range::Positive);
  /// `absent` if the key is missing.
  double number_or(const std::string& pointer, double absent, Range range = Range::NotNegative);
  /// The list {"values": [...], "source", "kind"}; each number is kept as a constant of its own.
  std::vector<double> numbers(const std::string& pointer, Range range = Range::Any);
  std::string text(const std::string& pointer);
  bool has(const std::string& pointer) const;
  /// Keys of the group at `pointer`, sorted; none if there is no such group.
  std::vector<std::string> keys(const std::string& pointer) const;
  void finish() const;

  const std::vector<Constant>& constants() const { return constants_; }

 private:
  struct Document;
  ConstantsFile(const std::filesystem::path& path, int bases);
  Constant constant(const std::string& pointer, const std::string& value_key);
  double checked(const std::string& pointer, Range range) const;
  [[noreturn]] void fail(const std::string& pointer, const std::string& problem,
                         const std::string& fix) const;

  std::string file_;
  std::unique_ptr<Document> document_;
  std::vector<Constant> constants_;
};

/// Names of the `*.json` files of a directory without their ending, sorted. Throws InputError if it
/// cannot be read.
std::vector<std::string> list_json_names(const std::filesystem::path& directory);

/// The name nearest to `wanted` by edit distance, the first of equals; empty if there are none.
std::string nearest_name(std::string_view wanted, const std::vector<std::string>& names);

}  // namespace gputwin
