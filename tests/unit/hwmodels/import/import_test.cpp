// Facts of other programs as ours: each world is a few lines of text, each figure worked by hand.
#include "hwmodels/import/import.h"

#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "sim/core/error.h"

namespace gputwin {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using Json = nlohmann::json;

const std::filesystem::path kData = std::filesystem::path(GPUTWIN_SOURCE_DIR) / "hwmodels";

Device device(const std::string& name) { return load_device(kData / "devices" / (name + ".json")); }

Imported cluster(NodeFacts facts, const std::string& name, int nodes = 1) {
  const Device gpu = device(name);
  return cluster_of_nodes(std::move(facts), gpu, nvlink_rate(gpu, kData / "links" / "nvlink.json"),
                          nodes, "mine");
}

Json type_of(const Imported& made) { return Json::parse(made.text)["groups"][0]["type"]; }

// Calls `read`; the error it throws, or "" if it accepts.
template <class F>
std::string error_of(const F& read) {
  try {
    read();
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

const char* const kPairs =
    "\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tPHB\tNV4\tPHB\tPIX\t0-7,16-23\t0\n"
    "GPU1\tPHB\t X \tPHB\tNV4\tSYS\t8-15,24-31\t1\n"
    "GPU2\tNV4\tPHB\t X \tPHB\tPIX\t0-7,16-23\t0\n"
    "GPU3\tPHB\tNV4\tPHB\t X \tSYS\t8-15,24-31\t1\n"
    "mlx5_0\tPIX\tSYS\tPIX\tSYS\t X \n\n"
    "Legend:\n\n  X    = Self\n";

// GPU 0 pairs with 2 and 1 with 3: the format pairs neighbours, so the order becomes 0, 2, 1, 3.
// Four links of 14.0625 GB/s make 56.25; 32 CPUs in two ranges each are 16 cores.
TEST(NvidiaSmiTopo, RenumbersPairsOfNvLinks) {
  const Imported made = cluster(parse_nvidia_smi_topo("t", kPairs), "a40");
  const Json type = type_of(made);
  EXPECT_EQ(type["gpus"], 4);
  EXPECT_EQ(type["intra"]["kind"], "nvlink-pairs");
  EXPECT_DOUBLE_EQ(type["intra"]["bandwidth_GBps"].get<double>(), 56.25);
  EXPECT_EQ(type["host"]["cores"], 16);
  EXPECT_EQ(type["host"]["sockets"], 2);
  EXPECT_EQ(type["nics"]["per_node"], 1);
  EXPECT_THAT(made.notes, Contains(HasSubstr("0, 2, 1, 3")));
}

std::string uniform(int gpus, const std::string& word) {
  std::string text;
  for (int g = 0; g < gpus; ++g) text += " GPU" + std::to_string(g);
  text += "\n";
  for (int a = 0; a < gpus; ++a) {
    text += "GPU" + std::to_string(a);
    for (int b = 0; b < gpus; ++b) text += a == b ? " X" : " " + word;
    text += "\n";
  }
  return text;
}

// 8 GPUs that all show 12 links would need 84 each as a mesh; A100 has 12: a switch, 12 x 25 GB/s.
// Three others over 4 links each are all 12: a mesh.
TEST(NvidiaSmiTopo, TellsSwitchesFromMeshes) {
  const Json eight =
      type_of(cluster(parse_nvidia_smi_topo("t", uniform(8, "NV12")), "a100-sxm-80gb"));
  EXPECT_EQ(eight["intra"]["kind"], "nvswitch");
  EXPECT_DOUBLE_EQ(eight["intra"]["bandwidth_GBps"].get<double>(), 300.0);
  const Json four =
      type_of(cluster(parse_nvidia_smi_topo("t", uniform(4, "NV4")), "a100-sxm-80gb"));
  EXPECT_EQ(four["intra"]["kind"], "nvlink-mesh");
  EXPECT_DOUBLE_EQ(four["intra"]["bandwidth_GBps"].get<double>(), 300.0);
  const Json plain = type_of(cluster(parse_nvidia_smi_topo("t", uniform(2, "PHB")), "l4"));
  EXPECT_EQ(plain["intra"]["kind"], "pcie");
}

TEST(NvidiaSmiTopo, NamesLineAndReason) {
  EXPECT_THAT(error_of([] { parse_nvidia_smi_topo("t", "GPU0 GPU1\nGPU0 X NV4\n"); }),
              HasSubstr("GPU1 has no row"));
  EXPECT_THAT(error_of([] { parse_nvidia_smi_topo("t", " GPU0 GPU1\nGPU0 X QQ\nGPU1 QQ X\n"); }),
              AllOf(HasSubstr("line 2"), HasSubstr("QQ")));
  EXPECT_THAT(error_of([] { parse_nvidia_smi_topo("t", " GPU0 GPU1\nGPU0 X NV2\nGPU1 NV4 X\n"); }),
              HasSubstr("the other way"));
  EXPECT_THAT(error_of([] { parse_nvidia_smi_topo("t", "a,b\n1,2\n"); }), HasSubstr("no matrix"));
  EXPECT_THAT(error_of([] { parse_nvidia_smi_topo("t", std::string("\x1f\x8b\x00z", 4)); }),
              HasSubstr("no text"));
}

const char* const kSystem =
    "<system version=\"1\">\n"
    " <cpu numaid=\"0\" affinity=\"0000000f\">\n"
    "  <pci busid=\"0000:01:00.0\" class=\"0x060400\" link_speed=\"16 GT/s\" link_width=\"16\">\n"
    "   <pci busid=\"0000:0a:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x20b2\" "
    "link_speed=\"16 GT/s\" link_width=\"16\">\n"
    "    <gpu dev=\"0\" sm=\"80\"><nvlink target=\"0000:0B:00.0\" count=\"12\" "
    "tclass=\"0x030200\"/></gpu>\n"
    "   </pci>\n"
    "   <pci busid=\"0000:0b:00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"0x20b2\" "
    "link_speed=\"16 GT/s\" link_width=\"16\">\n"
    "    <gpu dev=\"1\" sm=\"80\"><nvlink target=\"0000:0a:00.0\" count=\"12\" "
    "tclass=\"0x030200\"/></gpu>\n"
    "   </pci>\n"
    "   <pci busid=\"0000:0c:00.0\" class=\"0x020700\"><nic><net name=\"mlx5_0\" "
    "speed=\"200000\"/></nic></pci>\n"
    "  </pci>\n"
    " </cpu>\n"
    "</system>\n";

// 16 GT/s is PCIe 4: 16 lanes x 16 / 8 x 128/130 = 31.51 GB/s; both GPUs below one switch with the
// adapter of 200 Gb/s; 12 links of 25 GB/s.
TEST(NcclXml, ReadsTheMachine) {
  const NodeFacts facts = parse_nccl_topology("x", kSystem);
  std::vector<std::string> notes;
  EXPECT_EQ(implied_device(facts, load_pci_ids(kData / "import" / "pci_ids.json"), notes),
            "a100-sxm-80gb");
  const Imported made = cluster(facts, "a100-sxm-80gb", 4);
  const Json type = type_of(made);
  EXPECT_EQ(type["pcie"]["generation"], 4);
  EXPECT_NEAR(type["pcie"]["bandwidth_GBps"].get<double>(), 31.51, 0.005);
  EXPECT_EQ(type["pcie"]["gpus_per_switch"], 2);
  EXPECT_EQ(type["nics"]["each_Gbps"], 200);
  EXPECT_EQ(type["intra"]["kind"], "nvlink-pairs");
  EXPECT_DOUBLE_EQ(type["intra"]["bandwidth_GBps"].get<double>(), 300.0);
  EXPECT_EQ(type["host"]["cores"], 4);
  EXPECT_EQ(Json::parse(made.text)["fabric"]["kind"], "infiniband");
}

TEST(NcclXml, SaysWhatAGraphDumpHolds) {
  const std::string error = error_of([] {
    parse_nccl_topology("x",
                        "<graphs version=\"1\"><graph id=\"0\" speedintra=\"12\" typeintra=\"SYS\" "
                        "speedinter=\"12\" typeinter=\"PIX\"><channel><gpu dev=\"0\"/><gpu "
                        "dev=\"1\"/></channel></graph></graphs>");
  });
  EXPECT_THAT(error, HasSubstr("1 channels over 2 GPUs at 12 GB/s inside (SYS)"));
}

const char* const kLog =
    "# nThread 1 nGpus 1 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20\n"
    "# Using devices\n"
    "#  Rank  0 Group  0 Pid  11 on nodea device  0 [0x07] NVIDIA H100 80GB HBM3\n"
    "#  Rank  1 Group  0 Pid  12 on nodeb device  0 [0x07] NVIDIA H100 80GB HBM3\n"
    "# Collective test starting: all_gather_perf\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time "
    "  algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us) "
    " (GB/s)  (GB/s)\n"
    "        1024           128     float    none      -1    10.24    0.10    0.05      0    20.48 "
    "   0.05    0.03    N/A\n"
    "[1,0]<stdout>:        2048           256     float    none      -1    20.48    0.10    0.05  "
    "    3    20.48    0.10    0.05      0\n"
    "# Out of bounds values : 0 OK\n"
    "# Avg bus bandwidth    : 0.05\n";

// Two hosts, two ranks; four measurements, of which one had wrong results and stays out.
TEST(NcclTests, ReadsAWholeLog) {
  const Imported made = table_of_nccl_tests("log", kLog, {});
  EXPECT_EQ(made.text,
            "system,gpu,collective,nranks,nnodes,dtype,size_bytes,inplace,time_us,busbw_GBps,nccl,"
            "net,env,run,iters\n"
            ",H100 80GB HBM3,all_gather,2,2,float,1024,0,10.24,0.05,,,,,20\n"
            ",H100 80GB HBM3,all_gather,2,2,float,1024,1,20.48,0.03,,,,,20\n"
            ",H100 80GB HBM3,all_gather,2,2,float,2048,1,20.48,0.05,,,,,20\n");
  ASSERT_EQ(made.notes.size(), 1u);
  EXPECT_THAT(made.notes[0], HasSubstr("1 measurements whose results were wrong"));
}

// Shortened by hand: no type, thousands with underscores; 2 x 7/8 = 1.75 tells of 8 ranks.
TEST(NcclTests, ReadsShortenedTables) {
  const Imported made = table_of_nccl_tests(
      "log",
      "$ ./build/all_reduce_perf -g 8 -n 50\n size time algbw busbw\n 1_000_000 100.0 10.0 17.5\n",
      {});
  EXPECT_THAT(made.text, HasSubstr(",all_reduce,8,1,float,1000000,0,100,17.5,"));
  const Imported bench = table_of_nccl_tests(
      "log", "| payload | busbw | algbw |\n| ---: | ---: | ---: |\n| 1MiB | 3.5GBps | 2.0GBps |\n",
      {"H200", "", "", 0, 1});
  EXPECT_THAT(bench.text, HasSubstr(",H200,all_reduce,8,1,float,1048576,0,524.288,3.5,"));
}

TEST(NcclTests, NamesLineAndReason) {
  EXPECT_THAT(error_of([] { table_of_nccl_tests("l", "hello\n", {}); }), HasSubstr("no log"));
  EXPECT_THAT(
      error_of([] { table_of_nccl_tests("l", "size time algbw busbw\n1024 10.0 0.1\n", {}); }),
      AllOf(HasSubstr("line 2"), HasSubstr("3 fields")));
  EXPECT_THAT(
      error_of([] { table_of_nccl_tests("l", "size time algbw busbw\n1024 10.0 0.1 0.1\n", {}); }),
      HasSubstr("--collective"));
}

const char* const kNodes =
    R"({"name": "base", "groups": [{"type": {"device": "d"}, "count": 1}],
        "fabric": {"kind": "infiniband", "levels": [{"nodes_per_group": 9}]}})";
const char* const kSlurm =
    "# two leaves of two\nSwitchName=leaf1 Nodes=n[01-02]\nSwitchName=leaf2 Nodes=n[03,4] "
    "LinkSpeed=100\nSwitchName=s1 \\\n  Switches=leaf[1-2]\nSwitchName=s2 Switches=leaf[1-2]\n";

TEST(Slurm, MakesLevelsOfSwitches) {
  const Imported made = cluster_of_slurm("c", kSlurm, kNodes, "mine");
  const Json cluster = Json::parse(made.text);
  EXPECT_EQ(cluster["groups"][0]["count"], 4);
  EXPECT_EQ(cluster["fabric"]["levels"],
            Json::parse(R"([{"nodes_per_group": 2}, {"nodes_per_group": 4}])"));
  EXPECT_THAT(made.notes, Contains(HasSubstr("s1 and s2")));
  EXPECT_THAT(made.notes, Contains(HasSubstr("LinkSpeed of line 3")));
}

TEST(Slurm, NamesLineAndReason) {
  const auto error = [](const std::string& text) {
    return error_of([&] { cluster_of_slurm("c", text, kNodes, "mine"); });
  };
  EXPECT_THAT(error("SwitchName=a Nodes=n1\nSwitchName=b Switches=a,x\n"),
              AllOf(HasSubstr("line 2"), HasSubstr("x is a switch that no line defines")));
  EXPECT_THAT(error("SwitchName=a Switches=b\nSwitchName=b Switches=a\n"), HasSubstr("itself"));
  EXPECT_THAT(error("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n"), HasSubstr("twice"));
  EXPECT_THAT(error("SwitchName=a Nodes=n[1-\n"), HasSubstr("line 1"));
  EXPECT_THAT(error("SwitchName=a Nodes=n[1-999999999]\n"), HasSubstr("range"));
  EXPECT_THAT(error("job_id,user\n1,2\n"), HasSubstr("no statement"));
}

// Cut at every byte and with every byte replaced, each sample is an import or an InputError.
TEST(Import, AnyDamageIsAnImportOrBadInput) {
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> readers{
      {kPairs, [](const std::string& t) { cluster(parse_nvidia_smi_topo("f", t), "a40"); }},
      {kSystem, [](const std::string& t) { cluster(parse_nccl_topology("f", t), "a40"); }},
      {kLog, [](const std::string& t) { table_of_nccl_tests("f", t, {}); }},
      {kSlurm, [](const std::string& t) { cluster_of_slurm("f", t, kNodes, "m"); }}};
  for (const auto& [sample, read] : readers) {
    std::size_t refused = 0;
    for (std::size_t i = 0; i < sample.size(); ++i) {
      for (const char c : {'\0', '9', '-', 'x', '<', '"', '\n', '\xff'}) {
        std::string damaged = sample;
        damaged[i] = c;
        EXPECT_NO_THROW(refused += error_of([&] { read(damaged); }).empty() ? 0 : 1) << damaged;
      }
      EXPECT_NO_THROW(refused += error_of([&] { read(sample.substr(0, i)); }).empty() ? 0 : 1);
    }
    EXPECT_GT(refused, sample.size());  // at least the byte 0 anywhere
  }
}

}  // namespace
}  // namespace gputwin
