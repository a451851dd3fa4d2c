#include "sim/trace/perfetto_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/iostreams/copy.hpp>
#include <boost/iostreams/filter/gzip.hpp>
#include <boost/iostreams/filtering_stream.hpp>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "sim/core/error.h"
#include "sim/core/plan_text.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Rank 0 computes y from x, joins an all-reduce with rank 1, and sends; rank 1 receives.
const char* const kText = R"(
arena gpu
buffer w bytes=1000 f32 class=weights persistent
buffer x 4x8 f32 class=activations framed
communicator tp0 0 1
program first frames=2
  stream compute compute
  stream net communication
  slot tp tp
  slot next pp peer
body
  alloc x @0
  kernel compute F/L3/fc1 @0 gemm m=4 n=8 k=16 : w : x
  collective net F/L3/tp @0 all_reduce slot=tp n=32 : x : x
  send net P/L3/send @0 send_to slot=next n=32 : x :
  free x @0
  alloc x @1
  kernel compute F/L3/fc1 @1 gemm m=4 n=8 k=16 : w : x
  free x @1
program second frames=2
  stream compute compute
  stream net communication
  slot tp tp
  slot previous pp peer
body
  alloc x @0
  collective net F/L3/tp @0 all_reduce slot=tp n=32 : x : x
  recv net P/L3/recv @0 recv_from slot=previous n=32 : : x
  free x @0
rank first gpu=0 tp=tp0 next=1
rank second gpu=1 tp=tp0 previous=0
)";

Cluster two_gpus() {
  using namespace literals;
  Cluster cluster;
  NodeType node;
  node.device = "a100";
  node.gpus = 2;
  node.intra = {IntraKind::NvSwitch, 300.0_GBps, 1.0, 0};
  node.pcie = {4, 32.0_GBps, 32.0_GBps, 2, 1.0};
  node.host = {2, 64, 512_GiB, 200.0_GBps};
  cluster.groups = {{node, 1}};
  return cluster;
}

/// A folder of this test alone, removed at the end.
class Folder {
 public:
  Folder() : path_(fs::temp_directory_path() / ("gputwin-trace-" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~Folder() { fs::remove_all(path_); }
  fs::path operator/(const char* name) const { return path_ / name; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_))
      names.push_back(entry.path().filename());
    return names;
  }

 private:
  fs::path path_;
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  boost::iostreams::filtering_istream in;
  if (path.extension() == ".gz") in.push(boost::iostreams::gzip_decompressor());
  in.push(file);
  std::ostringstream out;
  boost::iostreams::copy(in, out);
  return out.str();
}

constexpr Ps kUs = 1'000'000;

/// Times in us. The all-reduce waits for rank 1, which comes at 12; the send meets its receive
/// at 20.
void tell(const Plan& plan, PerfettoWriter& writer) {
  const auto& first = plan.programs[0].body;
  const auto& second = plan.programs[1].body;
  writer.op({RankId(0), &first[1], 0, 1 * kUs, 10 * kUs});
  writer.op({RankId(0), &first[2], 0, 10 * kUs, 20 * kUs});
  writer.op({RankId(1), &second[1], 0, 12 * kUs, 20 * kUs});
  writer.flow(RankId(0), RankId(1), Bytes(1000), Topology(two_gpus()).route(GpuId(0), GpuId(1)),
              12 * kUs, 20 * kUs);
  writer.op({RankId(1), &second[2], 0, 20 * kUs, 25 * kUs + 7});
  writer.op({RankId(0), &first[3], 0, 21 * kUs, 25 * kUs + 7});
  writer.op({RankId(0), &first[6], 0, 22 * kUs, 30 * kUs});
}

class Written : public ::testing::Test {
 protected:
  json write(const char* name, PerfettoOptions options = {}, std::vector<RankId> ranks = {}) {
    PerfettoWriter writer(folder_ / name, plan_, topology_, std::move(ranks), std::move(options));
    tell(plan_, writer);
    writer.close();
    counts_ = writer.counts();
    return json::parse(contents(folder_ / name));
  }
  static std::vector<json> of_phase(const json& trace, const char* phase) {
    std::vector<json> events;
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] == phase) events.push_back(event);
    }
    return events;
  }

  Folder folder_;
  Plan plan_ = parse_plan(kText);
  Topology topology_{two_gpus()};
  TraceCounts counts_;
};

TEST_F(Written, NamesSlicesAsThePlanDoesAndSaysWhatTheyCompute) {
  const auto slices = of_phase(write("trace.json"), "X");
  ASSERT_EQ(slices.size(), 6u);
  EXPECT_EQ(counts_.slices, 6);
  const json& fc1 = slices[0];
  EXPECT_EQ(fc1["name"], plan_.full_name(plan_.programs[0].body[1]));
  EXPECT_EQ(fc1["cat"], "forward");
  EXPECT_EQ(fc1["pid"], 1);
  EXPECT_EQ(fc1["tid"], 1);
  EXPECT_EQ(fc1["ts"], 1);
  EXPECT_EQ(fc1["dur"], 9);
  EXPECT_EQ(fc1["args"]["micro_batch"], 0);
  EXPECT_EQ(fc1["args"]["layer"], 3);
  EXPECT_EQ(fc1["args"]["op"], "gemm");
  EXPECT_EQ(fc1["args"]["shape"], "m=4 n=8 k=16");
  EXPECT_EQ(fc1["args"]["flops"], 2 * 4 * 8 * 16);
  EXPECT_EQ(slices[5]["name"], plan_.full_name(plan_.programs[0].body[6]));
  EXPECT_DOUBLE_EQ(slices[3]["dur"].get<double>(), 5.000007);  // 5 us and 7 ps
}

TEST_F(Written, NamesProcessesAndThreads) {
  std::set<std::string> names;
  for (const json& event : of_phase(write("trace.json"), "M")) {
    if (event["args"].contains("name")) names.insert(event["args"]["name"]);
  }
  EXPECT_TRUE(names.count("rank 0 · first · gpu 0"));
  EXPECT_TRUE(names.count("rank 1 · second · gpu 1"));
  EXPECT_TRUE(names.count("net"));
}

TEST_F(Written, CarriesTheTermsOfCosts) {
  PerfettoOptions options;
  options.call_costs.resize(plan_.calls.size());
  Cost& cost = options.call_costs[plan_.programs[0].body[1].call];
  cost.terms[static_cast<std::size_t>(Term::Wave)] = Seconds(2.5e-6);
  cost.model = "gemm";
  const auto slices = of_phase(write("trace.json", options), "X");
  EXPECT_EQ(slices[0]["args"]["cost"]["wave_us"], 2.5);
  EXPECT_EQ(slices[0]["args"]["cost"]["model"], "gemm");
}

// On one thread, slices follow each other or one contains the other.
TEST_F(Written, NestsSlices) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> threads;
  for (const json& s : of_phase(write("trace.json"), "X")) {
    const double start = s["ts"];
    threads[{s["pid"], s["tid"]}].emplace_back(start, start + s["dur"].get<double>());
  }
  ASSERT_EQ(threads.size(), 3u);
  for (const auto& [thread, slices] : threads) {
    for (std::size_t i = 1; i < slices.size(); ++i)
      EXPECT_LE(slices[i - 1].second, slices[i].first);
  }
}

// The all-reduce waited for rank 1, so its arrow leads from 1 to 0, at 12; the send at 21 met its
// receive.
TEST_F(Written, PairsArrowsInsideTheSlicesTheyJoin) {
  const json trace = write("trace.json");
  const auto starts = of_phase(trace, "s"), ends = of_phase(trace, "f");
  ASSERT_EQ(starts.size(), 2u);
  ASSERT_EQ(ends.size(), 2u);
  EXPECT_EQ(counts_.arrows, 2);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(starts[i]["id"], ends[i]["id"]);
  EXPECT_EQ(starts[0]["pid"], 2);
  EXPECT_EQ(ends[0]["pid"], 1);
  EXPECT_EQ(starts[0]["ts"], 12);
  EXPECT_EQ(starts[1]["pid"], 1);
  EXPECT_EQ(ends[1]["pid"], 2);
  EXPECT_EQ(starts[1]["ts"], 21);
}

// Every counter runs forward in time and ends where it began: memory at the weights, links at rest.
TEST_F(Written, EndsCountersWhereTheyBegan) {
  std::map<std::pair<int, std::string>, std::vector<json>> tracks;
  for (const json& c : of_phase(write("trace.json"), "C"))
    tracks[{c["pid"], c["name"]}].push_back(c);
  ASSERT_GE(tracks.size(), 4u);  // two memories; the links up from GPU 0 and down to GPU 1
  for (const auto& [track, samples] : tracks) {
    for (std::size_t i = 1; i < samples.size(); ++i)
      EXPECT_LE(samples[i - 1]["ts"], samples[i]["ts"]);
    EXPECT_EQ(samples.front()["args"], samples.back()["args"]) << track.second;
  }
  const auto& memory = tracks[{1, "gpu memory"}];
  EXPECT_EQ(memory[0]["args"]["weights_bytes"], 1000);
  EXPECT_EQ(memory[1]["args"]["activations_bytes"], 4 * 8 * 4);
  EXPECT_EQ(memory[1]["ts"], 1);
}

// 1,000 bytes in 8 us are 0.125 GB/s.
TEST_F(Written, ShowsTheLoadOfLinks) {
  double highest = 0;
  for (const json& c : of_phase(write("trace.json"), "C")) {
    if (c["args"].contains("GB/s")) highest = std::max(highest, c["args"]["GB/s"].get<double>());
  }
  EXPECT_DOUBLE_EQ(highest, 0.125);
}

TEST_F(Written, LeavesOutRanksThatAreNotSelected) {
  const json trace = write("trace.json", {}, {RankId(1)});
  for (const json& slice : of_phase(trace, "X")) EXPECT_EQ(slice["pid"], 2);
  EXPECT_EQ(counts_.slices, 2);
  EXPECT_TRUE(of_phase(trace, "s").empty());
}

TEST_F(Written, CompressesByNameAndRepeatsItselfByteForByte) {
  EXPECT_EQ(write("a.json.gz"), write("b.json"));
  write("c.json.gz");
  std::ifstream a(folder_ / "a.json.gz", std::ios::binary),
      c(folder_ / "c.json.gz", std::ios::binary);
  std::ostringstream bytes_a, bytes_c;
  bytes_a << a.rdbuf();
  bytes_c << c.rdbuf();
  EXPECT_EQ(bytes_a.str(), bytes_c.str());
  EXPECT_LT(bytes_a.str().size(), contents(folder_ / "b.json").size());
}

TEST_F(Written, LeavesNothingBehindWithoutClose) {
  {
    PerfettoWriter writer(folder_ / "trace.json", plan_, topology_, {});
    tell(plan_, writer);
    EXPECT_EQ(folder_.files().size(), 1u);  // the temporary file
  }
  EXPECT_TRUE(folder_.files().empty());
}

TEST_F(Written, CreatesMissingFoldersAndRefusesWhatCannotBeOne) {
  PerfettoWriter(folder_ / "new/below/trace.json", plan_, topology_, {}).close();
  EXPECT_TRUE(fs::exists(folder_ / "new/below/trace.json"));
  EXPECT_THROW(PerfettoWriter(folder_ / "new/below/trace.json/x.json", plan_, topology_, {}),
               InputError);
}

// The largest file allowed is 4 KiB, so writing fails on the way. That must stop the run through
// progress() and be told by close(), not unwind the engine; and no half trace may stay.
TEST_F(Written, CancelsTheRunWhenTheDiskIsFull) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{4096, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  {
    PerfettoWriter writer(folder_ / "trace.json", plan_, topology_, {});
    EXPECT_TRUE(writer.progress(0));
    for (std::uint32_t body = 0; body < 20'000; ++body) {
      writer.op({RankId(0), &plan_.programs[0].body[1], body, body * kUs, (body + 1) * kUs});
    }
    EXPECT_FALSE(writer.progress(0.5));
    EXPECT_THROW(writer.close(), InputError);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(folder_.files().empty());
}

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// A million slices in order on one stream, uncompressed about 160 MB: the process may not grow by
// 32 MiB.
TEST_F(Written, WritesAMillionSlicesInBoundedMemory) {
  const auto& body = plan_.programs[0].body;
  PerfettoWriter writer(folder_ / "large.json.gz", plan_, topology_, {});
  const std::int64_t before = resident_bytes();
  const Route route = topology_.route(GpuId(0), GpuId(1));
  for (std::uint32_t b = 0; b < 250'000; ++b) {
    const Ps start = Ps{b} * 40 * kUs;
    writer.op({RankId(0), &body[1], b, start, start + 9 * kUs});
    writer.op({RankId(0), &body[2], b, start + 10 * kUs, start + 20 * kUs});
    writer.op({RankId(0), &body[3], b, start + 21 * kUs, start + 25 * kUs});
    writer.op({RankId(0), &body[6], b, start + 26 * kUs, start + 30 * kUs});
    writer.flow(RankId(0), RankId(1), Bytes(1000), route, start + 10 * kUs, start + 20 * kUs);
  }
  EXPECT_LT(resident_bytes() - before, std::int64_t{32} << 20);
  writer.close();
  EXPECT_EQ(writer.counts().slices, 1'000'000);
}

}  // namespace
}  // namespace gputwin
