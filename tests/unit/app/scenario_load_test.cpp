// What a good scenario becomes: the flagship by hand, defaults, name look-up, the resolved text.
#include <gmock/gmock.h>

#include "sim/app/json_text.h"
#include "sim/app/scenario.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

using test::data_dirs;
using test::kFlagship;
using test::kTinyScenario;
using ::testing::HasSubstr;

TEST(LoadScenario, ReadsTheFlagship) {
  const Scenario s = load_scenario(kFlagship, {}, data_dirs());
  const auto& m = std::get<Transformer>(s.workload);
  EXPECT_EQ(s.name, kFlagship);
  EXPECT_EQ(m.layers, 96);
  EXPECT_EQ(m.kv_heads, 96);   // left out: as many as heads
  EXPECT_EQ(m.head_dim, 128);  // left out: 12288 / 96
  // 12 L h^2 (1 + 13/(12 h)) + V h + s h + 2 h for the final norm, with L = 96, h = 12288, V =
  // 51200, s = 2048: 96 (12 * 12288^2 + 13 * 12288) + (51200 + 2048 + 2) * 12288.
  EXPECT_EQ(m.parameters(), 96 * (12 * 12288LL * 12288 + 13 * 12288LL) + 53250LL * 12288);
  EXPECT_EQ(s.cluster.nodes(), 128);
  EXPECT_EQ(s.cluster.gpus(), 1024);
  const NodeType& node = s.cluster.groups.at(0).type;
  EXPECT_EQ(node.device, "a100-sxm-80gb");
  EXPECT_DOUBLE_EQ(node.intra.per_gpu.value, 300e9);
  EXPECT_DOUBLE_EQ(node.nics.each.value, 25e9);  // 200 Gb/s
  EXPECT_EQ(node.host.memory.value, 2048LL << 30);
  EXPECT_TRUE(s.cluster.fabric.rail_optimized);
  EXPECT_DOUBLE_EQ(s.cluster.fabric.switch_latency.value, 0.13e-6);
  EXPECT_EQ(s.job.sequence, 2048);
  EXPECT_EQ(s.job.global_batch, 1536);
  EXPECT_EQ(s.job.precision.compute, DType::F16);
  EXPECT_EQ(s.job.attention, AttentionKernel::Unfused);
  EXPECT_EQ(s.layout.ranks(), 1024);
  EXPECT_EQ(s.layout.schedule, Schedule::OneFOneB);
  EXPECT_EQ(s.layout.recompute, Recompute::Full);
  EXPECT_EQ(s.what_if, WhatIf{});
}

TEST(LoadScenario, ReadsTheLargeOne) {
  const Scenario s = load_scenario("llama3_405b__h100_2048x8__tp8_pp16_dp128", {}, data_dirs());
  EXPECT_EQ(s.layout.ranks(), 16384);
  EXPECT_EQ(s.cluster.gpus(), 16384);
  // Embedding and head count as a layer each: 126 + 2 over 16 x 8 chunks is one apiece.
  EXPECT_EQ(s.layout.stage_layers.size(), 128u);
  EXPECT_EQ(s.layout.stage_layers.front(), 0);
  EXPECT_EQ(s.layout.stage_layers.back(), 0);
  EXPECT_EQ(std::get<Transformer>(s.workload).parameters(), 405853388800);
  EXPECT_EQ(s.layout.rank_order, (std::array{Dim::Tp, Dim::Cp, Dim::Pp, Dim::Dp}));
}

TEST(LoadScenario, FillsInDefaults) {
  const Scenario s = parse_scenario(kTinyScenario, "tiny.json");
  EXPECT_EQ(s.name, "unnamed");
  Layout layout;
  layout.schedule = Schedule::None;
  layout.bucket_elements = 0;  // as the stack
  EXPECT_EQ(s.layout, layout);
  EXPECT_EQ(s.job, (Job{.sequence = 128, .global_batch = 16}));
  const auto& m = std::get<Transformer>(s.workload);
  EXPECT_TRUE(m.bias);
  EXPECT_TRUE(m.tied_embeddings);
  EXPECT_EQ(m.norm, Norm::LayerNorm);
  EXPECT_EQ(m.dropout, 0.0);
  const NodeType& node = s.cluster.groups.at(0).type;
  EXPECT_EQ(node.intra.efficiency, 1.0);
  EXPECT_EQ(node.pcie.switch_uplink, node.pcie.per_gpu);
  EXPECT_EQ(node.nvme_read.value, 0.0);
  EXPECT_FALSE(s.cluster.fabric.rail_optimized);
}

// hwmodels/links/usable.json: TCP reaches 0.94 of 10 Gb/s and 0.65 of 50 Gb/s, PCIe 3 0.8; a shaped
// link adds its delay to the 25 us of TCP. What a file states stays.
TEST(LoadScenario, FillsInWhatNetworksReach) {
  const auto cluster = [](const std::string& kind, double Gbps, const std::string& more = "") {
    const std::string text =
        R"({"model": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 128,
        "activation": "gelu", "positions": "rope"}, "job": {"sequence": 128, "global_batch": 16},
        "cluster": {"groups": [{"count": 2, "type": {"device": "t4", "gpus": 4,
        "intra": {"kind": "pcie"}, "pcie": {"generation": 3, "bandwidth_GBps": 15.75},
        "host": {"cores": 8, "memory_GiB": 64, "dram_GBps": 100},
        "nics": {"per_node": 1, "each_Gbps": )" +
        std::to_string(Gbps) + R"(}}}], "fabric": {"kind": ")" + kind +
        R"(", "levels": [{"nodes_per_group": 2}])" + more + "}}}";
    return parse_scenario(text, "net.json").cluster;
  };
  const Cluster slow = cluster("ethernet", 10), fast = cluster("ethernet", 50);
  EXPECT_EQ(slow.groups[0].type.nics.efficiency, 0.94);
  EXPECT_EQ(fast.groups[0].type.nics.efficiency, 0.65);
  EXPECT_EQ(fast.groups[0].type.pcie.efficiency, 0.8);
  EXPECT_DOUBLE_EQ(fast.fabric.nic_latency.value, 25e-6);
  EXPECT_EQ(cluster("infiniband", 200).groups[0].type.nics.efficiency, 0.95);
  for (const char* kind : {"roce", "efa", "slingshot", "omni-path"}) {
    EXPECT_LT(cluster(kind, 100).groups[0].type.nics.efficiency, 1.0) << kind;
    EXPECT_GT(cluster(kind, 100).fabric.nic_latency.value, 0.0) << kind;
  }
  const Cluster shaped = cluster("ethernet", 1, R"(, "added_latency_us": 50000)");
  EXPECT_DOUBLE_EQ(shaped.fabric.nic_latency.value, 50.025e-3);
  const Cluster stated = cluster("ethernet", 1, R"(, "nic_latency_us": 7)");
  EXPECT_DOUBLE_EQ(stated.fabric.nic_latency.value, 7e-6);
}

TEST(LoadScenario, ChoosesTheScheduleThatFits) {
  const auto schedule = [](const std::vector<std::string>& sets) {
    return parse_scenario(kTinyScenario, "tiny.json", sets).layout.schedule;
  };
  EXPECT_EQ(schedule({}), Schedule::None);
  EXPECT_EQ(schedule({"layout.pp=2"}), Schedule::OneFOneB);
  EXPECT_EQ(schedule({"layout.pp=2", "layout.vpp=2"}), Schedule::Interleaved);
  EXPECT_EQ(schedule({"layout.pp=2", "layout.schedule=gpipe"}), Schedule::Gpipe);
}

TEST(LoadScenario, ReadsWhatTheJobKeepsAndFuses) {
  const Scenario s = parse_scenario(kTinyScenario, "tiny.json",
                                    {"job.precision.master=false", "job.optimizer=sgd",
                                     "job.fused_cross_entropy=true", "job.cuda_graph=true"});
  EXPECT_FALSE(s.job.precision.master);
  EXPECT_EQ(s.job.optimizer, Optimizer::Sgd);
  EXPECT_TRUE(s.job.fused_cross_entropy);
  EXPECT_TRUE(s.job.cuda_graph);
}

TEST(LoadScenario, ReadsFormatsBelowSixteenBits) {
  const auto job = [](const std::vector<std::string>& sets) {
    return parse_scenario(kTinyScenario, "tiny.json", sets).job;
  };
  EXPECT_EQ(job({"job.precision.compute=fp8"}).precision.recipe, Recipe::Delayed);
  EXPECT_EQ(job({"job.precision.compute=mxfp8"}).precision.recipe, Recipe::Mx);
  const Job current = job({"job.precision.compute=fp8", "job.precision.recipe=current",
                           "job.precision.params=fp8", "job.lora_rank=16"});
  EXPECT_EQ(current.precision.recipe, Recipe::Current);
  EXPECT_EQ(current.precision.params, DType::F8);
  EXPECT_EQ(current.lora_rank, 16);
}

TEST(LoadScenario, CountsRecomputedLayersByStage) {
  const auto layers = [](const std::string& set) {
    const Layout l = parse_scenario(kTinyScenario, "tiny.json", {"layout.pp=2", set}).layout;
    EXPECT_EQ(l.recompute, Recompute::Block);
    return std::pair(l.recomputed_layers(0), l.recomputed_layers(1));
  };
  EXPECT_EQ(layers("layout.recompute_layers=2"), std::pair(2, 2));
  EXPECT_EQ(layers("layout.recompute_layers=[2,0]"), std::pair(2, 0));
}

TEST(LoadScenario, ResolvedTextLoadsToTheSameScenario) {
  const Scenario s = load_scenario(kFlagship, {"layout.dp=4"}, data_dirs());
  const Scenario again = parse_scenario(s.resolved, "resolved.json");  // needs no data directory
  EXPECT_EQ(again.resolved, s.resolved);
  EXPECT_EQ(again.layout, s.layout);
  EXPECT_EQ(again.cluster, s.cluster);
  EXPECT_EQ(std::get<Transformer>(again.workload), std::get<Transformer>(s.workload));
  EXPECT_EQ(again.job, s.job);
}

TEST(LoadScenario, ListsFacts) {
  const auto facts = [](const std::vector<Listing>& list, const std::string& name) {
    for (const Listing& l : list) {
      if (l.name == name) return l.facts;
    }
    return std::string();
  };
  EXPECT_EQ(facts(list_models(data_dirs()), "llama3_8b"),
            "   8.0 B parameters, 32 layers, hidden 4096, 32 heads (8 kv), vocabulary 128256");
  EXPECT_EQ(facts(list_clusters(data_dirs()), "a100_128x8"),
            "128 x 8 a100-sxm-80gb, nvswitch 300 GB/s, 8 x 200 Gb/s infiniband, 2 levels, "
            "rail-optimised");
  EXPECT_EQ(facts(list_clusters(data_dirs()), "b200_1x8"), "1 x 8 b200-sxm, nvswitch 900 GB/s");
  EXPECT_THAT(facts(list_runs(data_dirs()), kFlagship), HasSubstr("1024 GPUs"));
}

// The words of the variants: halves for Merak and Domino, costs decide else.
TEST(LoadScenario, ReadsPasses) {
  const auto layout = [](const char* passes) {
    Json document = Json::parse(kTinyScenario);
    document["passes"] = Json::parse(passes);
    return parse_scenario(document.dump(), "tiny.json").layout;
  };
  EXPECT_FALSE(layout("[]").chunk_overlap.on());
  EXPECT_EQ(layout(R"([{"overlap": {}}])").chunk_overlap.max_chunks, 4);
  const ChunkOverlap domino = layout(R"([{"overlap": {"variant": "domino"}}])").chunk_overlap;
  EXPECT_EQ(domino.max_chunks, 2);
  EXPECT_TRUE(domino.equal);
  EXPECT_EQ(domino.split, ChunkSplit::Samples);
  const ChunkOverlap cut = layout(R"([{"overlap": {"split": "sequence"}}])").chunk_overlap;
  EXPECT_TRUE(cut.sequence(1) && cut.sequence(2));
  const ChunkOverlap either = layout(R"([{"overlap": {"split": "auto"}}])").chunk_overlap;
  EXPECT_TRUE(either.sequence(1) && !either.sequence(2));
  const Compression c =
      layout(R"([{"compress": {"activations": {"codec": "topk_pwq", "keep": 0.3}}}])").compression;
  EXPECT_EQ(c.forward, (Codec{.kind = CodecKind::TopkPwq, .keep = 0.3, .bits = 8}));
  EXPECT_EQ(c.backward, Codec{});
  const Compression of_gradients = layout(R"([{"compress": {
      "dp_gradients": {"codec": "powersgd", "rank": 8, "error_feedback": true},
      "pp_gradients": {"codec": "int4"}}}])")
                                       .compression;
  EXPECT_EQ(of_gradients.reduced, (Codec{.kind = CodecKind::LowRank, .rank = 8}));
  EXPECT_TRUE(of_gradients.feedback);
  EXPECT_EQ(of_gradients.sent, Codec{});
  EXPECT_EQ(of_gradients.sent_back, (Codec{.kind = CodecKind::Block, .bits = 4}));
}

}  // namespace
}  // namespace gputwin
