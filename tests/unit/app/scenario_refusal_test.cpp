// What a wrong scenario is told: file, pointer, value, problem and the nearest legal choice.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "sim/app/json_text.h"
#include "sim/app/scenario.h"
#include "sim/app/suggestion.h"
#include "sim/core/error.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

using test::data_dirs;
using test::kTinyScenario;
using ::testing::HasSubstr;

/// The error that `text` with `sets` provokes.
InputError refusal_of_text(const std::string& text, const std::vector<std::string>& sets = {}) {
  try {
    parse_scenario(text, "s.json", sets, data_dirs());
  } catch (const InputError& e) {
    return e;
  }
  ADD_FAILURE() << "was accepted: " << text.substr(0, 200);
  return {"", "", "", "", ""};
}

/// The error after merging `patch` (RFC 7386) into the tiny scenario: two nodes of eight GPUs, a
/// model of 4 layers, 8 heads, hidden 64, ffn 256, vocab 512, 16 samples of 128 tokens.
InputError refusal(const char* patch) {
  Json document = Json::parse(kTinyScenario);
  document.merge_patch(Json::parse(patch));
  return refusal_of_text(document.dump());
}

TEST(Refusal, SaysWhatDoesNotDivideAndWhatWould) {
  // Common divisors of 8 heads, 256 and 512: 1, 2, 4, 8.
  const InputError e = refusal(R"({"layout": {"tp": 3}})");
  EXPECT_STREQ(e.what(),
               "s.json: /layout/tp: 3 does not divide heads (8) (nearest legal values: 2, 4)");
  EXPECT_EQ(refusal(R"({"layout": {"tp": 16}})").fix, "nearest legal value: 8");
  EXPECT_THAT(refusal(R"({"layout": {"tp": 8}, "model": {"kv_heads": 4}})").problem,
              HasSubstr("does not divide kv_heads (4)"));
  EXPECT_THAT(refusal(R"({"layout": {"tp": 8}, "model": {"ffn": 260}})").fix, HasSubstr(": 4"));
  EXPECT_THAT(refusal(R"({"layout": {"tp": 8}, "model": {"vocab": 510}})").fix, HasSubstr(": 2"));
}

TEST(Refusal, CountsRanksAgainstGpus) {
  const InputError e =
      refusal(R"({"layout": {"tp": 4, "pp": 2, "dp": 8}, "job": {"global_batch": 64}})");
  EXPECT_EQ(e.pointer, "/layout/dp");
  EXPECT_EQ(e.problem, "makes tp x cp x dp x pp = 64 ranks on 16 GPUs");
  EXPECT_EQ(e.fix, "nearest legal value: 2");  // 16 / (4 x 2)
}

TEST(Refusal, NeedsWholeMicroBatches) {
  // 16 samples over dp 3 x micro-batch 2 = 6: 12 and 18 would do.
  const InputError e = refusal(R"({"layout": {"dp": 3, "micro_batch": 2}})");
  EXPECT_EQ(e.pointer, "/job/global_batch");
  EXPECT_EQ(e.fix, "nearest legal values: 12, 18");
  // An override is blamed before the file: of 16 samples dp may be 2 or 4, not 3.
  const InputError set = refusal_of_text(kTinyScenario, {"layout.dp=3"});
  EXPECT_EQ(set.file, "--set");
  EXPECT_EQ(set.pointer, "/layout/dp");
  EXPECT_EQ(set.fix, "nearest legal values: 2, 4");
}

TEST(Refusal, KnowsWhatInterleavingNeeds) {
  EXPECT_EQ(refusal(R"({"layout": {"schedule": "interleaved", "pp": 2}})").pointer, "/layout/vpp");
  EXPECT_EQ(refusal(R"({"layout": {"schedule": "interleaved", "vpp": 2}})").pointer, "/layout/pp");
  EXPECT_EQ(refusal(R"({"layout": {"schedule": "1f1b", "pp": 2, "vpp": 2}})").pointer,
            "/layout/vpp");
  EXPECT_EQ(refusal(R"({"layout": {"schedule": "none", "pp": 2}})").pointer, "/layout/schedule");
  // 6 micro-batches are no multiple of 4 stages: 4 or 8 are.
  const InputError e = refusal(R"({"layout": {"schedule": "interleaved", "pp": 4, "vpp": 2},
                                   "model": {"layers": 8}, "job": {"global_batch": 6}})");
  EXPECT_EQ(e.pointer, "/job/global_batch");
  EXPECT_EQ(e.fix, "nearest legal values: 4, 8");
}

TEST(Refusal, CountsLayers) {
  EXPECT_EQ(refusal(R"({"layout": {"pp": 8}})").fix, "nearest legal value: 4");
  const InputError count = refusal(R"({"layout": {"pp": 2, "stage_layers": [1, 2, 1]}})");
  EXPECT_EQ(count.pointer, "/layout/stage_layers");
  EXPECT_THAT(count.problem, HasSubstr("3 entries for pp x vpp = 2 chunks"));
  EXPECT_THAT(refusal(R"({"layout": {"pp": 2, "stage_layers": [1, 2]}})").fix,
              HasSubstr("add 1 layers"));
  EXPECT_EQ(refusal(R"({"layout": {"pp": 3, "stage_layers": [2, 0, 2]}})").pointer,
            "/layout/stage_layers/1");
  EXPECT_EQ(refusal(R"({"layout": {"recompute": "block", "recompute_layers": 5}})").fix,
            "nearest legal value: 4");
  for (const char* modules :
       {R"({"layout": {"recompute": "full", "recompute_modules": ["norms"]}})",
        R"({"layout": {"recompute_modules": ["ops", "mlp"]}})",
        // A dense model without latent attention.
        R"({"layout": {"recompute_modules": ["norms", "moe"]}})",
        R"({"layout": {"recompute_modules": ["moe_act"]}})",
        R"({"layout": {"recompute_modules": ["mla_up_proj"]}})"}) {
    EXPECT_EQ(refusal(modules).pointer, "/layout/recompute_modules");
  }
  const InputError stages = refusal(R"({"layout": {"pp": 2, "recompute_layers": [1, 0, 2]}})");
  EXPECT_EQ(stages.pointer, "/layout/recompute_layers");
  EXPECT_THAT(stages.problem, HasSubstr("3 entries for 2 stages"));
  const InputError stage = refusal(R"({"layout": {"pp": 2, "recompute_layers": [1, 3]}})");
  EXPECT_EQ(stage.pointer, "/layout/recompute_layers/1");
  EXPECT_EQ(stage.fix, "nearest legal value: 2");
  EXPECT_EQ(refusal(R"({"layout": {"recompute": "full", "recompute_layers": 2}})").pointer,
            "/layout/recompute_layers");
}

// Of a layer graph gradients alone are coded, and whole stages recomputed.
TEST(Refusal, KnowsWhatLayerGraphsHave) {
  const auto of_graph = [](const std::string& rest) {
    return refusal((R"({"model": "vgg16", "job": {"sequence": 1}, )" + rest + "}").c_str());
  };
  EXPECT_EQ(of_graph(R"("passes": [{"overlap": {}}])").pointer, "/passes/0/overlap");
  EXPECT_THAT(of_graph(R"("passes": [{"compress": {"search": true}}])").problem,
              HasSubstr("not built for layer graphs"));
  EXPECT_EQ(of_graph(R"("passes": [{"compress": {"pp_gradients": {"codec": "int8"}}}])").pointer,
            "/passes/0/compress/pp_gradients");
  EXPECT_EQ(of_graph(R"("layout": {"recompute_modules": ["ops"]})").pointer,
            "/layout/recompute_modules");
}

TEST(Refusal, NeedsTheSequenceToDivideWithSequenceParallelism) {
  const InputError e = refusal(R"({"layout": {"tp": 8, "sp": true}, "job": {"sequence": 100}})");
  EXPECT_EQ(e.pointer, "/job/sequence");
  EXPECT_EQ(e.fix, "nearest legal values: 96, 104");
}

TEST(Refusal, NeedsShardGroupsThatDivideTheDataParallelRanks) {
  EXPECT_THAT(refusal(R"({"layout": {"zero": 4}})").fix, HasSubstr("nearest legal value: 3"));
  const InputError e = refusal(R"({"layout": {"dp": 4, "zero": 3, "hsdp_group": 3}})");
  EXPECT_EQ(e.pointer, "/layout/hsdp_group");
  EXPECT_THAT(e.fix, HasSubstr("nearest legal values: 2, 4"));
  EXPECT_THAT(refusal(R"({"layout": {"zero": 1, "hsdp_group": 2}})").problem,
              HasSubstr("zero 1 shards no gradients"));
}

TEST(Refusal, KnowsWhichRecipeFitsWhichFormat) {
  const InputError mx = refusal(R"({"job": {"precision": {"compute": "fp8", "recipe": "mx"}}})");
  EXPECT_EQ(mx.pointer, "/job/precision/recipe");
  EXPECT_EQ(mx.fix, "set recipe to delayed");
  EXPECT_EQ(refusal(R"({"job": {"precision": {"recipe": "current"}}})").fix, "set recipe to none");
  EXPECT_EQ(refusal(R"({"job": {"precision": {"params": "fp8"}}})").pointer,
            "/job/precision/params");
  EXPECT_EQ(refusal(R"({"layout": {"tp_overlap": "userbuffers"}})").pointer, "/layout/tp_overlap");
  EXPECT_EQ(refusal(R"({"layout": {"tp_overlap": "ring-exchange"}})").pointer,
            "/layout/tp_overlap");
}

TEST(Refusal, SaysWhatContextParallelismNeeds) {
  const InputError odd = refusal(R"({"layout": {"cp": 2}, "job": {"sequence": 102}})");
  EXPECT_EQ(odd.problem, "does not fit: 2 cp (4) divides sequence (102)");
  const InputError heads = refusal(R"({"layout": {"cp": 5, "cp_comm": "all-to-all"},
                                       "job": {"sequence": 100}})");
  EXPECT_THAT(heads.problem, HasSubstr("cp (5) does not divide kv_heads / tp"));
  EXPECT_EQ(heads.fix, "set cp_comm to all-gather or ring");
  const InputError ring = refusal(R"({"layout": {"cp": 2, "cp_comm": "ring"},
                                      "job": {"attention": "unfused", "sequence": 100}})");
  EXPECT_EQ(ring.pointer, "/layout/cp_comm");
  EXPECT_THAT(ring.fix, HasSubstr("cp_comm to all-gather"));
}

// Shares below 0, above 1 and, where nothing would be left, at the end of their range. -0.5 was
// taken for "as little as memory asks for", which -1 stands for.
TEST(Refusal, TakesSharesThatMeanSomething) {
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"offload": {"optimizer_share": -0.5}})", "/offload/optimizer_share"},
      {R"({"offload": {"optimizer_share": -2}})", "/offload/optimizer_share"},
      {R"({"offload": {"optimizer_share": 1.01}})", "/offload/optimizer_share"},
      {R"({"offload": {"reserve": -0.1}})", "/offload/reserve"},
      {R"({"offload": {"reserve": 1}})", "/offload/reserve"},
      {R"({"compress": {"max_error": -0.1}})", "/compress/max_error"},
      {R"({"compress": {"max_error": 1.5}})", "/compress/max_error"},
      {R"({"compress": {"activations": {"codec": "topk", "keep": 0}}})",
       "/compress/activations/keep"},
      {R"({"compress": {"dp_gradients": {"codec": "topk", "keep": -0.1}}})",
       "/compress/dp_gradients/keep"},
      {R"({"compress": {"gradients": {"codec": "topk", "keep": 1.1}}})",
       "/compress/gradients/keep"},
      // A setting that the codec does not have was dropped, or changed another codec's bits.
      {R"({"compress": {"activations": {"codec": "int8", "keep": 0.5}}})",
       "/compress/activations/keep"},
      {R"({"compress": {"pp_gradients": {"codec": "int4", "bits": 2}}})",
       "/compress/pp_gradients/bits"},
      {R"({"compress": {"dp_gradients": {"codec": "pwq", "rank": 4}}})",
       "/compress/dp_gradients/rank"}};
  for (const auto& [pass, pointer] : wrong) {
    const std::string passes = std::string(R"({"passes": [)") + pass + "]}";
    EXPECT_EQ(refusal(passes.c_str()).pointer, "/passes/0" + std::string(pointer)) << pass;
  }
  const InputError share = refusal(R"({"passes": [{"offload": {"optimizer_share": -0.5}}]})");
  EXPECT_THAT(share.fix, HasSubstr("-1"));
}

TEST(Refusal, TakesEachPassOnceAndKnownCodecs) {
  const InputError twice = refusal(R"({"passes": [{"overlap": {}}, {"overlap": {}}]})");
  EXPECT_EQ(twice.pointer, "/passes/1/overlap");
  EXPECT_EQ(twice.fix, "remove one");
  EXPECT_EQ(refusal(R"({"passes": [{"compress": {"activations": {"codec": "zip"}}}]})").pointer,
            "/passes/0/compress/activations/codec");
  EXPECT_EQ(refusal(R"({"passes": [{"overlap": {"max_chunks": 99}}]})").pointer,
            "/passes/0/overlap/max_chunks");
  EXPECT_EQ(refusal(R"({"layout": {"tp": 2, "sp": true, "tp_overlap": "columns"}})").problem,
            "does not fit: sequence parallelism has no all-reduces to cut");
}

TEST(Refusal, SaysNotSupportedYetWithTheNearestChoice) {
  const auto expect = [](const char* patch, const char* pointer, const char* fix) {
    const InputError e = refusal(patch);
    EXPECT_EQ(e.pointer, pointer);
    EXPECT_THAT(e.problem, HasSubstr("not supported yet"));
    EXPECT_THAT(e.fix, HasSubstr(fix));
  };
  expect(R"({"layout": {"schedule": "v-min"}})", "/layout/schedule", "zb-v");
  expect(R"({"layout": {"recompute": "modules"}})", "/layout/recompute", "selective");
  expect(R"({"layout": {"tp_overlap": "domain"}})", "/layout/tp_overlap", "userbuffers");
  expect(R"({"job": {"attention": "flash4"}})", "/job/attention", "flash3");
  expect(R"({"model": {"mtp_layers": 1}})", "/model/mtp_layers", "remove");
}

TEST(Refusal, ChecksExpertsAndLatentAttention) {
  const auto expect = [](const char* patch, const char* pointer, const char* problem) {
    const InputError e = refusal(patch);
    EXPECT_EQ(e.pointer, pointer);
    EXPECT_THAT(e.problem, HasSubstr(problem));
  };
  expect(R"({"layout": {"ep": 8}})", "/layout/ep", "the model has no experts");
  expect(R"({"job": {"expert_load": [1.0]}})", "/job/expert_load", "the model has no experts");
  expect(R"({"model": {"moe": {"experts": 8, "top_k": 2, "ffn": 64}}, "layout": {"ep": 3}})",
         "/layout/ep", "does not divide");
  expect(R"({"model": {"moe": {"experts": 8, "top_k": 9, "ffn": 64}}})", "/model/moe/top_k",
         "top_k (9) of 8 experts");
  expect(R"({"model": {"moe": {"experts": 8, "top_k": 2}}})", "/model/moe/ffn", "is missing");
  expect(R"({"model": {"moe": {"experts": 8, "top_k": 2, "ffn": 64, "dense_layers": 100000}}})",
         "/model/moe/dense_layers", "leaves none");
  expect(R"({"model": {"full_every": 2}})", "/model/full_every", "without a window");
  expect(R"({"model": {"window": 64}, "job": {"attention": "unfused"}})", "/job/attention",
         "runs in flash kernels");
}

TEST(Refusal, FindsTheNearestSpelling) {
  const InputError key = refusal(R"({"layout": {"micro_bach": 1}})");
  EXPECT_EQ(key.pointer, "/layout/micro_bach");
  EXPECT_THAT(key.fix, HasSubstr("did you mean \"micro_batch\"?"));
  EXPECT_THAT(refusal(R"({"layout": {"schedule": "1F1B"}})").fix, HasSubstr("nearest: 1f1b"));
  EXPECT_THAT(refusal(R"({"job": {"stack": "megatronlm-2021"}})").fix,
              HasSubstr("nearest: megatron-lm-2021"));
  const InputError model = refusal(R"({"model": null})");  // a missing key
  EXPECT_EQ(model.pointer, "/model");
  EXPECT_THAT(refusal_of_text(R"({"model": "gpt3_157b", "cluster": "a100_1x8",
                                  "job": {"sequence": 1, "global_batch": 1}})")
                  .fix,
              HasSubstr("nearest: gpt3_175b"));
}

TEST(Refusal, ChecksTheNetwork) {
  EXPECT_EQ(refusal(R"({"cluster": {"fabric": {"kind": "none"}}})").pointer,
            "/cluster/fabric/kind");
  EXPECT_EQ(refusal(R"({"cluster": {"fabric": {"levels": []}}})").pointer,
            "/cluster/fabric/levels");
  const InputError e = refusal(R"({"cluster": {"fabric": {"levels": [{"nodes_per_group": 1}]}}})");
  EXPECT_EQ(e.pointer, "/cluster/fabric/levels/0/nodes_per_group");
  EXPECT_EQ(e.fix, "nearest legal value: 2");
}

TEST(Refusal, ChecksWhatIf) {
  const InputError rank =
      refusal(R"({"layout": {"dp": 4}, "what_if": {"stragglers": [{"rank": 4, "slowdown": 2}]}})");
  EXPECT_EQ(rank.pointer, "/what_if/stragglers/0/rank");
  EXPECT_EQ(rank.problem, "is not among the 4 ranks");
  EXPECT_EQ(rank.fix, "nearest legal value: 3");
  const char* twice = R"({"layout": {"dp": 2}, "what_if": {"stragglers": [
      {"rank": 1, "slowdown": 2}, {"rank": 1, "slowdown": 3}]}})";
  EXPECT_EQ(refusal(twice).pointer, "/what_if/stragglers/1/rank");
  EXPECT_EQ(refusal(R"({"what_if": {"jitter": {"sigma": 2}}})").pointer, "/what_if/jitter/sigma");
}

TEST(Refusal, NamesTheFileOfTheModel) {
  const auto dir = std::filesystem::path(testing::TempDir()) / "gputwin_scenario_refusal";
  std::filesystem::create_directories(dir / "models");
  std::ofstream(dir / "models" / "odd.json")
      << R"({"layers": 4, "hidden": 65, "heads": 8, "ffn": 256, "vocab": 512,
             "activation": "relu", "positions": "rope"})";
  Json document = Json::parse(kTinyScenario);
  document["model"] = "odd";
  try {
    parse_scenario(document.dump(), "s.json", {}, {dir});
    FAIL() << "was accepted";
  } catch (const InputError& e) {
    EXPECT_EQ(e.file, (dir / "models" / "odd.json").string());
    EXPECT_EQ(e.pointer, "/heads");
    EXPECT_EQ(e.fix, "nearest legal values: 5, 13, or add head_dim");  // divisors of 65
  }
}

TEST(Refusal, PointsAtLineAndColumnOfBrokenJson) {
  const InputError e = refusal_of_text("{\n  \"schema\": 1,\n  \"name\" \"x\"\n}");
  EXPECT_EQ(e.pointer, "line 3, column 12");
  EXPECT_THAT(e.problem, HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal_of_text("{\"a\": 1e999}").problem, HasSubstr("too large"));
  EXPECT_EQ(refusal_of_text("{\"a\": {\"b\": 1,\n\"b\": 2}}").pointer, "/a/b");
  EXPECT_EQ(refusal_of_text("{\"a\": [{}, {\"b\": 1, \"b\": 2}]}").pointer, "/a/1/b");
  EXPECT_THAT(refusal_of_text(std::string(100000, '[')).problem, HasSubstr("nested deeper"));
  EXPECT_EQ(refusal_of_text("[]").problem, "is not a scenario");
  EXPECT_EQ(refusal_of_text("").pointer, "line 1, column 1");
}

TEST(Refusal, OfFilesThatCannotBeRead) {
  const auto problem = [](const std::filesystem::path& path) {
    try {
      load_scenario(path, {}, data_dirs());
    } catch (const InputError& e) {
      EXPECT_FALSE(e.fix.empty());
      return e.problem;
    }
    return std::string("was accepted");
  };
  const auto dir = std::filesystem::path(testing::TempDir()) / "gputwin_scenario_files";
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "empty.json") << "";
  std::ofstream(dir / "huge.json") << std::string(kMaxJsonBytes + 1, ' ');
  EXPECT_EQ(problem(dir / "empty.json"), "is empty");
  EXPECT_EQ(problem(dir / "huge.json"), "is too large for a scenario file");
  EXPECT_EQ(problem(dir), "is not a regular file");
  EXPECT_EQ(problem(dir / "absent.json"), "is neither a file nor the name of a shipped run");
}

TEST(Suggestion, MeasuresDistance) {
  EXPECT_EQ(edit_distance("schedule", "schedule"), 0u);
  EXPECT_EQ(edit_distance("shcedule", "schedule"), 1u);  // two neighbours swapped
  EXPECT_EQ(edit_distance("tp", "pp"), 1u);
  EXPECT_EQ(edit_distance("Micro-Batch", "micro_batch"), 0u);
  EXPECT_EQ(nearest_word("gpip", {"none", "gpipe", "1f1b"}), "gpipe");
  EXPECT_EQ(nearest_legal(5, 1, 10, [](std::int64_t v) { return v % 4 == 0; }),
            (std::vector<std::int64_t>{4, 8}));
}

// Replicas 3 and 1 are four ranks, whatever tp x cp x dp x pp says: a straggler may be any of them,
// and a list of devices names each of the four GPUs once.
TEST(Refusal, CountsReplicasOfStagesAsRanks) {
  const std::string run = "vgg16__v100_10gbe_4x1__tp1_pp2_dp1_1f1b_3-1";
  const auto with = [&](const std::vector<std::string>& sets) {
    return load_scenario(run, sets, data_dirs());
  };
  const auto refused = [&](const std::vector<std::string>& sets) {
    try {
      with(sets);
    } catch (const InputError& e) {
      return e;
    }
    ADD_FAILURE() << "was accepted: " << sets[0];
    return InputError("", "", "", "", "");
  };
  const std::string slow = "what_if.stragglers.0.slowdown=2";
  EXPECT_EQ(with({"what_if.stragglers.0.rank=3", slow}).what_if.stragglers[0].rank, RankId(3));
  EXPECT_EQ(refused({"what_if.stragglers.0.rank=4", slow}).fix, "nearest legal value: 3");
  EXPECT_EQ(with({"layout.devices=[3,1,2,0]"}).layout.devices[0], GpuId(3));
  EXPECT_EQ(refused({"layout.devices=[0,1]"}).problem, "has 2 entries for 4 ranks");
  EXPECT_EQ(refused({"layout.devices=[0,1,2,2]"}).pointer, "/layout/devices/3");
  EXPECT_EQ(refused({"layout.devices=[0,1,2,9]"}).pointer, "/layout/devices/3");
}

}  // namespace
}  // namespace gputwin
