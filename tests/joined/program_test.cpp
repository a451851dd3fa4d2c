// The program as a person or a script meets it: exit codes, what it prints, and what it leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "tests/golden/program.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr const char* kSmall = "gpt_22b__a100_1x8__tp8_pp1_dp1_full";
constexpr const char* kLlama405b = "llama3_405b__h100_2048x8__tp8_pp16_dp128";

/// `gputwin arguments`; stderr only with `errors`, since what goes to stdout must parse alone.
ProgramOutput program(const std::string& arguments, bool errors = true) {
  const std::string command =
      std::string("'") + GPUTWIN_PROGRAM + "' " + arguments + (errors ? " 2>&1" : " 2>/dev/null");
  return run_command(command);
}

std::vector<std::string> keys(const json& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.items()) names.push_back(name);
  return names;
}

std::string quoted(const fs::path& path) { return "'" + path.string() + "'"; }

// ---- run ----

// The keys of scenarios/README.md, "result.json".
TEST(Program, PrintsTheContractAsJson) {
  const ProgramOutput output = program(std::string("run ") + kSmall + " --json", false);
  ASSERT_EQ(output.exit_code, 0);
  const json result = json::parse(output.text);
  EXPECT_THAT(keys(result), UnorderedElementsAre("schema", "scenario", "iteration_time_s",
                                                 "interval_s", "makespan_s", "tokens_per_s",
                                                 "samples_per_s", "model_tflops_per_gpu",
                                                 "hardware_tflops_per_gpu", "flops_convention",
                                                 "mfu", "hfu", "breakdown_s", "breakdown_rank",
                                                 "memory", "extrapolated", "warnings", "engine"));
  EXPECT_EQ(result["scenario"], kSmall);
  // Table 5 of Korthikanti et al. 2022 says 1.42 s; the order of magnitude, not the model, is
  // tested here.
  EXPECT_GT(result["iteration_time_s"].get<double>(), 0.5);
  EXPECT_LT(result["iteration_time_s"].get<double>(), 3.0);
  EXPECT_EQ(result["engine"]["ranks"], 8);
  EXPECT_LE(result["interval_s"][0].get<double>(), result["iteration_time_s"].get<double>());
  EXPECT_GE(result["interval_s"][1].get<double>(), result["iteration_time_s"].get<double>());
}

TEST(Program, WritesTheSameFiguresItPrints) {
  const ScratchFolder folder("program-out");
  const ProgramOutput output =
      program(std::string("run ") + kSmall + " --json --out " + quoted(folder.path()), false);
  ASSERT_EQ(output.exit_code, 0);
  EXPECT_EQ(read_file(folder.path() / "result.json"), output.text);
}

// No message takes a link from another in one node: the longest path is the simulation.
TEST(Program, RunsOnTheReferenceExecutor) {
  const std::string run = std::string("run ") + kSmall + " --json";
  const ProgramOutput simgrid = program(run, false),
                      other = program(run + " --executor reference", false);
  ASSERT_EQ(simgrid.exit_code, 0);
  ASSERT_EQ(other.exit_code, 0);
  const double a = json::parse(simgrid.text)["iteration_time_s"].get<double>();
  const double b = json::parse(other.text)["iteration_time_s"].get<double>();
  EXPECT_NEAR(a, b, 1e-6 * a);
}

// ---- bad ends ----

TEST(Program, CallsUnusableInputTwo) {
  for (const std::string& arguments :
       {std::string("run no_such_run"), std::string("run ") + kSmall + " --set layout.tp=3",
        std::string("run ") + kSmall + " --set layout.no_such_key=1",
        std::string("run ") + kSmall + " --fold sometimes", std::string("list planets"),
        std::string("fly"), std::string(""),
        std::string("collective all_reduce --cluster a100_1x8 --ranks 9"),
        std::string("collective all_reduce --cluster a100_1x8 --ranks 8 --sizes many"),
        std::string("explain ") + kSmall + " --op no_such_op"}) {
    const ProgramOutput output = program(arguments);
    EXPECT_EQ(output.exit_code, 2) << arguments << "\n" << output.text;
    EXPECT_THAT(output.text, HasSubstr("gputwin: ")) << arguments;
  }
}

// A file where the folder should be: no user, not even root, can write below it.
TEST(Program, RefusesAnUnwritableFolder) {
  const ScratchFolder folder("program-unwritable");
  const fs::path file = folder.path() / "file";
  std::FILE* made = std::fopen(file.c_str(), "w");
  ASSERT_NE(made, nullptr);
  std::fclose(made);
  const ProgramOutput output =
      program(std::string("run ") + kSmall + " --out " + quoted(file / "out"));
  EXPECT_EQ(output.exit_code, 2) << output.text;
  EXPECT_THAT(output.text, HasSubstr("result.json"));
  fs::remove(file);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// GPT-3 175B on eight GPUs needs more than twice the memory there is.
TEST(Program, CallsInfeasibleThreeAndLeavesNothing) {
  const ScratchFolder folder("program-infeasible");
  const ProgramOutput output = program(
      std::string("run ") + kSmall + " --set model=gpt3_175b --set layout.micro_batch=1 --out " +
      quoted(folder.path() / "out") + " --trace " + quoted(folder.path() / "trace.json"));
  EXPECT_EQ(output.exit_code, 3) << output.text;
  EXPECT_THAT(output.text, HasSubstr("GiB too much"));
  EXPECT_THAT(output.text, HasSubstr("what would fit"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// What is said about a job that does not fit is what a person would change, and no more: 13B with
// full recomputation on one A100 of 80 GB is not told to recompute, and is told what two GPUs do.
TEST(Program, NamesOnlyKeysThatMakeAJobFit) {
  const std::string job =
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --set passes.0.offload.strategy=none ";
  const ProgramOutput output = program(job);
  EXPECT_EQ(output.exit_code, 3) << output.text;
  EXPECT_THAT(output.text, HasSubstr("what would fit: passes=[{\"offload\":{\"strategy\":"));
  EXPECT_THAT(output.text, HasSubstr("GiB in the host memory of a node)"));
  EXPECT_THAT(output.text, HasSubstr("; or 4 GPUs instead of 1: layout.tp=4, layout.sp=true"));
  EXPECT_THAT(output.text, Not(HasSubstr("layout.recompute")));
  EXPECT_THAT(output.text, Not(HasSubstr(".,")));  // an error of PyTorch ends in a full stop
}

// A host of 64 GiB does not hold the 16 bytes of each of 13e9 parameters: more GPUs do, or NVMe.
TEST(Program, SaysWhatHelpsAHostThatIsTooSmall) {
  const ProgramOutput output = program(
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy "
      "--set cluster.groups.0.type.host.memory_GiB=64");
  EXPECT_EQ(output.exit_code, 3) << output.text;
  EXPECT_THAT(output.text, HasSubstr("GiB of host memory and has 64.0 GiB"));
  EXPECT_THAT(output.text, HasSubstr("2 GPUs instead of 1: "));
}

// 1.3B with its states on a host of 8 GiB, which 12 bytes a parameter overfill: 16 bytes a
// parameter fit on the A100 itself. Only other ways to offload were tried.
TEST(Program, LeavesOffloadOutForAHostThatIsTooSmall) {
  const ProgramOutput output = program(
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --fit --set model=gpt3_1_3b "
      "--set passes.0.offload.strategy=zero-offload --set layout.micro_batch=1 "
      "--set cluster.groups.0.type.host.memory_GiB=8");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  EXPECT_THAT(output.text,
              HasSubstr("changed to fit: passes=[{\"offload\":{\"strategy\":\"none\"}}]"));
}

// What is said to make a layout possible is what --fit does, and memory is looked at after it: one
// GPU has no tensor-parallel ranks to shard a sequence over, and 175B fits neither it nor a host of
// 64 GiB.
TEST(Program, FitTakesTheAdviceOfALayoutThatCannotBe) {
  const std::string job = std::string("run ") + kSmall + " --set layout.tp=1 --set layout.sp=true ";
  const ProgramOutput told = program(job);
  EXPECT_EQ(told.exit_code, 3) << told.text;
  EXPECT_THAT(told.text, HasSubstr("what would fit: set layout.sp to false"));
  const ProgramOutput fitted = program(job + "--fit");
  EXPECT_EQ(fitted.exit_code, 0) << fitted.text;
  EXPECT_THAT(fitted.text, HasSubstr("changed to fit: layout.sp=false"));
  const ProgramOutput large =
      program(job + "--fit --set model=gpt3_175b --set cluster.groups.0.type.host.memory_GiB=64");
  EXPECT_EQ(large.exit_code, 3) << large.text;
  EXPECT_THAT(large.text, HasSubstr("changed to fit: layout.sp=false"));
  EXPECT_THAT(large.text, HasSubstr("GiB too much"));
}

// Advice is looked for among layouts that can be: 129 tokens of a sample are not cut over two
// tensor-parallel ranks, though those of four samples would be (overlap cuts by samples).
TEST(Program, AdvisesNoShardsOfASequenceThatDoesNotDivide) {
  const ProgramOutput output = program(
      "run megatron_gpt_39b__a100_pcie_1x8__tp2_pp2_dp2_zero1_overlap_compress_greedy "
      "--set job.sequence=129 --set layout.zero=0");
  EXPECT_TRUE(output.exit_code == 0 || output.exit_code == 3) << output.text;
  EXPECT_THAT(output.text, Not(HasSubstr("layout.sp=true")));
}

// The head of the report is that of the job that ran: --fit turns recomputation on.
TEST(Program, ReportsTheLayoutThatFits) {
  const ProgramOutput output = program(
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --fit --set passes.0.offload.strategy=none "
      "--set layout.recompute=none --set layout.micro_batch=32");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("changed to fit: passes="));
  EXPECT_THAT(output.text, Not(HasSubstr("recompute none")));
}

// Passes are compared with the same job blocking: the one that runs, not the one that did not fit.
// 6.7B over 8 A100 without recomputation, 64 samples a micro-batch, needs more than 80 GB.
TEST(Program, ComparesThePassesOfTheJobThatFits) {
  const std::string job =
      "run gpt3_6_7b__a100_pcie_1x8__tp8_pp1_dp1_overlap --json "
      "--set layout.recompute=none --set layout.micro_batch=64 "
      "--set job.global_batch=64";
  const auto result = [&](const std::string& rest) {
    const ProgramOutput output = program(job + rest);
    EXPECT_EQ(output.exit_code, 0) << output.text;
    return nlohmann::json::parse(output.text);
  };
  const nlohmann::json fitted = result(" --fit");
  const std::string changed = fitted.at("warnings").dump();
  EXPECT_THAT(changed, HasSubstr("changed to fit: "));
  const double blocking = fitted.at("passes").at("blocking_iteration_s");
  EXPECT_THAT(changed, HasSubstr("layout.micro_batch=")) << changed;
  std::string smaller = changed.substr(changed.find("layout.micro_batch="));
  smaller.resize(smaller.find_first_not_of("0123456789", 19));
  const double same =
      result(" --set " + smaller +
             (changed.find("sp=true") != std::string::npos ? " --set layout.sp=true" : "") +
             " --set passes=[]")
          .at("iteration_time_s");
  EXPECT_NEAR(blocking / same, 1.0, 1e-9);
}

// 6.7B over two nodes: the costs of a middle layer prefer 1 + 7 samples, which run 0.8 % slower
// than halves. What a search finds is never slower than equal chunks that it could have taken.
TEST(Program, ASearchOfChunksNeverLosesToEqualOnes) {
  const std::string job = "run gpt3_6_7b__a100_100gbps_2x8__tp16_pp1_dp1_overlap --json ";
  const auto result = [&](const std::string& rest) {
    const ProgramOutput output = program(job + rest);
    EXPECT_EQ(output.exit_code, 0) << output.text;
    return nlohmann::json::parse(output.text);
  };
  const nlohmann::json searched = result("");
  EXPECT_THAT(searched.at("passes").at("verdict").get<std::string>(),
              HasSubstr("2 equal chunks run faster than those of the search"));
  for (const char* chunks : {"2", "3", "4"}) {
    const nlohmann::json equal = result(std::string("--set passes.0.overlap.variant=equal --set "
                                                    "passes.0.overlap.max_chunks=") +
                                        chunks);
    EXPECT_LE(searched.at("iteration_time_s").get<double>(),
              equal.at("iteration_time_s").get<double>())
        << chunks;
  }
}

// A pass that cuts nothing, or less than it is asked to, says so.
TEST(Program, SaysWhatThePassOverlapDoesNotCut) {
  const std::string job =
      "run gpt3_6_7b__a100_pcie_1x8__tp8_pp1_dp1_overlap "
      "--set passes.0.overlap.variant=equal --set passes.0.overlap.max_chunks=";
  EXPECT_THAT(program(job + "1").text, HasSubstr("the pass overlap cuts nothing: max_chunks is 1"));
  EXPECT_THAT(program(job + "4 --set layout.micro_batch=2").text,
              HasSubstr("cuts a micro-batch of 2 samples into 2 chunks, not the 4 of max_chunks"));
  const std::string odd =
      program(
          "run llama2_13b__a100_pcie_1x8__tp8_pp1_dp1_overlap --set job.sequence=4097 --set "
          "passes.0.overlap.variant=merak --set passes.0.overlap.max_chunks=2")
          .text;
  EXPECT_THAT(odd, HasSubstr("2 of 2048 + 2049 tokens"));
  EXPECT_THAT(odd, Not(HasSubstr("the pass overlap cuts")));
}

// Winograd's kernels multiply less than the direct products that count: what is no error is said.
TEST(Program, ExplainsMoreThanThePeak) {
  const ProgramOutput output =
      program("run vgg16__v100_10gbe_4x1__tp1_pp1_dp4 --set layout.dp=1 --set job.global_batch=12");
  EXPECT_THAT(output.text, HasSubstr("MFU is above 100 %: convolutions count as direct products"));
}

// Gradients of VGG-16 over 10 Gb/s in 8 bits: 1,024 values and two scales of a row
// for 4,096 B.
TEST(Program, CodesGradientsOfLayerGraphs) {
  const ProgramOutput output = program(
      "run vgg16__v100_10gbe_4x1__tp1_pp1_dp4 --json --set "
      "'passes=[{\"compress\":{\"dp_gradients\":{\"codec\":\"int8\"}}}]'",
      false);
  ASSERT_EQ(output.exit_code, 0) << output.text;
  const json passes = json::parse(output.text)["passes"];
  EXPECT_GT(passes["speed_up"].get<double>(), 1.2);
  const json sums = passes["classes"][0];
  EXPECT_EQ(sums["tensors"], "gradients over dp");
  EXPECT_NEAR(sums["bytes"].get<double>() / sums["blocking_bytes"].get<double>(),
              (1024.0 + 8) / 4096, 1e-3);
}

// Recomputation alone fits with 48 images a micro-batch; 3 leave a pipeline of 4 less of a bubble.
TEST(Program, FitsWithTheFastestMicroBatchOfAPipeline) {
  const std::string job =
      "run vgg16__v100_10gbe_4x1__tp1_pp4_dp1_gpipe_full --json --set layout.recompute=";
  const auto seconds = [&](const std::string& rest) {
    const ProgramOutput output = program(job + rest);
    EXPECT_EQ(output.exit_code, 0) << output.text;
    return nlohmann::json::parse(output.text).at("iteration_time_s").get<double>();
  };
  const double fitted = seconds("none --fit");
  EXPECT_LT(fitted, seconds("full"));
  EXPECT_LE(fitted, seconds("full --set layout.micro_batch=6"));
}

// A node without a drive is not sent to one: trying NVMe there ended --fit with bad input.
TEST(Program, FitsAJobWithoutADrive) {
  const ProgramOutput output = program(
      "run gpt3_13b__a100_1x8__tp1_pp1_dp1_greedy --fit --set passes.0.offload.strategy=none "
      "--set cluster=v100_32gb_1x8");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  EXPECT_THAT(output.text, HasSubstr("changed to fit: passes="));
}

TEST(Program, GivesUpAtTheTimeLimit) {
  const ScratchFolder folder("program-limit");
  const ProgramOutput output =
      program(std::string("run ") + kLlama405b +
              " --set layout.recompute=full --fold off --time-limit 0.001 --out " +
              quoted(folder.path() / "out") + " --trace " + quoted(folder.path() / "trace.json"));
  EXPECT_EQ(output.exit_code, 1) << output.text;
  EXPECT_THAT(output.text, HasSubstr("--time-limit"));
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

// ---- the other commands ----

TEST(Program, ListsWhatShips) {
  const std::vector<std::pair<std::string, std::string>> known{
      {"models", "gpt3_175b"}, {"clusters", "a100_128x8"}, {"devices", "a100-sxm-80gb"},
      {"runs", kSmall},        {"strategies", ""},         {"schedules", "interleaved"}};
  for (const auto& [what, name] : known) {
    const ProgramOutput text = program("list " + what);
    EXPECT_EQ(text.exit_code, 0) << what;
    EXPECT_THAT(text.text, HasSubstr(name));
    const ProgramOutput output = program("list " + what + " --json", false);
    ASSERT_EQ(output.exit_code, 0) << what;
    const json rows = json::parse(output.text);
    ASSERT_GE(rows.size(), 3u) << what;
    for (const json& row : rows) {
      EXPECT_THAT(keys(row), UnorderedElementsAre("name", "facts"));
      EXPECT_THAT(text.text, HasSubstr(row["name"].get<std::string>()));
    }
  }
}

// 1M:4M doubles: 1, 2 and 4 MiB. Bus bandwidth of an all-reduce over 8 is 2 x 7/8 of algorithm
// bandwidth.
TEST(Program, MeasuresCollectives) {
  const ProgramOutput output =
      program("collective all_reduce --cluster a100_1x8 --ranks 8 --sizes 1M:4M --json", false);
  ASSERT_EQ(output.exit_code, 0);
  const json rows = json::parse(output.text);
  ASSERT_EQ(rows.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const json& row = rows[i];
    EXPECT_THAT(keys(row),
                UnorderedElementsAre("size_bytes", "algorithm", "protocol", "time_us", "algbw_GBps",
                                     "busbw_GBps", "flows", "low_us", "high_us", "link_share"));
    EXPECT_EQ(row["size_bytes"], 1048576 << i);
    const double algorithm = row["algbw_GBps"].get<double>();
    EXPECT_NEAR(row["busbw_GBps"].get<double>(), 1.75 * algorithm, 1e-9 * algorithm);
    EXPECT_NEAR(algorithm * row["time_us"].get<double>() * 1e3, 1048576 << i, 1.0);
  }
}

// fc1 of a stage: one GEMM forward, two backward, one recomputed.
TEST(Program, ExplainsAnOperation) {
  const ProgramOutput text = program(std::string("explain ") + kSmall + " --op fc1");
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_THAT(text.text, HasSubstr("gemm"));
  const ProgramOutput output =
      program(std::string("explain ") + kSmall + " --op fc1 --json", false);
  ASSERT_EQ(output.exit_code, 0);
  const json rows = json::parse(output.text);
  ASSERT_FALSE(rows.empty());
  for (const json& row : rows) {
    EXPECT_GT(row["time_us"].get<double>(), 0);
    EXPECT_THAT(row["shape"].get<std::string>(), HasSubstr("gemm"));
  }
}

TEST(Program, HelpsAndNamesItsVersion) {
  EXPECT_EQ(program("--help").exit_code, 0);
  EXPECT_EQ(program("run --help").exit_code, 0);
  const ProgramOutput version = program("--version");
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.text, HasSubstr("gputwin "));
}

// ---- plan ----

// Nobody gets stale gradients without asking, and who asks is told.
TEST(Program, PlansWithoutAFlushOnlyWhereStaleWeightsAreAllowed) {
  const std::string plan = "plan vgg16__v100_10gbe_4x1__tp1_pp1_dp4 --json";
  const auto stale = [](const json& page) {
    std::int64_t count = 0;
    for (const json& row : page["plans"]) count += row["stale_weights"].get<bool>() ? 1 : 0;
    return count;
  };
  const json asked = json::parse(program(plan + " --allow-stale", false).text);
  EXPECT_EQ(stale(asked), 3);
  EXPECT_THAT(asked["endless_verdict"].get<std::string>(), HasSubstr("older weights (stale)"));
  const json silent = json::parse(program(plan, false).text);
  EXPECT_EQ(stale(silent), 0);
  EXPECT_FALSE(silent.contains("endless_verdict"));
  EXPECT_EQ(asked["verdict"], silent["verdict"]);
  const ProgramOutput refused = program(plan + " --method pipedream-stash");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.text, HasSubstr("--allow-stale"));
}

}  // namespace
}  // namespace gputwin
