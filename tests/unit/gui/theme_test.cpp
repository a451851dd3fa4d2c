#include "gui/theme.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gputwin::gui {
namespace {

double linear(double c) { return c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4); }

struct Lab {
  double l, a, b;
};

Lab lab(double r, double g, double b) {
  const auto f = [](double t) { return t > 0.008856 ? std::cbrt(t) : 7.787 * t + 16.0 / 116; };
  const double x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047);
  const double y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
  const double z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

// Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB: normal, protan, deutan, tritan.
constexpr double kSights[4][3][3] = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
                                     {{0.152286, 1.052583, -0.204868},
                                      {0.114503, 0.786281, 0.099216},
                                      {-0.003882, -0.048116, 1.051998}},
                                     {{0.367322, 0.860646, -0.227968},
                                      {0.280085, 0.672501, 0.047413},
                                      {-0.011820, 0.042940, 0.968881}},
                                     {{1.255528, -0.076749, -0.178779},
                                      {-0.078411, 0.930809, 0.147602},
                                      {0.004733, 0.691367, 0.303900}}};

Lab seen(const QColor& c, int sight) {
  const double rgb[3] = {linear(c.redF()), linear(c.greenF()), linear(c.blueF())};
  double out[3];
  for (int i = 0; i < 3; ++i) {
    const auto& m = kSights[sight][i];
    out[i] = std::clamp(m[0] * rgb[0] + m[1] * rgb[1] + m[2] * rgb[2], 0.0, 1.0);
  }
  return lab(out[0], out[1], out[2]);
}

// Host and Other share one grey on purpose; every other pair must be told apart by everyone.
TEST(Theme, KindsOfWorkDifferForEverySight) {
  for (const Theme* theme : {&dark_theme(), &light_theme()}) {
    for (std::size_t a = 0; a + 1 < kSliceKinds; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        for (int sight = 0; sight < 4; ++sight) {
          const Lab x = seen(theme->kinds[a], sight), y = seen(theme->kinds[b], sight);
          const double distance = std::hypot(x.l - y.l, x.a - y.a, x.b - y.b);
          EXPECT_GE(distance, 15) << (theme->dark ? "dark " : "light ") << a << " " << b
                                  << " sight " << sight;
        }
      }
    }
  }
}

TEST(Theme, ContrastsSuffice) {
  for (const Theme* theme : {&dark_theme(), &light_theme()}) {
    for (const QColor& ground : {theme->ground, theme->panel, theme->raised}) {
      EXPECT_GE(contrast(theme->text, ground), 4.5);
      EXPECT_GE(contrast(theme->dim, ground), 4.5);
      EXPECT_GE(contrast(theme->accent, ground), 3);
      EXPECT_GE(contrast(theme->warn, ground), 3);
    }
    for (const QColor& kind : theme->kinds) {
      EXPECT_GE(contrast(kind, theme->ground), 3) << kind.name().toStdString();
      EXPECT_GE(contrast(kind, Theme::text_on(kind)), 4.5) << kind.name().toStdString();
    }
    EXPECT_GE(contrast(theme->better, theme->ground), 4.5);
    EXPECT_GE(contrast(theme->worse, theme->ground), 4.5);
  }
}

}  // namespace
}  // namespace gputwin::gui
