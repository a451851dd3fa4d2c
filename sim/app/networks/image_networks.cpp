// Image classifiers as torchvision and torchgpipe define them.
#include <array>
#include <map>

#include "sim/app/networks/network_builder.h"
#include "sim/app/networks/networks.h"

namespace gputwin {
namespace {

Extent image_of(const NetworkOptions& o) { return {3, o.image, o.image}; }

LayerWindow window(std::int64_t height, std::int64_t width, std::int64_t stride = 1,
                   std::int64_t pad_height = 0, std::int64_t pad_width = 0) {
  return {.height = height,
          .width = width,
          .stride_height = stride,
          .stride_width = stride,
          .pad_height = pad_height,
          .pad_width = pad_width};
}

LayerWindow square(std::int64_t size, std::int64_t stride = 1) {
  return window(size, size, stride, size / 2, size / 2);
}

}  // namespace

// Simonyan and Zisserman 2015, table 1; every layer is a unit, as in PipeDream's profile.
LayerGraph make_vgg(const std::string& name, const NetworkOptions& o) {
  const std::map<std::int64_t, std::array<int, 5>> convolutions{
      {11, {1, 1, 2, 2, 2}}, {13, {2, 2, 2, 2, 2}}, {16, {2, 2, 3, 3, 3}}, {19, {2, 2, 4, 4, 4}}};
  NetworkBuilder b(name, image_of(o), false);
  LayerRef x = kSamples;
  std::int64_t channels = o.width;
  for (int block = 0; block < 5; ++block) {
    for (int i = 0; i < convolutions.at(o.depth)[static_cast<std::size_t>(block)]; ++i) {
      const std::string at = std::to_string(block + 1) + "_" + std::to_string(i + 1);
      b.unit("conv" + at);
      x = b.convolution(x, channels, 3, 1, 1, true);
      b.unit("relu" + at);
      x = b.relu(x);
    }
    b.unit("pool" + std::to_string(block + 1));
    x = b.max_pool(x, 2, 2);
    if (block < 3) channels *= 2;
  }
  for (int i = 0; i < 2; ++i) {
    const std::string at = std::to_string(i + 1);
    b.unit("fc" + at);
    x = b.dense(x, 64 * o.width);
    b.unit("fc_relu" + at);
    x = b.relu(x);
    b.unit("fc_dropout" + at);
    x = b.dropout(x, 0.5);
  }
  b.unit("classifier");
  b.loss(b.dense(x, o.classes));
  return b.take();
}

// Krizhevsky 2014 ("one weird trick"), as torchvision has it.
LayerGraph make_alexnet(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b(name, image_of(o), false);
  const auto block = [&](const char* unit, LayerRef from, std::int64_t channels, std::int64_t size,
                         std::int64_t stride, std::int64_t pad, bool pool) {
    b.unit(unit);
    const LayerRef x = b.relu(b.convolution(from, channels, size, stride, pad, true));
    return pool ? b.max_pool(x, 3, 2) : x;
  };
  const std::int64_t w = o.width;
  LayerRef x = block("conv1", kSamples, w, 11, 4, 2, true);
  x = block("conv2", x, 3 * w, 5, 1, 2, true);
  x = block("conv3", x, 6 * w, 3, 1, 1, false);
  x = block("conv4", x, 4 * w, 3, 1, 1, false);
  x = block("conv5", x, 4 * w, 3, 1, 1, true);
  for (const char* unit : {"fc1", "fc2"}) {
    b.unit(unit);
    x = b.relu(b.dense(b.dropout(x, 0.5), 64 * w));
  }
  b.unit("classifier");
  b.loss(b.dense(x, o.classes));
  return b.take();
}

// He et al. 2016, table 1, with the stride in the 3 x 3 filter (v1.5). `width` other than 64 widens
// the inner convolutions of a bottleneck (Zagoruyko and Komodakis 2016: 128 is wide_resnet50_2).
LayerGraph make_resnet(const std::string& name, const NetworkOptions& o) {
  const std::map<std::int64_t, std::array<int, 4>> blocks{{18, {2, 2, 2, 2}},
                                                          {34, {3, 4, 6, 3}},
                                                          {50, {3, 4, 6, 3}},
                                                          {101, {3, 4, 23, 3}},
                                                          {152, {3, 8, 36, 3}}};
  const bool bottleneck = o.depth >= 50;
  NetworkBuilder b(name, image_of(o), false);
  b.unit("stem");
  LayerRef x = b.conv_norm(kSamples, 64, square(7, 2));
  x = b.max_pool(x, 3, 2, 1);
  std::int64_t channels = 64;
  for (std::size_t stage = 0; stage < 4; ++stage) {
    const std::int64_t base = std::int64_t{64} << stage, inner = base * o.width / 64;
    const std::int64_t out = bottleneck ? 4 * base : base;
    for (int i = 0; i < blocks.at(o.depth)[stage]; ++i) {
      b.unit("block" + std::to_string(stage + 1) + "_" + std::to_string(i + 1));
      const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
      LayerRef y = x;
      if (bottleneck) {
        y = b.conv_norm(y, inner, square(1));
        y = b.conv_norm(y, inner, square(3, stride));
        y = b.conv_norm(y, out, square(1), false);
      } else {
        y = b.conv_norm(y, base, square(3, stride));
        y = b.conv_norm(y, out, square(3), false);
      }
      const bool projects = stride > 1 || channels != out;
      const LayerRef skip = projects ? b.conv_norm(x, out, square(1, stride), false) : x;
      x = b.relu(b.add(y, skip));
      channels = out;
    }
  }
  b.unit("classifier");
  b.loss(b.dense(b.pool_all(x), o.classes));
  return b.take();
}

namespace {

// Modules of Inception-v3 (Szegedy et al. 2016) as torchvision has them.
class Inception {
 public:
  explicit Inception(NetworkBuilder& b) : b_(b) {}

  LayerRef conv(LayerRef x, std::int64_t channels, std::int64_t size, std::int64_t stride = 1,
                std::int64_t pad = 0) {
    return b_.conv_norm(x, channels, window(size, size, stride, pad, pad));
  }
  LayerRef flat(LayerRef x, std::int64_t channels, std::int64_t height, std::int64_t width) {
    return b_.conv_norm(x, channels, window(height, width, 1, height / 2, width / 2));
  }
  LayerRef a(LayerRef x, std::int64_t pooled) {
    const LayerRef one = conv(x, 64, 1);
    const LayerRef five = conv(conv(x, 48, 1), 64, 5, 1, 2);
    const LayerRef three = conv(conv(conv(x, 64, 1), 96, 3, 1, 1), 96, 3, 1, 1);
    return b_.concat({one, five, three, conv(b_.average_pool(x, 3, 1, 1), pooled, 1)});
  }
  LayerRef reduce_b(LayerRef x) {
    const LayerRef three = conv(x, 384, 3, 2);
    const LayerRef twice = conv(conv(conv(x, 64, 1), 96, 3, 1, 1), 96, 3, 2);
    return b_.concat({three, twice, b_.max_pool(x, 3, 2)});
  }
  LayerRef c(LayerRef x, std::int64_t width) {
    const LayerRef one = conv(x, 192, 1);
    const LayerRef seven = flat(flat(conv(x, width, 1), width, 1, 7), 192, 7, 1);
    LayerRef twice = flat(flat(conv(x, width, 1), width, 7, 1), width, 1, 7);
    twice = flat(flat(twice, width, 7, 1), 192, 1, 7);
    return b_.concat({one, seven, twice, conv(b_.average_pool(x, 3, 1, 1), 192, 1)});
  }
  LayerRef reduce_d(LayerRef x) {
    const LayerRef three = conv(conv(x, 192, 1), 320, 3, 2);
    const LayerRef seven = conv(flat(flat(conv(x, 192, 1), 192, 1, 7), 192, 7, 1), 192, 3, 2);
    return b_.concat({three, seven, b_.max_pool(x, 3, 2)});
  }
  LayerRef e(LayerRef x) {
    const LayerRef one = conv(x, 320, 1);
    const LayerRef three = conv(x, 384, 1);
    const LayerRef double3 = conv(conv(x, 448, 1), 384, 3, 1, 1);
    return b_.concat({one, flat(three, 384, 1, 3), flat(three, 384, 3, 1), flat(double3, 384, 1, 3),
                      flat(double3, 384, 3, 1), conv(b_.average_pool(x, 3, 1, 1), 192, 1)});
  }

 private:
  NetworkBuilder& b_;
};

}  // namespace

// Without the auxiliary classifier.
LayerGraph make_inception(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b(name, image_of(o), false);
  Inception m(b);
  b.unit("stem1");
  LayerRef x = m.conv(kSamples, 32, 3, 2);
  x = m.conv(x, 32, 3);
  x = b.max_pool(m.conv(x, 64, 3, 1, 1), 3, 2);
  b.unit("stem2");
  x = b.max_pool(m.conv(m.conv(x, 80, 1), 192, 3), 3, 2);
  int count = 0;
  const auto unit = [&] { b.unit("mixed" + std::to_string(++count)); };
  for (const std::int64_t pooled : {32, 64, 64}) unit(), x = m.a(x, pooled);
  unit(), x = m.reduce_b(x);
  for (const std::int64_t width : {128, 160, 160, 192}) unit(), x = m.c(x, width);
  unit(), x = m.reduce_d(x);
  unit(), x = m.e(x);
  unit(), x = m.e(x);
  b.unit("classifier");
  b.loss(b.dense(b.dropout(b.pool_all(x), 0.5), o.classes));
  return b.take();
}

namespace {

enum class CellOp { Skip, AveragePool3, MaxPool2, Conv1, Conv3, Conv7 };
struct CellEdge {
  int from;
  CellOp op;
};

// The cells of AmoebaNet-D: Real et al. 2019 in the reading of GPipe and torchgpipe, whose
// "max_pool_3x3" averages and whose normal cells put states 0, 3, 4 and 6 side by side.
constexpr std::array<CellEdge, 10> kNormal{{{1, CellOp::Conv1},
                                            {1, CellOp::AveragePool3},
                                            {1, CellOp::Skip},
                                            {0, CellOp::Conv7},
                                            {0, CellOp::Conv1},
                                            {0, CellOp::Conv7},
                                            {2, CellOp::AveragePool3},
                                            {2, CellOp::Skip},
                                            {1, CellOp::AveragePool3},
                                            {5, CellOp::Conv1}}};
constexpr std::array<CellEdge, 10> kReduction{{{0, CellOp::MaxPool2},
                                               {0, CellOp::AveragePool3},
                                               {2, CellOp::Skip},
                                               {1, CellOp::Conv3},
                                               {2, CellOp::Conv7},
                                               {2, CellOp::AveragePool3},
                                               {3, CellOp::Skip},
                                               {1, CellOp::MaxPool2},
                                               {2, CellOp::AveragePool3},
                                               {3, CellOp::Conv1}}};

class AmoebaCells {
 public:
  AmoebaCells(NetworkBuilder& b, std::int64_t channels) : b_(b), channels_(channels) {}

  void stem() { now_ = before_ = relu_conv_norm_first(); }

  void cell(bool reduction) {
    if (reduction) channels_ *= 2;
    const LayerRef first = relu_conv_norm(now_, window(1, 1), channels_);
    LayerRef second = before_;
    if (reduced_before_) {
      second = halved(before_);
    } else if (b_.extent(before_).channels != channels_) {
      second = relu_conv_norm(before_, window(1, 1), channels_);
    }
    std::vector<LayerRef> states{first, second};
    const auto& edges = reduction ? kReduction : kNormal;
    for (std::size_t i = 0; i < edges.size(); i += 2) {
      const std::int64_t s0 = stride_of(reduction, edges[i]);
      const std::int64_t s1 = stride_of(reduction, edges[i + 1]);
      const LayerRef left = apply(states[static_cast<std::size_t>(edges[i].from)], edges[i].op, s0);
      const LayerRef right =
          apply(states[static_cast<std::size_t>(edges[i + 1].from)], edges[i + 1].op, s1);
      states.push_back(b_.add(left, right));
    }
    before_ = now_;
    now_ = reduction ? b_.concat({states[4], states[5], states[6]})
                     : b_.concat({states[0], states[3], states[4], states[6]});
    reduced_before_ = reduction;
  }
  LayerRef result() const { return now_; }

 private:
  // Only the first two inputs of a reduction cell are at the larger size; torchgpipe gives stride 2
  // to operations on them.
  static std::int64_t stride_of(bool reduction, const CellEdge& edge) {
    return reduction && edge.from < 2 ? 2 : 1;
  }
  LayerRef relu_conv_norm_first() {
    return b_.batch_norm(b_.convolution(kSamples, channels_, 3, 2, 1));
  }
  LayerRef relu_conv_norm(LayerRef from, const LayerWindow& w, std::int64_t channels) {
    return b_.conv_norm(b_.relu(from), channels, w, false);
  }
  LayerRef halved(LayerRef from) {
    const LayerRef x = b_.relu(from);
    const LayerRef left = b_.convolution(x, channels_ / 2, 1, 2);
    const LayerRef right = b_.convolution(x, channels_ / 2, 1, 2);
    return b_.batch_norm(b_.concat({left, right}));
  }
  LayerRef apply(LayerRef x, CellOp op, std::int64_t stride) {
    const std::int64_t c = channels_;
    switch (op) {
      case CellOp::Skip: return x;
      case CellOp::AveragePool3: return b_.average_pool(x, 3, stride, 1);
      case CellOp::MaxPool2: return b_.max_pool(x, 2, stride);
      case CellOp::Conv1: return relu_conv_norm(x, window(1, 1, stride), c);
      case CellOp::Conv3:
        x = relu_conv_norm(x, window(1, 1), c / 4);
        x = relu_conv_norm(x, window(3, 3, stride, 1, 1), c / 4);
        return relu_conv_norm(x, window(1, 1), c);
      case CellOp::Conv7: {
        LayerWindow wide = window(1, 7, 1, 0, 3), tall = window(7, 1, 1, 3, 0);
        wide.stride_width = tall.stride_height = stride;
        x = relu_conv_norm(x, window(1, 1), c / 4);
        x = relu_conv_norm(x, wide, c / 4);
        x = relu_conv_norm(x, tall, c / 4);
        return relu_conv_norm(x, window(1, 1), c);
      }
    }
    return x;
  }

  NetworkBuilder& b_;
  std::int64_t channels_;
  LayerRef now_ = kSamples, before_ = kSamples;
  bool reduced_before_ = false;
};

}  // namespace

// (depth, width) as in the GPipe paper; units are the sequential pieces of torchgpipe's benchmark:
// three of the stem, depth normal cells with two reductions between them, the classifier.
LayerGraph make_amoebanet(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b(name, image_of(o), false);
  AmoebaCells cells(b, o.width / 4);
  b.unit("stem1");
  cells.stem();
  for (const char* unit : {"stem2", "stem3"}) b.unit(unit), cells.cell(true);
  for (int group = 1; group <= 5; group += 2) {
    for (std::int64_t i = 0; i < o.depth / 3; ++i) {
      b.unit("cell" + std::to_string(group) + "_normal" + std::to_string(i + 1));
      cells.cell(false);
    }
    if (group == 5) break;
    b.unit("cell" + std::to_string(group + 1) + "_reduction");
    cells.cell(true);
  }
  b.unit("classify");
  b.loss(b.dense(b.pool_all(cells.result()), o.classes));
  return b.take();
}

// U-Net of torchgpipe's benchmark: `depth` levels and as many convolutions a block, `width`
// channels at the top; the loss by pixel over `classes`.
LayerGraph make_unet(const std::string& name, const NetworkOptions& o) {
  NetworkBuilder b(name, image_of(o), false);
  const auto block = [&](LayerRef x, std::int64_t channels) {
    for (std::int64_t i = 0; i < o.depth; ++i) x = b.conv_norm(x, channels, square(3));
    return x;
  };
  std::vector<LayerRef> skips;
  LayerRef x = kSamples;
  for (std::int64_t level = 0; level < o.depth; ++level) {
    b.unit("encoder" + std::to_string(level + 1));
    x = block(x, o.width << level);
    skips.push_back(x);
    x = b.max_pool(x, 2, 2);
  }
  b.unit("bottleneck");
  x = block(x, o.width << o.depth);
  for (std::int64_t level = o.depth; level-- > 0;) {
    b.unit("decoder" + std::to_string(level + 1));
    x = b.conv_norm(b.upsample(x, 2), o.width << level, square(1));
    x = block(b.concat({skips[static_cast<std::size_t>(level)], x}), o.width << level);
  }
  b.unit("segment");
  b.loss(b.pool_all(b.convolution(x, 1, 1, 1, 0, true)));
  return b.take();
}

}  // namespace gputwin
