// One application for all tests of a program, and small traces to show.
#pragma once

#include <gtest/gtest.h>

#include <QApplication>
#include <QSignalSpy>
#include <QStyleFactory>
#include <QTest>
#include <memory>

#include "gui/main_window.h"
#include "gui/theme.h"
#include "sim/trace/store_builder.h"

namespace gputwin::gui {

/// The application. Fixed style, so that pictures depend on nothing of the machine.
inline void need_application() {
  static int argc = 1;
  static char name[] = "gui_test";
  static char* argv[] = {name, nullptr};
  static QApplication* const application = [] {
    if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
    auto* made = new QApplication(argc, argv);
    QApplication::setStyle(QStyleFactory::create("Fusion"));
    set_theme(true);
    return made;
  }();
  (void)application;
}

inline Definition kind_of_work(const std::string& after, SliceKind kind) {
  Definition d;
  d.before = "F/mb";
  d.after = "/L1/" + after;
  d.op = after;
  d.framed = true;
  d.kind = kind;
  d.phase = "forward";
  d.layer = 1;
  d.arguments = R"({"bytes":123})";
  return d;
}

constexpr Ps kUs = 1'000'000;

/// Two ranks of two streams. Of `n` steps of 100 us each: fc1 0-60 us on compute, all_reduce 60-90
/// on tp; rank 1 begins 5 us later and its all-reduce leads to that of rank 0.
inline std::shared_ptr<const Store> two_ranks(std::uint32_t n, Ps fc1 = 60 * kUs) {
  StoreBuilder builder;
  const std::uint32_t gemm = builder.definition(kind_of_work("fc1", SliceKind::Gemm));
  const std::uint32_t sum = builder.definition(kind_of_work("all_reduce", SliceKind::TpComm));
  std::uint32_t compute[2], tp[2];
  for (int r = 0; r < 2; ++r) {
    const std::string name = "rank " + std::to_string(r) + " · stage0 · gpu " + std::to_string(r);
    const std::uint32_t p = builder.process({name, "stage0", r, 0});
    compute[r] = builder.thread(p, "compute", 0);
    tp[r] = builder.thread(p, "tp", 1);
    const std::uint32_t weights = builder.counter(p, "gpu memory", "weights_bytes");
    const std::uint32_t active = builder.counter(p, "gpu memory", "activations_bytes");
    builder.sample(weights, 0, 4e9);
    for (std::uint32_t i = 0; i < n; ++i) {
      const Ps at = static_cast<Ps>(i) * 100 * kUs + r * 5 * kUs;
      builder.slice(compute[r], at, fc1 - r * 5 * kUs, gemm, i);
      builder.slice(tp[r], at - r * 5 * kUs + fc1, 30 * kUs, sum, i);
      builder.sample(active, at, 1e9 * (i + 1));
    }
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    const Ps at = static_cast<Ps>(i) * 100 * kUs + fc1 + 1;
    builder.flow(tp[1], at, tp[0], at);
  }
  return std::make_shared<const Store>(builder.finish("two ranks"));
}

}  // namespace gputwin::gui
