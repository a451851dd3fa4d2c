#include "sim/app/networks/networks.h"

#include <algorithm>
#include <array>
#include <functional>

#include "sim/core/check.h"

namespace gputwin {
namespace {

struct Family {
  const char* name;
  NetworkOptions defaults;
  LayerGraph (*make)(const std::string&, const NetworkOptions&);
};

NetworkOptions images(std::int64_t depth, std::int64_t width, std::int64_t image = 224) {
  NetworkOptions o;
  o.depth = depth, o.width = width, o.image = image, o.classes = 1000;
  return o;
}

NetworkOptions sequences(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                         std::int64_t vocab, std::int64_t sequence) {
  NetworkOptions o;
  o.layers = layers, o.hidden = hidden, o.heads = heads, o.vocab = vocab, o.sequence = sequence;
  o.ffn = 4 * hidden;
  return o;
}

const std::vector<Family>& families() {
  static const std::vector<Family> table{{"vgg", images(16, 64), make_vgg},
                                         {"alexnet", images(8, 64), make_alexnet},
                                         {"resnet", images(50, 64), make_resnet},
                                         {"inception-v3", images(48, 32, 299), make_inception},
                                         {"amoebanet-d", images(18, 256), make_amoebanet},
                                         {"unet", images(5, 64, 192), make_unet},
                                         {"gnmt", sequences(8, 1024, 1, 32320, 50), make_gnmt},
                                         {"lstm", sequences(2, 1500, 1, 33278, 35), make_lstm},
                                         {"bert", sequences(12, 768, 12, 30522, 128), make_bert},
                                         {"gpt", sequences(12, 768, 12, 50304, 1024), make_gpt}};
  return table;
}

const Family* find_family(const std::string& name) {
  for (const Family& f : families()) {
    if (name == f.name) return &f;
  }
  return nullptr;
}

NetworkOptions completed(const NetworkOptions& given, const NetworkOptions& defaults) {
  NetworkOptions o = given;
  const auto fill = [](std::int64_t& value, std::int64_t otherwise) {
    if (value == 0) value = otherwise;
  };
  fill(o.depth, defaults.depth), fill(o.width, defaults.width);
  fill(o.image, defaults.image), fill(o.classes, defaults.classes);
  fill(o.layers, defaults.layers), fill(o.hidden, defaults.hidden);
  fill(o.heads, defaults.heads), fill(o.vocab, defaults.vocab);
  fill(o.sequence, defaults.sequence);
  fill(o.ffn, defaults.hidden > 0 ? 4 * o.hidden : 0);
  return o;
}

std::string depths(const std::string& family) {
  if (family == "vgg") return "11, 13, 16, 19";
  return "18, 34, 50, 101, 152";
}

bool knows(const std::string& family, std::int64_t depth) {
  constexpr std::array kVgg{11, 13, 16, 19};
  constexpr std::array kResnet{18, 34, 50, 101, 152};
  if (family == "vgg") return std::find(kVgg.begin(), kVgg.end(), depth) != kVgg.end();
  if (family != "resnet") return true;
  return std::find(kResnet.begin(), kResnet.end(), depth) != kResnet.end();
}

}  // namespace

std::vector<std::string> network_families() {
  std::vector<std::string> names;
  for (const Family& f : families()) names.emplace_back(f.name);
  return names;
}

std::string network_problem(const NetworkOptions& given) {
  const Family* family = find_family(given.family);
  if (family == nullptr) return "is no family of networks";
  const NetworkOptions o = completed(given, family->defaults);
  if (!knows(o.family, o.depth)) return "has depths " + depths(o.family);
  if (o.family == "amoebanet-d" && (o.depth % 3 != 0 || o.width % 16 != 0)) {
    return "takes a depth that 3 divides and a width that 16 divides";
  }
  if (o.family == "unet" &&
      o.image % (std::int64_t{1} << std::min<std::int64_t>(o.depth, 30)) != 0) {
    return "halves the image depth times";
  }
  if (o.image > 0 && o.image < 32) return "needs images of at least 32 pixels";
  if (o.family == "inception-v3" && o.image < 75) return "needs images of at least 75 pixels";
  if (o.heads > 0 && o.hidden % o.heads != 0) return "has heads that do not divide hidden";
  if (o.family == "gnmt" && o.layers < 4) return "has at least 4 layers";
  return "";
}

LayerGraph make_network(const std::string& name, const NetworkOptions& options) {
  const Family* family = find_family(options.family);
  GPUTWIN_CHECK(family != nullptr, "the schema knows the families");
  return family->make(name, completed(options, family->defaults));
}

}  // namespace gputwin
