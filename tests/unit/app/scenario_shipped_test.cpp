// Every shipped file loads, is what its name says, and is documented.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "sim/app/json_text.h"
#include "sim/app/scenario.h"
#include "sim/app/scenario_schema.h"
#include "sim/core/spelling.h"
#include "strategies/offload/strategies.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

using test::data_dirs;
using test::shipped;
using ::testing::HasSubstr;

std::string name_of(const Workload& workload) {
  return std::visit([](const auto& w) { return w.name; }, workload);
}

/// "3-1" for replicas 3 and 1.
std::string replicas_text(const std::vector<std::int32_t>& replicas) {
  std::string text;
  for (const std::int32_t r : replicas) text += (text.empty() ? "" : "-") + std::to_string(r);
  return text;
}

/// The words of "a_b_c".
std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> list;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, '_');) list.push_back(word);
  return list;
}

/// The named strategy whose settings these are.
std::string strategy_of(OffloadSpec spec) {
  for (const OffloadStrategy& s : offload_strategies()) {
    OffloadSpec named = s.spec;
    named.enabled = spec.enabled;
    if (named == spec) return std::string(s.name);
  }
  return "";
}

TEST(ShippedScenarios, NamesEqualContents) {
  for (const auto& file : shipped("runs")) {
    SCOPED_TRACE(file.filename().string());
    const Scenario s = load_scenario(file, {}, data_dirs());
    const Layout& l = s.layout;
    EXPECT_EQ(file.stem().string(), s.name);
    const std::string head = name_of(s.workload) + "__" + s.cluster.name + "__" + "tp" +
                             std::to_string(l.tp) + "_pp" + std::to_string(l.pp) + "_dp" +
                             std::to_string(l.dp);
    ASSERT_TRUE(s.name.starts_with(head)) << s.name << " does not begin with " << head;
    for (const std::string& word : words(s.name.substr(head.size()))) {
      const bool told =
          word.empty() || word == to_string(l.schedule) || word == to_string(l.recompute) ||
          (!l.stage_replicas.empty() && word == replicas_text(l.stage_replicas)) ||
          (word == "sp" && l.sp) || (l.zero > 0 && word == "zero" + std::to_string(l.zero)) ||
          (word == "cp" + std::to_string(l.cp) && l.cp > 1) ||
          (word == "ep" + std::to_string(l.ep) && l.ep > 1) ||
          (l.ep_comm != ExpertComm::Flat && word == to_string(l.ep_comm)) ||
          (word == "overlap" && l.chunk_overlap.on()) ||
          (word == "compress" && l.compression.on()) ||
          (l.offload.enabled && (word == "offload" || word == strategy_of(l.offload))) ||
          (word == "straggler" && !s.what_if.stragglers.empty());
      EXPECT_TRUE(told) << "the word " << word << " says something the file does not";
    }
  }
}

TEST(ShippedScenarios, ModelsAndClustersAreNamedAfterTheirFiles) {
  for (const auto& file : shipped("models")) {
    const Workload workload = load_model(file.stem().string(), data_dirs());
    EXPECT_EQ(name_of(workload), file.stem().string());
  }
  for (const auto& file : shipped("clusters")) {
    const Cluster cluster = load_cluster(file.stem().string(), data_dirs());
    EXPECT_EQ(cluster.name, file.stem().string());
    EXPECT_EQ(cluster.fabric.kind == FabricKind::None, cluster.nodes() == 1);
  }
  EXPECT_GE(shipped("models").size(), 29u);
  EXPECT_GE(shipped("clusters").size(), 20u);
  EXPECT_GE(shipped("runs").size(), 18u);
}

// Published parameter counts; Megatron's from P = 12 L h^2 (1 + 13/(12 h) + (V + s)/(12 L h)),
// SC'21 eq. 2.
TEST(ShippedScenarios, ModelsHaveTheirPublishedSize) {
  const auto parameters = [](const std::string& name) {
    return std::get<Transformer>(load_model(name, data_dirs())).parameters();
  };
  EXPECT_EQ(parameters("llama2_7b"), 6738415616);
  EXPECT_EQ(parameters("llama2_13b"), 13015864320);
  EXPECT_EQ(parameters("llama2_70b"), 68976648192);
  EXPECT_EQ(parameters("llama3_8b"), 8030261248);
  EXPECT_EQ(parameters("llama3_70b"), 70553706496);
  EXPECT_EQ(parameters("llama3_405b"), 405853388800);
  // Mistral AI's own count; DeepSeek's has 256 routing biases in each of 58 layers besides, Qwen's
  // gains of the norms of queries and keys, 2 x 128 in each of 48.
  EXPECT_EQ(parameters("mixtral_8x7b"), 46702792704);
  EXPECT_EQ(parameters("deepseek_v3"), 671026419200 - 58 * 256);
  EXPECT_EQ(parameters("qwen3_30b_a3b"), 30532122624 - 48 * 256);
  // 124,439,808 with GPT-2's 50257 words; padding adds 47 rows of 768.
  EXPECT_EQ(parameters("gpt2_124m"), 124439808 + (50304 - 50257) * 768);
  const std::pair<const char*, double> billions[] = {{"gpt_22b", 22.1},
                                                     {"megatron_gpt_1_7b", 1.7},
                                                     {"megatron_gpt_3_6b", 3.6},
                                                     {"megatron_gpt_7_5b", 7.5},
                                                     {"megatron_gpt_18b", 18.4},
                                                     {"megatron_gpt_39b", 39.1},
                                                     {"megatron_gpt_76b", 76.1},
                                                     {"megatron_gpt_145b", 145.6},
                                                     {"megatron_gpt_310b", 310.1},
                                                     {"megatron_gpt_530b", 529.6},
                                                     {"megatron_gpt_1t", 1008.0},
                                                     {"gpt3_175b", 174.6}};
  for (const auto& [name, printed] : billions) {
    EXPECT_NEAR(static_cast<double>(parameters(name)) / 1e9, printed, 0.051) << name;
  }
}

// Published parameter counts of torchvision, without batch norm's running figures.
TEST(ShippedScenarios, GraphsHaveTheirPublishedSize) {
  const auto graph = [](const std::string& name) {
    return std::get<LayerGraph>(load_model(name, data_dirs()));
  };
  EXPECT_EQ(graph("vgg16").parameters(), 138357544);
  EXPECT_EQ(graph("vgg19").parameters(), 143667240);
  EXPECT_EQ(graph("alexnet").parameters(), 61100840);
  EXPECT_EQ(graph("resnet50").parameters(), 25557032);
  EXPECT_EQ(graph("resnet101").parameters(), 44549160);
  EXPECT_EQ(graph("resnet152").parameters(), 60192808);
  EXPECT_EQ(graph("wide_resnet50_2").parameters(), 68883240);
  EXPECT_EQ(graph("inception_v3").parameters(), 23834568);
  // 319 M at 416 filters (torchgpipe); weights grow with the square of the filters.
  const double wide = 319e6 * 256 * 256 / (416.0 * 416.0);
  EXPECT_NEAR(static_cast<double>(graph("amoebanet_d_18_256").parameters()), wide, 0.02 * wide);
  EXPECT_EQ(graph("amoebanet_d_18_256").units(), 24);
  // 4.09 and 15.47 billion multiplications of a 224 x 224 image.
  EXPECT_NEAR(graph("resnet50").forward_flops().value, 2 * 4.09e9, 0.02e9);
  EXPECT_NEAR(graph("vgg16").forward_flops().value, 2 * 15.47e9, 0.05e9);
}

/// Calls `visit` with every property of a schema: its key, its subschema.
template <class Visit>
void for_each_key(const Json& schema, const Visit& visit) {
  if (schema.contains("properties")) {
    for (const auto& [key, sub] : schema["properties"].items()) {
      visit(key, sub);
      for_each_key(sub, visit);
    }
  }
  if (schema.contains("items")) for_each_key(schema["items"], visit);
}

TEST(ShippedScenarios, ReadmeDocumentsEveryKey) {
  std::ifstream stream(data_dirs()[0] / "README.md");
  std::stringstream text;
  text << stream.rdbuf();
  for (const SchemaKind kind :
       {SchemaKind::Scenario, SchemaKind::Model, SchemaKind::Graph, SchemaKind::Cluster}) {
    for_each_key(schema_json(kind), [&](const std::string& key, const Json& sub) {
      const std::string meaning = sub.at("description").get<std::string>();
      EXPECT_THAT(text.str(), HasSubstr("| `" + key + "` |")) << "README.md has no row for it";
      EXPECT_THAT(text.str(), HasSubstr(meaning)) << "README.md words " << key << " differently";
    });
  }
}

}  // namespace
}  // namespace gputwin
