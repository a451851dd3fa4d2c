#include "gui/raster.h"

#include <QFont>
#include <QFontMetrics>
#include <QPainter>
#include <algorithm>
#include <cmath>
#include <map>

namespace gputwin::gui {

namespace {

constexpr char kFirstLetter = ' ';
constexpr int kLetters = 95;
constexpr int kLabelRoom = 26;      // pixels of a slice from which on it is labelled
constexpr int kThin = 2;            // rows of so few pixels are drawn from bins …
constexpr double kThinBins = 4;     // … up to so many pixels wide
constexpr double kFaintest = 0.35;  // strength of a lone short slice

QRgb mix(QRgb a, QRgb b, double share) {
  const auto part = [share](int x, int y) {
    return static_cast<int>(x + (y - x) * share + 0.5);  // never negative; std::lround is a call
  };
  return qRgb(part(qRed(a), qRed(b)), part(qGreen(a), qGreen(b)), part(qBlue(a), qBlue(b)));
}

/// Colours by kind and coverage, computed once per theme.
class Shades {
 public:
  explicit Shades(const Theme& theme) {
    for (std::size_t k = 0; k < kSliceKinds; ++k) {
      for (int c = 0; c < 256; ++c) {
        const double share = c == 0 ? 0 : kFaintest + (1 - kFaintest) * c / 255.0;
        table_[k][static_cast<std::size_t>(c)] =
            mix(theme.ground.rgb(), theme.kinds[k].rgb(), share);
      }
    }
  }
  QRgb of(SliceKind kind, std::uint8_t cover) const {
    return table_[static_cast<std::size_t>(kind)][cover];
  }
  static const Shades& for_theme(const Theme& theme) {
    static const Shades dark(dark_theme()), light(light_theme());
    return theme.dark ? dark : light;
  }

 private:
  std::array<std::array<QRgb, 256>, kSliceKinds> table_;
};

struct Strip {
  std::vector<QRgb> colours;          // by column
  std::vector<std::uint8_t> hatched;  // communication, wide enough to be hatched
  bool any_hatched = false;
};

/// One row being drawn.
class RowRaster {
 public:
  RowRaster(QImage& image, int x0, int x1, const RasterJob& job, const Theme& theme)
      : image_(image),
        x0_(x0),
        x1_(x1),
        job_(job),
        scale_(1 / job.window.per_pixel),
        theme_(theme),
        shades_(Shades::for_theme(theme)) {}

  void track(std::uint32_t id, int y, int height) {
    const auto columns = static_cast<std::size_t>(x1_ - x0_);
    strip_.colours.assign(columns, theme_.ground.rgb());
    strip_.hatched.assign(columns, 0);
    strip_.any_hatched = false;
    cells_.assign(columns, Cell{});
    const double from = job_.window.from + x0_ * job_.window.per_pixel;
    const double widest = height <= kThin ? kThinBins : 1;
    if (job_.store->draw_cells(id, from, job_.window.per_pixel, cells_, widest)) {
      for (std::size_t x = 0; x < columns; ++x) {
        if (cells_[x].cover > 0) strip_.colours[x] = shades_.of(cells_[x].kind, cells_[x].cover);
      }
    } else {
      slices(job_.store->tracks[id]);
    }
    fill(y, height);
    if (job_.hits != nullptr && !job_.hits->slices.empty()) hits(job_.store->tracks[id], y, height);
  }

 private:
  int column(double t) const {
    const double x = std::clamp((t - job_.window.from) * scale_, -1e6, 1e6);
    const int cut = static_cast<int>(x);  // std::floor is a call here
    return cut - (x < cut ? 1 : 0);
  }

  void slices(const Track& track) {
    const Store& store = *job_.store;
    const double from = job_.window.from + x0_ * job_.window.per_pixel;
    const double until = job_.window.from + x1_ * job_.window.per_pixel;
    const auto clamp = [](double t) { return static_cast<Ps>(std::clamp(t, -4e18, 4e18)); };
    const auto [first, last] =
        store.overlapping(track, clamp(std::floor(from)), clamp(std::ceil(until)));
    for (SliceId s = first; s < last; ++s) {
      const int left = column(static_cast<double>(store.start(s)));
      int right = std::max(left + 1, column(static_cast<double>(store.end(s))));
      const SliceKind kind = store.kind(s);
      const int whole = right - left;
      const int begin = std::max(left, x0_), end = std::min(right, x1_);
      const bool gap = whole >= 3 && right <= x1_;  // touching slices stay two
      for (int x = begin; x < end - (gap ? 1 : 0); ++x) {
        strip_.colours[static_cast<std::size_t>(x - x0_)] = shades_.of(kind, 255);
      }
      if (whole >= 6 && is_communication(kind)) {
        strip_.any_hatched = true;
        std::fill(strip_.hatched.begin() + (begin - x0_),
                  strip_.hatched.begin() + std::max(begin, end - (gap ? 1 : 0)) - x0_,
                  std::uint8_t{1});
      }
    }
  }

  void fill(int y, int height) {
    const int gap = height >= 5 ? 1 : 0;
    for (int line = std::max(0, y); line < std::min(image_.height(), y + height - gap); ++line) {
      auto* out = reinterpret_cast<QRgb*>(image_.scanLine(line)) + x0_;
      std::copy(strip_.colours.begin(), strip_.colours.end(), out);
      if (!strip_.any_hatched || height < 6) continue;
      // Bound to time, not to the screen, so that it moves with the columns.
      const double moved = std::fmod(std::floor(job_.window.from / job_.window.per_pixel), 8.0);
      const int phase = ((x0_ + line + static_cast<int>(moved)) % 8 + 8) % 8;
      for (int x = x0_ + (8 - phase) % 8; x < x1_; x += 8) {
        auto& pixel = out[x - x0_];
        if (strip_.hatched[static_cast<std::size_t>(x - x0_)] != 0)
          pixel = mix(pixel, theme_.ground.rgb(), 0.45);
      }
    }
  }

  void hits(const Track& track, int y, int height) {
    const auto& all = job_.hits->slices;
    auto hit = std::lower_bound(all.begin(), all.end(), track.first);
    const int line = std::clamp(height / 5, 1, 3);
    int done = x0_ - 1;
    while (hit != all.end() && *hit < track.first + track.count) {
      const int left = column(static_cast<double>(job_.store->start(*hit)));
      const int right = std::max(left + 1, column(static_cast<double>(job_.store->end(*hit))));
      if (left >= x1_) return;
      for (int x = std::max({left, x0_, done + 1}); x < std::min(right, x1_); ++x) {
        for (int k = 1; k <= line; ++k) {
          const int at = y + height - 1 - k;
          if (at >= 0 && at < image_.height()) {
            reinterpret_cast<QRgb*>(image_.scanLine(at))[x] = theme_.accent.rgb();
          }
        }
      }
      done = std::max(done, right - 1);
      ++hit;
    }
  }

  QImage& image_;
  int x0_, x1_;
  const RasterJob& job_;
  const double scale_;  // pixels per picosecond
  const Theme& theme_;
  const Shades& shades_;
  Strip strip_;
  std::vector<Cell> cells_;
};

/// Largest of every series within each column, and the largest sum of all.
double column_values(const Store& store, const std::vector<std::uint32_t>& parts,
                     const Window& window, int x0, int x1, std::vector<std::vector<double>>& out) {
  double largest = 0;
  std::vector<double> sums(static_cast<std::size_t>(x1 - x0), 0.0);
  for (const std::uint32_t part : parts) {
    const Counter& c = store.counters[part];
    auto& values = out.emplace_back(static_cast<std::size_t>(x1 - x0), 0.0);
    double whole = 0;
    for (const double v : c.value) whole = std::max(whole, v);
    largest += whole;
    const auto time = [&](int x) {
      return static_cast<Ps>(std::clamp(window.from + x * window.per_pixel, -4e18, 4e18));
    };
    auto at = std::upper_bound(c.at.begin(), c.at.end(), time(x0));
    for (int x = x0; x < x1; ++x) {
      double value =
          at == c.at.begin() ? 0 : c.value[static_cast<std::size_t>(at - c.at.begin()) - 1];
      const Ps until = time(x + 1);
      const auto next = std::upper_bound(at, c.at.end(), until);
      for (auto s = at; s != next; ++s) {
        value = std::max(value, c.value[static_cast<std::size_t>(s - c.at.begin())]);
      }
      at = next;
      values[static_cast<std::size_t>(x - x0)] = value;
    }
  }
  return largest;
}

struct Place {
  int x0, x1, y, height;
};

void stack(QImage& image, const Place& at, const Store& store,
           const std::vector<std::uint32_t>& parts, const Window& window, double top,
           const Theme& theme) {
  std::vector<std::vector<double>> values;
  const double largest = column_values(store, parts, window, at.x0, at.x1, values);
  if (top <= 0) top = largest;
  if (top <= 0) return;
  for (int x = at.x0; x < at.x1; ++x) {
    double base = 0;
    for (std::size_t s = 0; s < parts.size(); ++s) {
      const double value = values[s][static_cast<std::size_t>(x - at.x0)];
      if (value <= 0) continue;
      const int low = static_cast<int>(std::lround(base / top * at.height));
      base += value;
      const int high = std::max(low + 1, static_cast<int>(std::lround(base / top * at.height)));
      const QRgb colour = theme.of(series_kind(s, store.counters[parts[s]].series)).rgb();
      for (int line = at.y + at.height - high; line < at.y + at.height - low; ++line) {
        if (line >= 0 && line < image.height()) {
          reinterpret_cast<QRgb*>(image.scanLine(line))[x] = colour;
        }
      }
    }
  }
}

}  // namespace

SliceKind series_kind(std::size_t series, const std::string& name) {
  static const std::map<std::string, SliceKind> kKnown = {
      {"weights_bytes", SliceKind::Gemm},        {"gradients_bytes", SliceKind::Attention},
      {"optimizer_bytes", SliceKind::Optimizer}, {"activations_bytes", SliceKind::DpComm},
      {"temporary_bytes", SliceKind::Pointwise}, {"communication_bytes", SliceKind::TpComm},
      {"context_bytes", SliceKind::Other}};
  const auto known = kKnown.find(name);
  return known != kKnown.end() ? known->second : static_cast<SliceKind>(series % (kSliceKinds - 2));
}

void draw_stack(QImage& image, const Store& store, const std::vector<std::uint32_t>& counters,
                const Window& window, double top, const Theme& theme) {
  stack(image, {0, image.width(), 0, image.height()}, store, counters, window, top, theme);
}

QRgb cell_colour(const Cell& cell, const Theme& theme) {
  return Shades::for_theme(theme).of(cell.kind, cell.cover);
}

Letters::Letters(int pixels) {
  QFont font("DejaVu Sans");
  font.setPixelSize(pixels);
  const QFontMetrics metrics(font);
  height_ = metrics.height();
  for (int i = 0; i < kLetters; ++i) {
    const QString letter(QChar(kFirstLetter + i));
    Letter made;
    made.width = metrics.horizontalAdvance(letter);
    QImage drawn(std::max(1, made.width), height_, QImage::Format_ARGB32);
    drawn.fill(0xff000000);
    QPainter painter(&drawn);
    painter.setFont(font);
    painter.setPen(Qt::white);
    painter.drawText(0, metrics.ascent(), letter);
    painter.end();
    for (int y = 0; y < height_; ++y) {
      for (int x = 0; x < made.width; ++x) {
        made.cover.push_back(static_cast<std::uint8_t>(qGreen(drawn.pixel(x, y))));
      }
    }
    letters_.push_back(std::move(made));
  }
}

int Letters::width(std::string_view text) const {
  int total = 0;
  for (const char c : text) {
    const int i = c - kFirstLetter;
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;
    total += letters_[static_cast<std::size_t>(i >= 0 && i < kLetters ? i : '?' - ' ')].width;
  }
  return total;
}

void Letters::draw(QImage& image, int x, int y, int room, std::string_view text,
                   QRgb colour) const {
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0) == 0x80) continue;
    const int i = c - kFirstLetter;
    const Letter& letter =
        letters_[static_cast<std::size_t>(i >= 0 && i < kLetters ? i : '?' - ' ')];
    if (letter.width > room) return;
    for (int line = 0; line < height_; ++line) {
      if (y + line < 0 || y + line >= image.height()) continue;
      auto* out = reinterpret_cast<QRgb*>(image.scanLine(y + line));
      for (int column = 0; column < letter.width; ++column) {
        const std::uint8_t cover =
            letter.cover[static_cast<std::size_t>(line * letter.width + column)];
        if (cover == 0 || x + column < 0 || x + column >= image.width()) continue;
        out[x + column] = mix(out[x + column], colour, cover / 255.0);
      }
    }
    x += letter.width;
    room -= letter.width;
  }
}

int draw_rows(QImage& image, int x0, int x1, const RasterJob& job, const Theme& theme) {
  RowRaster raster(image, x0, x1, job, theme);
  const auto [first, last] = job.rows->visible(job.top, job.top + image.height());
  for (int r = first; r < last; ++r) {
    const Row& row = job.rows->rows()[static_cast<std::size_t>(r)];
    const int y = row.top - job.top;
    switch (row.kind) {
      case RowKind::Track: raster.track(row.id, y, row.height); break;
      case RowKind::Counter:
        stack(image, {x0, x1, y + 1, row.height - 3}, *job.store, row.parts, job.window, 0, theme);
        break;
      case RowKind::Group: {
        if (row.open || row.parts.empty()) break;
        // Closed: all of its streams, each a thin line.
        const auto lines = static_cast<int>(row.parts.size());
        for (int i = 0; i < lines && i < row.height; ++i) {
          const int top = row.height * i / lines, bottom = row.height * (i + 1) / lines;
          if (bottom > top) {
            raster.track(row.parts[static_cast<std::size_t>(i)], y + top, bottom - top);
          }
        }
        break;
      }
    }
  }
  return last - first;
}

void draw_labels(QImage& image, const RasterJob& job, const Theme& theme, const Letters& letters) {
  const Store& store = *job.store;
  const double until = job.window.from + image.width() * job.window.per_pixel;
  const auto time = [](double t) { return static_cast<Ps>(std::clamp(t, -4e18, 4e18)); };
  const auto [first, last] = job.rows->visible(job.top, job.top + image.height());
  for (int r = first; r < last; ++r) {
    const Row& row = job.rows->rows()[static_cast<std::size_t>(r)];
    if (row.kind != RowKind::Track || row.height < 12) continue;
    const auto [from, end] =
        store.overlapping(store.tracks[row.id], time(std::floor(job.window.from)), time(until));
    if (end - from > static_cast<SliceId>(image.width())) continue;  // none can be wide
    for (SliceId s = from; s < end; ++s) {
      const double scale = 1 / job.window.per_pixel;
      const double left = (static_cast<double>(store.start(s)) - job.window.from) * scale;
      const double right = (static_cast<double>(store.end(s)) - job.window.from) * scale;
      const int x = static_cast<int>(std::max(left, 0.0));
      const int room = static_cast<int>(std::min<double>(right, image.width())) - x - 8;
      if (room < kLabelRoom - 8) continue;
      const std::string name = store.name(s);
      const std::string& op = store.definition(s).op;
      const bool fits = op.empty() || letters.width(name) <= room;
      letters.draw(image, x + 4, row.top - job.top + (row.height - 1 - letters.height()) / 2, room,
                   fits ? name : op, Theme::text_on(theme.of(store.kind(s))).rgb());
    }
  }
}

QImage draw_overview(const Store& store, int width, int height, const Theme& theme) {
  QImage image(std::max(1, width), std::max(1, height), QImage::Format_RGB32);
  image.fill(theme.ground);
  const TimeRange range = store.range();
  const double per_pixel = static_cast<double>(range.length()) / image.width();
  std::vector<std::array<std::int64_t, kSliceKinds>> sums(static_cast<std::size_t>(image.width()));
  std::int64_t busiest = 1;
  for (std::uint32_t t = 0; t < store.tracks.size(); ++t) {
    const Track& track = store.tracks[t];
    if (track.count == 0 || track.depth > 0) continue;
    std::vector<Cell> cells(sums.size());
    if (!store.draw_cells(t, static_cast<double>(range.begin), per_pixel, cells)) {
      for (SliceId s = track.first; s < track.first + track.count; ++s) {
        const double left = static_cast<double>(store.start(s) - range.begin) / per_pixel;
        const double right = static_cast<double>(store.end(s) - range.begin) / per_pixel;
        for (auto x = static_cast<std::size_t>(left);
             x < sums.size() && static_cast<double>(x) < right; ++x) {
          const double part =
              std::min(right, static_cast<double>(x) + 1) - std::max(left, static_cast<double>(x));
          sums[x][static_cast<std::size_t>(store.kind(s))] += std::lround(255 * part);
        }
      }
    }
    for (std::size_t x = 0; x < sums.size(); ++x) {
      sums[x][static_cast<std::size_t>(cells[x].kind)] += cells[x].cover;
    }
  }
  for (const auto& column : sums) {
    std::int64_t total = 0;
    for (const std::int64_t part : column) total += part;
    busiest = std::max(busiest, total);
  }
  for (std::size_t x = 0; x < sums.size(); ++x) {
    std::int64_t base = 0;
    for (std::size_t k = 0; k < kSliceKinds; ++k) {
      const auto low = static_cast<int>(base * height / busiest);
      base += sums[x][k];
      const auto high = static_cast<int>(base * height / busiest);
      for (int y = low; y < high; ++y) {
        image.setPixel(static_cast<int>(x), height - 1 - y, theme.kinds[k].rgb());
      }
    }
  }
  return image;
}

}  // namespace gputwin::gui
