// From the inputs of a published run to a scenario.
#include "validation/runs/row_scenario.h"

#include <gmock/gmock.h>

#include "sim/app/scenario.h"

namespace gputwin {
namespace {

using Json = nlohmann::ordered_json;

// A GPT of two layers on two nodes of four A100, tp 2, pp 2, dp 2, eight micro-batches.
Json small_config() {
  return Json::parse(R"({
    "device_id": "a100-sxm-80gb", "devices": 8, "nodes": 2, "devices_per_node": 4, "node_size": 4,
    "intra": {"kind": "nvswitch", "GBps_per_device_per_direction": 300, "pcie_gen": 4},
    "fabric": {"kind": "infiniband", "nics_per_node": 4, "nic_Gbps": 200},
    "precision": {"compute": "fp16", "params": "fp16", "grads": "fp32", "master": "fp32"},
    "model": {"kind": "decoder", "name": "tiny", "layers": 4, "hidden": 256, "heads": 4,
              "ffn": 1024, "vocab": 1001, "seq": 128, "activation": "gelu",
              "positions": "learned", "tied_embeddings": true},
    "parallel": {"tp": 2, "sp": true, "pp": 2, "vpp": 1, "dp": 2, "cp": 1, "zero": 0,
                 "schedule": "1f1b", "stage_rule": "even"},
    "batch": {"micro": 2, "global": 32},
    "recompute": "full", "attention": "unfused", "distributed_optimizer": true,
    "optimizer": "adam", "stack": "megatron-lm-2022"})");
}

Json scenario_of(const Json& config) {
  const auto result = row_scenario("row", config);
  if (const auto* no = std::get_if<Unsupported>(&result)) return {{"refused", no->reason}};
  return std::get<Json>(result);
}

TEST(RowScenario, TranslatesASmallRun) {
  const Json s = scenario_of(small_config());
  EXPECT_EQ(s["model"]["layers"], 4);
  EXPECT_EQ(s["model"]["head_dim"], 64);             // 256 / 4
  EXPECT_EQ(s["model"]["kv_heads"], 4);              // as many as heads
  EXPECT_EQ(s["model"]["vocab"], 1024);              // 1,001 is odd: to a multiple of 128 tp
  EXPECT_EQ(s["model"]["max_positions"], 128);       // learned positions: one per token
  EXPECT_EQ(s["cluster"]["groups"][0]["count"], 2);  // nodes
  EXPECT_EQ(s["cluster"]["groups"][0]["type"]["gpus"], 4);
  EXPECT_EQ(s["cluster"]["groups"][0]["type"]["nics"]["each_Gbps"], 200);
  EXPECT_EQ(s["job"]["sequence"], 128);
  EXPECT_EQ(s["job"]["global_batch"], 32);
  EXPECT_EQ(s["job"]["precision"]["grads"], "fp32");
  EXPECT_EQ(s["job"]["stack"], "megatron-lm-2022");
  EXPECT_EQ(s["layout"]["tp"], 2);
  EXPECT_EQ(s["layout"]["sp"], true);
  EXPECT_EQ(s["layout"]["zero"], 1);  // Megatron's distributed optimizer
  EXPECT_EQ(s["layout"]["schedule"], "1f1b");
  EXPECT_EQ(s["layout"]["micro_batch"], 2);
  EXPECT_EQ(s["layout"]["recompute"], "full");
}

TEST(RowScenario, IsAScenario) {
  const Scenario s = parse_scenario(scenario_of(small_config()).dump(), "row", {}, {});
  EXPECT_EQ(s.cluster.gpus(), 8);
  EXPECT_EQ(s.layout.dp, 2);
  EXPECT_TRUE(s.what_if.unlimited_memory);  // it ran, so it fitted
}

// 14 layers on 2 x 2 chunks with embedding and head counted as a layer each: 16 / 4, less one at
// both ends.
TEST(RowScenario, CountsEmbeddingAndHeadWhereTheSourceDoes) {
  Json config = small_config();
  config["model"]["layers"] = 14;
  config["parallel"].update(
      {{"vpp", 2}, {"schedule", "interleaved"}, {"stage_rule", "embed-loss"}});
  EXPECT_EQ(scenario_of(config)["layout"]["stage_layers"], (Json{3, 4, 4, 3}));
}

// Two of four GPUs per node: ranks 2 and 3 are on GPUs 4 and 5.
TEST(RowScenario, LeavesUnusedGpusOfANodeOut) {
  Json config = small_config();
  config.update({{"devices", 4}, {"devices_per_node", 2}});
  config["parallel"]["dp"] = 1;
  EXPECT_EQ(scenario_of(config)["layout"]["devices"], (Json{0, 1, 4, 5}));
}

TEST(RowScenario, ReadsNothingButTheConfig) {
  Json noisy = small_config();
  noisy["target"] = {{"time_s", 3.0}};
  noisy["id"] = "something";
  EXPECT_EQ(scenario_of(noisy), scenario_of(small_config()));
}

// DeepSeek-V3's 61 layers on 16 chunks of a stack whose recipes cut them 4, 4, .., 1; the layer of
// multi-token prediction joins the last.
TEST(RowScenario, CutsExpertsAsTheStacksRecipesDo) {
  Json config = small_config();
  config["stack"] = "megatron-bridge-nemo-26.08";
  config["attention"] = "cudnn";
  config["model"].update({{"layers", 61}, {"positions", "rope"}, {"activation", "swiglu"}});
  config["model"].update(
      {{"moe", {{"experts", 8}, {"topk", 2}, {"ffn", 64}, {"shared_ffn", 64}, {"every", 1}}},
       {"mla", {{"q_lora", 64}, {"kv_lora", 32}, {"nope", 32}, {"rope", 16}, {"v", 32}}},
       {"dense_layers", 3},
       {"mtp_layers", 1}});
  config["parallel"].update({{"tp", 1},
                             {"dp", 4},
                             {"ep", 4},
                             {"vpp", 8},
                             {"schedule", "interleaved"},
                             {"stage_rule", "unknown"}});
  config["recompute"] = "modules";
  config["recompute_modules"] = {"mla_up_proj", "layernorm"};
  const Json s = scenario_of(config);
  EXPECT_EQ(s["model"]["layers"], 62);
  EXPECT_EQ(s["layout"]["stage_layers"], (Json{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2}));
  EXPECT_EQ(s["layout"]["ep"], 4);
  EXPECT_EQ(s["layout"]["recompute_modules"], (Json{"mla_up_proj", "norms"}));
  EXPECT_EQ(s["model"]["moe"]["dense_layers"], 3);
  EXPECT_FALSE(s["model"].contains("head_dim"));
  parse_scenario(s.dump(), "row", {}, {});
}

// Rows do not state the biases that GPT-OSS was published with; other models with experts have
// none.
TEST(RowScenario, GivesGptOssItsBiases) {
  Json config = small_config();
  config["model"].update({{"positions", "rope"}, {"activation", "swiglu"}});
  config["model"]["moe"] = {{"experts", 8}, {"topk", 2}, {"ffn", 64}};
  config["parallel"].update({{"tp", 1}, {"dp", 4}, {"ep", 4}});
  Json s = scenario_of(config);
  EXPECT_EQ(s["model"]["bias"], false);
  EXPECT_FALSE(s["model"]["moe"].contains("bias"));
  config["model"]["name"] = "gpt-oss-20b";
  s = scenario_of(config);
  EXPECT_EQ(s["model"]["bias"], true);
  EXPECT_EQ(s["model"]["moe"]["bias"], true);
}

TEST(RowScenario, SaysWhatItCannotTranslate) {
  Json config = small_config();
  config["model"]["kind"] = "cnn";
  EXPECT_THAT(scenario_of(config)["refused"].get<std::string>(),
              testing::HasSubstr("the layers of tiny are not known"));
  config["model"]["kind"] = "diffusion";
  EXPECT_THAT(scenario_of(config)["refused"].get<std::string>(), testing::HasSubstr("diffusion"));
  config = small_config();
  config["fabric"] = nullptr;
  EXPECT_THAT(scenario_of(config)["refused"].get<std::string>(), testing::HasSubstr("network"));
  config = small_config();
  config["model"]["hidden"] = nullptr;
  EXPECT_THAT(scenario_of(config)["refused"].get<std::string>(), testing::HasSubstr("hidden size"));
}

}  // namespace
}  // namespace gputwin
