#include "sim/app/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <string_view>

namespace gputwin {

std::string human_time(double seconds) {
  const char* unit = "s";
  double value = seconds;
  if (std::abs(seconds) < 1e-6) {
    unit = "ns";
    value *= 1e9;
  } else if (std::abs(seconds) < 1e-3) {
    unit = "us";
    value *= 1e6;
  } else if (std::abs(seconds) < 1) {
    unit = "ms";
    value *= 1e3;
  }
  const double size = std::abs(value);
  const int decimals = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
  return fmt::format("{:.{}f} {}", value, decimals, unit);
}

std::string grouped(std::int64_t value) {
  std::string digits = std::to_string(value);
  const std::size_t first = value < 0 ? 2 : 1;  // no comma before the first digit
  for (std::size_t i = digits.size(); i > first + 2; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string bar(double fraction, int width, bool ascii) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double cut = std::clamp(fraction, 0.0, 1.0);
  const int eighths = static_cast<int>(std::lround(cut * width * 8));
  if (ascii) return std::string(static_cast<std::size_t>((eighths + 4) / 8), '#');
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  return text + kEighths[eighths % 8];
}

namespace {

constexpr int kBarWidth = 40;
constexpr int kMemoryBarWidth = 12;
constexpr std::size_t kMemoryRows = 16;
constexpr std::size_t kListRows = 12;

std::string_view label(Part part) {
  switch (part) {
    case Part::Compute: return "compute";
    case Part::ExposedTp: return "tp communication";
    case Part::ExposedDp: return "dp communication";
    case Part::ExposedPp: return "pp communication";
    case Part::ExposedEp: return "ep communication";
    case Part::ExposedCp: return "cp communication";
    case Part::CopyStall: return "copy stall";
    case Part::Bubble: return "pipeline bubble";
    case Part::Optimizer: return "optimizer";
    case Part::Host: return "host";
  }
  return "";
}

double gib(Bytes bytes) { return static_cast<double>(bytes.value) / (1 << 30); }

class Writer {
 public:
  Writer(const RunResult& result, const ReportContext& context)
      : result_(result), context_(context) {}

  std::string text() {
    headline();
    breakdown();
    passes();
    memory();
    engine();
    list("Warnings", result_.warnings);
    list("Priced outside the range its model was fitted on", result_.extrapolated);
    list("Notes", context_.notes);
    files();
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    while (!out_.empty() && out_.back() == ' ') out_.pop_back();
    out_.push_back('\n');
  }
  std::string strong(std::string_view text) const {
    return context_.colour ? fmt::format("\x1b[1m{}\x1b[0m", text) : std::string(text);
  }
  std::string tinted(std::string_view text) const {
    return context_.colour ? fmt::format("\x1b[36m{}\x1b[0m", text) : std::string(text);
  }
  void heading(std::string_view text) { line("\n{}", strong(text)); }

  void headline() {
    line("{}", strong(result_.scenario));
    for (const std::string* text : {&context_.job, &context_.cluster, &context_.layout}) {
      if (!text->empty()) line("  {}", *text);
    }
    const Execution& run = result_.execution;
    const double seconds = to_seconds(run.iteration).value;
    line("");
    line("  {:<12}{}   80 % interval {} to {}", "iteration", strong(human_time(seconds)),
         human_time(result_.low.value), human_time(result_.high.value));
    if (run.makespan != run.iteration) {
      line("  {:<12}{}   first start to last end", "makespan",
           human_time(to_seconds(run.makespan).value));
    }
    line("  {:<12}{} tokens/s   {:.4g} samples/s{}", "throughput",
         grouped(std::llround(result_.tokens_per_s)), result_.samples_per_s,
         context_.gpus > 0 ? fmt::format("   {:.4g} tokens/s per GPU",
                                         result_.tokens_per_s / static_cast<double>(context_.gpus))
                           : "");
    if (result_.mfu > 0) {
      line("  {:<12}{:.1f} %   {:.1f} TFLOP/s per GPU   model FLOPs / (time x GPUs x dense peak)",
           "MFU", result_.mfu * 100, result_.model_tflops_per_gpu);
      line("  {:<12}{:.1f} %   {:.1f} TFLOP/s per GPU   the same, recomputed FLOPs counted too",
           "HFU", result_.hfu * 100, result_.hardware_tflops_per_gpu);
      if (!context_.flops_convention.empty())
        line("  {:<12}{}", "FLOPs", context_.flops_convention);
    }
  }

  void breakdown() {
    const Execution& run = result_.execution;
    if (!run.last_rank.valid() || run.last_rank.value >= run.breakdown.size()) return;
    const Breakdown& parts = run.breakdown[run.last_rank.value];
    const auto total = static_cast<double>(std::max<Ps>(run.iteration, 1));
    heading(fmt::format("Where the time goes (rank {}, which ends last)", run.last_rank.value));
    Ps others = 0;
    for (std::size_t p = 0; p < kParts; ++p) {
      // What would be printed as 0.0 % is summed up, so that the rows still add up to the whole.
      const double share = static_cast<double>(parts[p]) / total;
      if (std::abs(share) < 0.0005) {
        others += parts[p];
        continue;
      }
      breakdown_row(label(static_cast<Part>(p)), parts[p], share);
    }
    if (others != 0) breakdown_row("others", others, static_cast<double>(others) / total);
    const Ps sum = std::accumulate(parts.begin(), parts.end(), Ps{0});
    line("  {:<18}{:>10}  {:>5.1f} %", "sum", human_time(to_seconds(sum).value),
         static_cast<double>(sum) / total * 100);
  }

  void breakdown_row(std::string_view name, Ps time, double share) {
    line("  {:<18}{:>10}  {:>5.1f} %  {}", name, human_time(to_seconds(time).value), share * 100,
         tinted(bar(share, kBarWidth, context_.ascii)));
  }

  static std::string chunks(const std::vector<std::int64_t>& units, bool sequence) {
    return fmt::format("{} of {} {}", units.size(), fmt::join(units, " + "),
                       sequence ? "tokens" : "samples");
  }

  void passes() {
    if (!result_.passes) return;
    const PassFigures& f = *result_.passes;
    const auto time = [](Ps t) { return human_time(to_seconds(t).value); };
    heading("Overlap and compression");
    if (f.chunks_asked)
      line("  {:<18}forward {}, backward {}", "chunks", chunks(f.forward_chunks, f.sequence_chunks),
           chunks(f.backward_chunks, f.sequence_chunks));
    for (const CodedClass& c : f.classes) {
      line("  {:<18}{}: {:.3f} GB a rank, {:.3f} GB blocking; expected error of an exchange {}",
           c.tensors, c.codec, static_cast<double>(c.bytes.value) * 1e-9,
           static_cast<double>(c.blocking_bytes.value) * 1e-9,
           c.expected_error ? fmt::format("{:.3g}", *c.expected_error) : "not known");
    }
    const auto exposed = [&](const char* what, Ps before, Ps now) {
      if (before > 0 || now > 0) {
        line("  {:<18}{} blocking, {} now", what, time(before), time(now));
      }
    };
    exposed("exposed tp", f.blocking_exposed, f.exposed);
    exposed("exposed dp", f.blocking_exposed_dp, f.exposed_dp);
    exposed("exposed pp", f.blocking_exposed_pp, f.exposed_pp);
    std::string bound;
    if (f.chunks_asked) {
      bound = fmt::format("; splitting a forward layer wins at most {:.2f} times", f.gain_bound);
    }
    line("  {:<18}{} blocking{}", "iteration", time(f.blocking_iteration), bound);
    line("  {}", f.verdict);
  }

  void memory() {
    if (result_.memory.empty()) return;
    heading("Memory per role at its peak (GiB)");
    line("  {:<10}{:>8}{:>7}{:>8}{:>8}{:>7}{:>7}{:>9}{:>8}  of capacity", "role", "weights",
         "grads", "optim", "activ", "temp", "alloc", "reserved", "device");
    std::vector<std::size_t> rows(result_.memory.size());
    std::iota(rows.begin(), rows.end(), 0);
    if (rows.size() > kMemoryRows) {
      std::stable_sort(rows.begin(), rows.end(), [this](std::size_t a, std::size_t b) {
        return result_.memory[a].figures.device > result_.memory[b].figures.device;
      });
      rows.resize(kMemoryRows);
      std::sort(rows.begin(), rows.end());
    }
    for (const std::size_t row : rows) memory_row(result_.memory[row]);
    if (rows.size() < result_.memory.size()) {
      line("  and {} roles that need less", result_.memory.size() - rows.size());
    }
    Bytes host{};
    for (const RoleMemory& role : result_.memory) host = std::max(host, role.figures.host);
    if (host.value > 0) line("  host memory of one rank: up to {:.2f} GiB", gib(host));
    line(
        "  device = reserved by the allocator + CUDA context + communicators; temp includes "
        "communication");
  }

  void memory_row(const RoleMemory& role) {
    const auto of = [&role](MemoryClass c) {
      return gib(role.figures.at_peak[static_cast<std::size_t>(c)]);
    };
    const MemoryFigures& f = role.figures;
    std::string fill;
    if (role.capacity.value > 0) {
      const double share = gib(f.device) / gib(role.capacity);
      const std::string text = bar(share, kMemoryBarWidth, context_.ascii);
      fill =
          fmt::format("  {:>3.0f} % of {:.0f} {}", share * 100, gib(role.capacity), tinted(text));
    }
    line("  {:<10}{:>8.2f}{:>7.2f}{:>8.2f}{:>8.2f}{:>7.2f}{:>7.2f}{:>9.2f}{:>8.2f}{}", role.role,
         of(MemoryClass::Weights), of(MemoryClass::Gradients), of(MemoryClass::Optimizer),
         of(MemoryClass::Activations), of(MemoryClass::Temporary) + of(MemoryClass::Communication),
         gib(f.allocated), gib(f.reserved), gib(f.device), fill);
  }

  void engine() {
    const EngineStats& e = result_.execution.engine;
    heading("Simulation");
    const std::size_t ranks = result_.execution.rank_end.size();
    std::string how =
        fmt::format("every one of {} ranks", grouped(static_cast<std::int64_t>(ranks)));
    if (e.folded) {
      how = fmt::format("{} ranks folded to {} that differ",
                        grouped(static_cast<std::int64_t>(ranks)), grouped(e.simulated_ranks));
    }
    line("  {} tasks, {} flows ({} shared a link and ran on SimGrid)", grouped(e.tasks),
         grouped(e.flows), grouped(e.simgrid_flows));
    line("  {}", how);
    if (!e.folded && !e.unfolded_because.empty()) line("  not folded: {}", e.unfolded_because);
    if (!context_.timings) return;
    const double rate = e.wall_s > 0 ? static_cast<double>(e.tasks) / e.wall_s * 1e-6 : 0;
    std::string heap;
    if (context_.heap_allocations > 0) {
      heap = ", " + grouped(context_.heap_allocations) + " heap allocations";
    }
    line("  took {} ({:.1f} M tasks/s), {:.0f} MB{}", human_time(e.wall_s), rate,
         static_cast<double>(e.peak_rss_bytes) * 1e-6, heap);
  }

  void list(std::string_view title, const std::vector<std::string>& items) {
    if (items.empty()) return;
    heading(title);
    for (std::size_t i = 0; i < items.size() && i < kListRows; ++i) wrapped(items[i]);
    if (items.size() > kListRows)
      line("  - and {} more, see result.json", items.size() - kListRows);
  }

  // Breaks at blanks so that lines stay within 100 columns.
  void wrapped(std::string_view text) {
    constexpr std::size_t kColumns = 94;
    std::string_view lead = "  - ";
    while (text.size() > kColumns) {
      std::size_t cut = text.rfind(' ', kColumns);
      if (cut == std::string_view::npos) break;
      line("{}{}", lead, text.substr(0, cut));
      text.remove_prefix(cut + 1);
      lead = "    ";
    }
    line("{}{}", lead, text);
  }

  void files() {
    if (context_.files.empty()) return;
    heading("Files");
    for (const ReportFile& file : context_.files)
      line("  {:<8}{}   {}", file.what, file.path, file.hint);
  }

  const RunResult& result_;
  const ReportContext& context_;
  std::string out_;
};

}  // namespace

std::string report(const RunResult& result, const ReportContext& context) {
  return Writer(result, context).text();
}

}  // namespace gputwin
