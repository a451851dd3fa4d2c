#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <set>
#include <thread>

#include "hwmodels/kernels/memory_bound.h"
#include "hwmodels/processor/processor.h"
#include "sim/core/error.h"
#include "sim/core/median.h"
#include "sim/core/plan_text.h"
#include "sim/core/spelling.h"
#include "validation/probes/host_job.h"
#include "validation/probes/probes.h"

namespace gputwin::probes {

namespace {

constexpr const char* kDevice = "host-cpu";
constexpr int kBodies = 6;

std::string microseconds(double seconds) { return fmt::format("{:.3f}", seconds * 1e6); }

void add_machine(TableLines& lines, const std::string& quantity, double value) {
  lines["machine"].push_back(fmt::format("{},processor/{},{:.6g}", kDevice, quantity, value));
}

// ---- kernels, in the layers they belong to ----

void add_product(const Op& op, double seconds, TableLines& lines) {
  const ProductShape s = host_product(op);
  lines["products"].push_back(fmt::format("{},{},{:.0f},{:.0f},{:.0f},{:.0f},{},{}", kDevice,
                                          operator_key(op), s.batch, s.m, s.n, s.k,
                                          s.accumulate ? 1 : 0, microseconds(seconds)));
}

void add_operator(const Call& call, double seconds, TableLines& lines) {
  const View& view = call.writes.empty() ? call.reads.at(0) : call.writes[0];
  const double rows = operator_rows(call.op);
  lines["operators"].push_back(
      fmt::format("{},{},{},{},{},{}", kDevice, operator_key(call.op),
                  rows > 0 ? rows : static_cast<double>(view.rows), view.cols,
                  moved_bytes(call.op, bytes_of(call.reads), bytes_of(call.writes)).value,
                  microseconds(seconds)));
}

// Kernels and host tasks of a plan; communication has probes of its own.
TableLines kernel_lines(const Plan& plan, const std::vector<double>& medians) {
  TableLines lines;
  for (std::size_t c = 0; c < plan.calls.size(); ++c) {
    const Call& call = plan.calls[c];
    if (medians[c] <= 0 || call.op.kind >= OpKind::AllReduce) continue;
    if (is_product(call.op.kind)) {
      add_product(call.op, medians[c], lines);
    } else {
      add_operator(call, medians[c], lines);
    }
  }
  return lines;
}

// Time of an iteration on one stream that no task of it fills, for each task: what a stream needs
// to hand memory back and to get its next task while the host issues others.
double gap_of(const HostRun& run) {
  std::map<std::uint32_t, std::pair<Ps, Ps>> spans;  // by body
  std::map<std::uint32_t, double> busy, tasks;
  for (const OpEvent& e : run.events) {
    const auto [at, fresh] = spans.emplace(e.body, std::pair(e.start, e.end));
    if (!fresh)
      at->second = {std::min(at->second.first, e.start), std::max(at->second.second, e.end)};
    busy[e.body] += to_seconds(e.end - e.start).value;
    tasks[e.body] += 1;
  }
  std::vector<double> gaps;
  for (const auto& [body, span] : spans) {
    const double left = to_seconds(span.second - span.first).value - busy[body];
    if (body > 0) gaps.push_back(std::max(0.0, left) / tasks[body]);
  }
  return median(gaps);
}

// Sigma of the log-normal factor whose mean, over its median of 1, is that of the kernels of an
// iteration: E exp(sigma z) = exp(sigma^2 / 2). The median of iterations: one that another guest
// of the machine interrupts is not what the others are like.
double jitter_of(const HostRun& run, const std::vector<double>& medians) {
  std::map<std::uint32_t, double> taken, usual;  // by body
  for (const OpEvent& e : run.events) {
    if (e.body == 0 || e.instruction->kind != Kind::Kernel) continue;
    taken[e.body] += to_seconds(e.end - e.start).value;
    usual[e.body] += medians[e.instruction->call];
  }
  std::vector<double> means;
  for (const auto& [body, seconds] : taken) means.push_back(seconds / usual[body]);
  return std::sqrt(2.0 * std::log(std::max(1.0, median(means))));
}

TableLines layers(const HostJob& job) {
  const double yardstick = yardstick_s();
  const HostPlan made(job);
  const HostRun run = run_on_host(made.plan, host_options(job, kBodies));
  const std::vector<double> medians = call_medians(made.plan, run);
  TableLines lines = kernel_lines(made.plan, medians);
  if (job.passes == "[]") {  // one stream
    add_machine(lines, "issue_us", gap_of(run) * 1e6);
    add_machine(lines, "jitter_sigma", jitter_of(run, medians));
    add_machine(lines, "yardstick_us", yardstick * 1e6);
  }
  return lines;
}

std::vector<HostJob> layer_jobs(bool quick) {
  struct Size {
    std::int64_t hidden, heads, sequence, micro_batch, vocab;
  };
  const std::vector<Size> few{{64, 4, 32, 2, 128}, {160, 5, 80, 1, 320}};
  const std::vector<Size> many{{64, 4, 32, 1, 128},
                               {64, 2, 64, 2, 256},
                               {96, 3, 48, 4, 192},
                               {128, 4, 32, 2, 512},
                               {128, 8, 96, 2, 256},
                               {160, 5, 80, 1, 320},
                               {192, 6, 128, 2, 384},
                               {192, 3, 48, 1, 768},
                               {224, 7, 64, 4, 448},
                               {256, 4, 96, 1, 512},
                               {288, 9, 64, 2, 576},
                               {320, 5, 160, 1, 640},
                               {320, 10, 48, 2, 640},
                               {384, 6, 128, 2, 768},
                               {384, 12, 64, 1, 512},
                               {448, 7, 96, 2, 896},
                               {512, 8, 64, 1, 1024},
                               {512, 16, 160, 1, 512},
                               // heads and sequences that fill no vector
                               {80, 4, 36, 3, 208},
                               {120, 5, 52, 2, 328},
                               {144, 4, 100, 1, 272},
                               {176, 4, 60, 3, 400},
                               {200, 5, 88, 2, 304},
                               {264, 6, 76, 1, 456},
                               {312, 13, 44, 2, 616},
                               {352, 8, 116, 1, 344},
                               // many samples of little width
                               {96, 4, 128, 6, 320},
                               {176, 8, 104, 5, 360},
                               {272, 8, 96, 4, 480},
                               {128, 4, 64, 8, 256}};
  std::vector<HostJob> jobs;
  for (const Size& s : quick ? few : many) {
    HostJob job;
    job.name = fmt::format("layers_h{}_a{}_s{}_b{}", s.hidden, s.heads, s.sequence, s.micro_batch);
    job.hidden = s.hidden, job.heads = s.heads, job.sequence = s.sequence;
    job.micro_batch = s.micro_batch, job.vocab = s.vocab;
    jobs.push_back(job);
  }
  return jobs;
}

std::string offload_passes(std::int64_t hidden) {
  return fmt::format(R"([{{"offload":{{"strategy":"zero-offload","bucket_elements":{}}}}}])",
                     4 * hidden * hidden);
}

// The same layers with the optimizer on the host: CPU Adam and what moves its operands.
std::vector<HostJob> offload_jobs(bool quick) {
  std::vector<HostJob> jobs;
  for (const std::int64_t hidden :
       quick ? std::vector<std::int64_t>{96} : std::vector<std::int64_t>{64, 96, 160, 288, 448}) {
    HostJob job;
    job.name = fmt::format("host_adam_h{}", hidden);
    job.hidden = hidden, job.heads = hidden / 32, job.sequence = 48;
    job.passes = offload_passes(hidden);
    jobs.push_back(job);
  }
  return jobs;
}

// Median seconds of each kind of kernel by the bytes of its operands; products and operators.
using KernelTimes = std::array<std::map<std::string, double>, 2>;

KernelTimes kernel_times(const HostJob& job) {
  const HostPlan p(job);
  const auto medians = call_medians(p.plan, run_on_host(p.plan, host_options(job, kBodies)));
  std::array<std::map<std::string, std::vector<double>>, 2> of;
  for (std::size_t c = 0; c < p.plan.calls.size(); ++c) {
    const Call& call = p.plan.calls[c];
    if (medians[c] <= 0 || call.op.kind >= OpKind::AllReduce) continue;
    const auto bytes = (bytes_of(call.reads) + bytes_of(call.writes)).value;
    of[is_product(call.op.kind) ? 0 : 1][fmt::format("{}/{}", operator_key(call.op), bytes)]
        .push_back(medians[c]);
  }
  KernelTimes times;
  for (std::size_t k = 0; k < of.size(); ++k) {
    for (auto& [key, list] : of[k]) times[k][key] = median(list);
  }
  return times;
}

// How much longer kernels take in jobs that `change` made of these than in themselves: medians over
// kernels that are alike.
TableLines change_of_kernels(const std::string& quantity, bool quick,
                             const std::function<void(HostJob&)>& change) {
  std::array<std::vector<double>, 2> ratios;
  for (const std::int64_t hidden :
       quick ? std::vector<std::int64_t>{96} : std::vector<std::int64_t>{128, 192, 256}) {
    const HostJob alone{.name = quantity, .hidden = hidden, .heads = hidden / 32, .sequence = 48};
    HostJob changed = alone;
    change(changed);
    const KernelTimes before = kernel_times(alone), after = kernel_times(changed);
    for (std::size_t k = 0; k < after.size(); ++k) {
      for (const auto& [key, seconds] : after[k]) {
        const auto found = before[k].find(key);
        if (found != before[k].end()) ratios[k].push_back(seconds / found->second);
      }
    }
  }
  TableLines lines;
  add_machine(lines, quantity + "/products", std::max(1.0, median(ratios[0])));
  add_machine(lines, quantity + "/operators", std::max(1.0, median(ratios[1])));
  return lines;
}

// The same work on two ranks at once.
TableLines loaded(bool quick) {
  return change_of_kernels("loaded", quick, [](HostJob& job) { job.dp = 2; });
}

// The same work between copies over a slow link that it waits for.
TableLines among_copies(bool quick) {
  return change_of_kernels("among_copies", quick, [](HostJob& job) {
    job.link_GBps = 0.25;
    job.passes = offload_passes(job.hidden);
  });
}

// ---- streams and links, by plans of a few lines ----

std::string elements(std::int64_t bytes) { return std::to_string(bytes / 4); }

std::vector<std::int64_t> sizes(bool quick) {
  std::vector<std::int64_t> list;
  const std::int64_t most = quick ? 1 << 18 : 1 << 22;
  for (std::int64_t bytes = 256; bytes <= most; bytes *= quick ? 8 : 2) list.push_back(bytes);
  return list;
}

// Median seconds by which sleeps of 1 ms are too long.
double oversleep() {
  std::vector<double> late;
  for (int i = 0; i < 300; ++i) {
    const auto end = executors::Clock::now() + std::chrono::milliseconds(1);
    executors::sleep_until(end);
    late.push_back(std::chrono::duration<double>(executors::Clock::now() - end).count());
  }
  return median(late);
}

// Two streams that wait for each other in turn, against as many tiny tasks on one.
TableLines launches(bool quick) {
  const int tasks = quick ? 200 : 2000;
  const std::string head =
      "arena gpu\nbuffer x 1x16 f32 class=activations persistent seed=1\nprogram p frames=1\n"
      "  stream compute compute\n";
  std::string many = head + "prologue\nbody\n";
  std::string turns = head + "  stream other communication\nprologue\nbody\n";
  for (int i = 0; i < tasks; ++i) {
    const std::string task = fmt::format(" F/x{} zero n=16 : : x\n", i);
    const char *here = i % 2 == 0 ? "compute" : "other", *next = i % 2 == 0 ? "other" : "compute";
    many += "  kernel compute" + task;
    turns +=
        fmt::format("  kernel {}{}  record {} e{}\n  wait {} e{}\n", here, task, here, i, next, i);
  }
  const auto period = [](const std::string& text) {
    const Plan plan = parse_plan(text + "rank p gpu=0\n");
    executors::HostOptions options;
    options.bodies = 4;
    const HostRun run = run_on_host(plan, options);
    std::vector<double> periods;
    for (std::size_t i = 1; i < run.events.size(); ++i) {
      const OpEvent &before = run.events[i - 1], &e = run.events[i];
      if (before.body == e.body) periods.push_back(to_seconds(e.start - before.start).value);
    }
    return median(periods);
  };
  TableLines lines;
  add_machine(lines, "wake_us", std::max(0.0, period(turns) - period(many)) * 1e6);
  add_machine(lines, "oversleep_us", oversleep() * 1e6);
  return lines;
}

double joint_median(const Plan& plan, std::uint32_t call, const HostRun& run) {
  return call_medians(plan, run).at(call);
}

// A collective of two ranks, or a message from one to the other, again and again.
double joint_time(const std::string& collective, std::int64_t bytes, int repeats) {
  const std::string n = elements(bytes), half = elements(bytes / 2);
  std::string text = "arena gpu\nbuffer x 1x" + n +
                     " f32 class=activations persistent seed=1\nbuffer y 1x" + n +
                     " f32 class=activations persistent seed=2\n";
  const bool message = collective == "message";
  if (!message) text += "communicator pair 0 1\n";
  for (int program = 0; program < (message ? 2 : 1); ++program) {
    text += fmt::format("program p{} frames=1\n  stream tp communication\n", program);
    text += message ? "  slot other pp peer\nprologue\nbody\n" : "  slot g tp\nprologue\nbody\n";
    for (int i = 0; i < repeats; ++i) {
      if (message) {
        text += program == 0
                    ? fmt::format("  send tp P/m{} send_to slot=other n={} : x :\n", i, n)
                    : fmt::format("  recv tp P/m{} recv_from slot=other n={} : : x\n", i, n);
      } else if (collective == "all_reduce") {
        text += fmt::format("  collective tp F/c{} all_reduce slot=g n={} : x : x\n", i, n);
      } else if (collective == "all_gather") {
        text +=
            fmt::format("  collective tp F/c{} all_gather slot=g n={} : x{{0,1,{},{},f32}} : y\n",
                        i, n, half, half);
      } else {
        text += fmt::format(
            "  collective tp F/c{} reduce_scatter slot=g n={} : x : y{{0,1,{},{},f32}}\n", i, n,
            half, half);
      }
    }
  }
  text += message ? "rank p0 gpu=0 other=1\nrank p1 gpu=1 other=0\n"
                  : "rank p0 gpu=0 g=pair\nrank p0 gpu=1 g=pair\n";
  const Plan plan = parse_plan(text);
  executors::HostOptions options;
  options.bodies = 3;
  const HostRun run = run_on_host(plan, options);
  return joint_median(plan, 0, run);
}

TableLines collectives(const std::string& kind, bool quick) {
  TableLines lines;
  for (const std::int64_t bytes : sizes(quick)) {
    const int repeats = static_cast<int>(std::clamp<std::int64_t>((8 << 20) / bytes, 6, 60));
    lines["collectives"].push_back(fmt::format("{},{},2,{},{}", kDevice, kind, bytes,
                                               microseconds(joint_time(kind, bytes, repeats))));
  }
  return lines;
}

TableLines copies(const std::string& direction, bool quick) {
  TableLines lines;
  for (const std::int64_t bytes : sizes(quick)) {
    const std::string n = elements(bytes);
    const bool in = direction == "h2d", across = direction != "d2d";
    std::string text = fmt::format(
        "arena gpu\narena host\nbuffer x 1x{} f32 class=activations persistent seed=1\n"
        "buffer y 1x{} f32 class=activations persistent seed=2{}\nprogram p frames=1\n"
        "  stream copy copy_in\nprologue\nbody\n",
        n, n, across ? " arena=host" : "");
    const int repeats = static_cast<int>(std::clamp<std::int64_t>((8 << 20) / bytes, 6, 60));
    for (int i = 0; i < repeats; ++i) {
      text += fmt::format("  copy copy X/c{} copy_bytes n={} copy={} : {} : {}\n", i, n, direction,
                          in ? "y" : "x", in ? "x" : "y");
    }
    text += "rank p gpu=0\n";
    const Plan plan = parse_plan(text);
    executors::HostOptions options;
    options.bodies = 3;
    const double t = joint_median(plan, 0, run_on_host(plan, options));
    lines["copies"].push_back(
        fmt::format("{},{},{},{}", kDevice, direction, bytes, microseconds(t)));
  }
  return lines;
}

// Products on one stream of each of two ranks while another all-reduces: every core has a rank, so
// what a collective works is taken from the products. The link lets it work a part of the time.
TableLines interference(bool quick) {
  const int repeats = quick ? 10 : 60;
  const auto products = [&](bool with) {
    std::string text =
        "arena gpu\ncommunicator pair 0 1\n"
        "buffer a 192x192 f32 class=activations persistent seed=1\n"
        "buffer c 192x192 f32 class=activations persistent seed=2\n"
        "buffer x 1x65536 f32 class=activations persistent seed=3\nprogram p frames=1\n"
        "  stream compute compute\n  stream tp communication\n  slot g tp\nprologue\nbody\n";
    for (int i = 0; i < repeats; ++i) {
      if (with) text += fmt::format("  collective tp F/c{} all_reduce slot=g n=65536 : x : x\n", i);
      text += fmt::format("  kernel compute F/g{} gemm m=192 n=192 k=192 tb : a a : c\n", i);
    }
    text += "rank p gpu=0 g=pair\nrank p gpu=1 g=pair\n";
    const Plan plan = parse_plan(text);
    executors::HostOptions options;
    options.bodies = 4;
    options.collectives.rate = BytesPerSecond(0.5e9);
    const auto medians = call_medians(plan, run_on_host(plan, options));
    for (std::size_t c = 0; c < plan.calls.size(); ++c) {
      if (plan.calls[c].op.kind == OpKind::Gemm) return medians[c];
    }
    return 0.0;
  };
  TableLines lines;
  const double alone = products(false), beside = products(true);
  add_machine(lines, "shared_core/compute_slowdown", std::max(1.0, beside / alone));
  return lines;
}

// ---- files, and what the system says ----

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TableLines files(bool quick) {
  const std::size_t size = quick ? 1 << 20 : 64 << 20;
  const std::vector<char> data(size, 'x');
  std::vector<char> back(size);
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("gputwin-probe-{}", getpid())).string();
  std::vector<double> write_s, read_s;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
    if (file < 0) throw InputError(path, "", "", "cannot be written", "free the temporary folder");
    const auto start = std::chrono::steady_clock::now();
    const bool written =
        write(file, data.data(), size) == static_cast<ssize_t>(size) && fdatasync(file) == 0;
    write_s.push_back(seconds_since(start));
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    const auto again = std::chrono::steady_clock::now();
    const bool got = pread(file, back.data(), size, 0) == static_cast<ssize_t>(size);
    read_s.push_back(seconds_since(again));
    close(file);
    unlink(path.c_str());
    if (!written || !got) throw InputError(path, "", "", "is too small", "free disk space");
  }
  TableLines lines;
  add_machine(lines, "file/write_GBps", static_cast<double>(size) / median(write_s) * 1e-9);
  add_machine(lines, "file/read_GBps", static_cast<double>(size) / median(read_s) * 1e-9);
  return lines;
}

TableLines system_facts() {
  TableLines lines;
  add_machine(lines, "cores", std::max(1u, std::thread::hardware_concurrency()));
  return lines;
}

}  // namespace

std::vector<Probe> host_probes(bool quick) {
  std::vector<Probe> probes;
  probes.push_back({"system", "system", "cores", system_facts});
  for (const HostJob& job : layer_jobs(quick)) {
    probes.push_back({"layers", job.name, "kernels of two layers", [job] { return layers(job); }});
  }
  for (const HostJob& job : offload_jobs(quick)) {
    probes.push_back({"host-adam", job.name, "layers stepped by the host's Adam",
                      [job] { return layers(job); }});
  }
  probes.push_back(
      {"launch", "launch", "tiny tasks on a stream", [quick] { return launches(quick); }});
  for (const char* direction : {"h2d", "d2h", "d2d"}) {
    probes.push_back({"copies", fmt::format("copy_{}", direction), "copies between arenas",
                      [=] { return copies(direction, quick); }});
  }
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "message"}) {
    probes.push_back({"collectives", kind, "two ranks", [=] { return collectives(kind, quick); }});
  }
  probes.push_back({"interference", "loaded", "kernels while both cores work",
                    [quick] { return loaded(quick); }});
  probes.push_back({"interference", "among_copies", "kernels between slow copies",
                    [quick] { return among_copies(quick); }});
  probes.push_back({"interference", "shared_core", "products beside a collective",
                    [quick] { return interference(quick); }});
  probes.push_back(
      {"files", "files", "write, flush and read back a file", [quick] { return files(quick); }});
  return probes;
}

}  // namespace gputwin::probes
