// What the timeline costs at millions of slices: a frame, a move, opening a file, a table.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <QApplication>
#include <filesystem>
#include <map>
#include <random>

#include "gui/raster.h"
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

BENCHMARK(frame)
    ->Args({5, 60, 0})
    ->Args({5, 60, 3})
    ->Args({5, 60, 6})
    ->Args({5, 1000, 0})
    ->Args({5, 1000, 2})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(move_by_40_pixels)->Args({5, 60})->Unit(benchmark::kMillisecond);
BENCHMARK(open_gtr)->Args({5, 60})->Unit(benchmark::kMillisecond);
BENCHMARK(aggregate_by_name)->Args({5, 60})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace gputwin::gui

int main(int argc, char** argv) {
  if (qEnvironmentVariableIsEmpty("QT_QPA_PLATFORM")) qputenv("QT_QPA_PLATFORM", "offscreen");
  QApplication application(argc, argv);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
