#include "hwmodels/experts.h"

#include "hwmodels/constants_file.h"
#include "hwmodels/stack.h"
#include "sim/core/error.h"

namespace gputwin {

ExpertFactors choose_experts(const std::filesystem::path& directory, const std::string& wanted) {
  if (!std::filesystem::is_directory(directory)) return {};
  const std::string name = stack_family(list_json_names(directory), wanted);
  if (name.empty()) return {};
  const std::filesystem::path path = directory / (name + ".json");
  ConstantsFile file(path);
  if (const std::string written = file.text("/name"); written != name) {
    throw InputError(path.string(), "/name", written, "is not the file's name", "write " + name);
  }
  ExpertFactors factors;
  factors.products = file.number_or("/products_time", 1.0, Range::Positive);
  factors.rows = file.number_or("/rows_time", 1.0, Range::Positive);
  factors.exchange = file.number_or("/exchange_time", 1.0, Range::Positive);
  file.finish();
  return factors;
}

}  // namespace gputwin
