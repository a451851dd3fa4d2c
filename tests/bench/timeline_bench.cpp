// What the window costs: frames, moves, files and tables at millions of slices; the first picture,
// a cancel, doing nothing. gui/targets.sh runs all of it and compares with what is asked.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <QApplication>
#include <QElapsedTimer>
#include <QEventLoop>
#include <QTest>
#include <QTimer>
#include <filesystem>
#include <map>
#include <random>

#include "gui/main_window.h"
#include "gui/raster.h"
#include "gui/run_child.h"
#include "gui/theme.h"
#include "sim/trace/gtr_file.h"
#include "sim/trace/queries.h"
#include "sim/trace/store_builder.h"

namespace gputwin::gui {
namespace {

constexpr int kWidth = 1700, kHeight = 1000;

/// `slices` of 1 to 400 us over `rows` streams, of 200 definitions of all kinds.
const Store& large(std::int64_t slices, std::int64_t rows) {
  static std::map<std::pair<std::int64_t, std::int64_t>, Store> made;
  const auto [at, fresh] = made.try_emplace({slices, rows});
  if (!fresh) return at->second;
  std::mt19937 random(7);
  StoreBuilder builder;
  std::vector<std::uint32_t> definitions;
  for (int d = 0; d < 200; ++d) {
    Definition definition;
    definition.before = definition.op = "op" + std::to_string(d);
    definition.kind = static_cast<SliceKind>(d % kSliceKinds);
    definitions.push_back(builder.definition(definition));
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto process = builder.process({"rank " + std::to_string(r), "", static_cast<int>(r), 0});
    const auto thread = builder.thread(process, "compute", 0);
    Ps start = 0;
    for (std::int64_t s = 0; s < slices / rows; ++s) {
      const Ps duration = 1'000'000 + random() % 400'000'000;
      builder.slice(thread, start, duration, definitions[random() % 200]);
      start += duration + (random() % 4 == 0 ? random() % 100'000'000 : 0);
    }
  }
  at->second = builder.finish("large");
  return at->second;
}

struct World {
  explicit World(benchmark::State& state)
      : store(large(state.range(0) * 1'000'000, state.range(1))) {
    rows.set_store(&store);
    rows.set_grouping(Grouping::Meaning);
    rows.set_row_height(std::max(1, static_cast<int>(kHeight / (state.range(1) + 1))));
    whole = static_cast<double>(store.range().length()) / kWidth;
  }
  int frame(double per_pixel, int x0 = 0, int x1 = kWidth) {
    const double middle = static_cast<double>(store.range().length()) * 0.4;
    const double from = per_pixel >= whole ? 0 : middle;
    const RasterJob job{&store, &rows, nullptr, {from, per_pixel}, 0};
    const int drawn = draw_rows(image, x0, x1, job, dark_theme());
    QImage labelled = image.copy();
    draw_labels(labelled, job, dark_theme(), letters);
    return drawn;
  }
  const Store& store;
  RowModel rows;
  QImage image{kWidth, kHeight, QImage::Format_RGB32};
  Letters letters{11};
  double whole = 1;
};

/// The third argument: how far in, as a power of four.
void frame(benchmark::State& state) {
  World world(state);
  double per_pixel = world.whole;
  for (int i = 0; i < state.range(2); ++i) per_pixel /= 4;
  for (auto _ : state) {
    if (world.frame(per_pixel) < state.range(1)) state.SkipWithError("rows were left out");
  }
  state.counters["B/slice"] =
      static_cast<double>(world.store.slice_bytes()) / static_cast<double>(world.store.size());
}

void move_by_40_pixels(benchmark::State& state) {
  World world(state);
  for (auto _ : state) benchmark::DoNotOptimize(world.frame(world.whole / 64, kWidth - 40));
}

void open_gtr(benchmark::State& state) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("timeline_bench_" + std::to_string(::getpid()) + ".gtr");
  const Store& store = large(state.range(0) * 1'000'000, state.range(1));
  write_gtr(store, path);
  for (auto _ : state) {
    if (read_gtr(path).size() != store.size()) state.SkipWithError("slices were lost");
  }
  std::filesystem::remove(path);
}

void aggregate_by_name(benchmark::State& state) {
  const Store& store = large(state.range(0) * 1'000'000, state.range(1));
  for (auto _ : state) {
    if (aggregate(store, store.range(), GroupBy::Name).size() != 200) {
      state.SkipWithError("groups were lost");
    }
  }
}

void window_appears(benchmark::State& state) {
  for (auto _ : state) {
    MainWindow window;
    window.show();
    if (!QTest::qWaitForWindowExposed(&window)) state.SkipWithError("no window came");
    QApplication::processEvents();
  }
}

/// From the wish to cancel to the end of the child, in the middle of a run of 1,024 GPUs.
void cancel_run(benchmark::State& state) {
  for (auto _ : state) {
    RunChild child;
    QEventLoop loop;
    QElapsedTimer clock;
    RunEnd end;
    QObject::connect(&child, &RunChild::ended, &loop, [&](const RunEnd& e) {
      end = e;
      loop.quit();
    });
    QObject::connect(&child, &RunChild::progress, &loop, [&] {
      if (clock.isValid()) return;
      clock.start();
      child.cancel();
    });
    child.start("gpt3_175b__a100_128x8__tp8_pp16_dp8", {});
    loop.exec();
    if (!end.cancelled || !clock.isValid()) state.SkipWithError("was not cancelled in a run");
    state.SetIterationTime(static_cast<double>(clock.nsecsElapsed()) * 1e-9);
  }
}

BENCHMARK(frame)
    ->Args({5, 60, 0})
    ->Args({5, 60, 3})
    ->Args({5, 60, 6})
    ->Args({5, 1000, 0})
    ->Args({5, 1000, 1})
    ->Args({5, 1000, 2})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(move_by_40_pixels)->Args({5, 60})->Args({5, 1000})->Unit(benchmark::kMillisecond);
BENCHMARK(open_gtr)->Args({5, 60})->Unit(benchmark::kMillisecond);
BENCHMARK(aggregate_by_name)->Args({5, 60})->Unit(benchmark::kMillisecond);
BENCHMARK(window_appears)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(cancel_run)->Iterations(5)->UseManualTime()->Unit(benchmark::kMillisecond);
// Last, and alone in memory: 50 million slices are 1.2 GB, as much again while they are made.
BENCHMARK(frame)
    ->Name("frame_of_50_million")
    ->Args({50, 1000, 0})
    ->Args({50, 1000, 1})
    ->Args({50, 1000, 2})
    ->Args({50, 1000, 3})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(move_by_40_pixels)
    ->Name("move_of_50_million")
    ->Args({50, 1000})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gputwin::gui

int main(int argc, char** argv) {
  if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
  QApplication application(argc, argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
