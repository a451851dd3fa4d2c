// Tables of measurements: what is read, and what is refused with line and column.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hwmodels/calibrate/sample.h"
#include "sim/core/error.h"

namespace gputwin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path written(const std::string& text) {
  const fs::path path =
      fs::path(::testing::TempDir()) /
      (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".csv");
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

DeviceAliases shipped_aliases() {
  return DeviceAliases::load(fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels" / "device_aliases.json");
}

std::vector<Sample> samples(const std::string& text) {
  const CsvTable table = CsvTable::read(written(text));
  return read_samples(table, format_of(table), shipped_aliases());
}

std::string refusal(const std::string& text) {
  try {
    samples(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string kHeader = "gpu,dtype,m,n,k,time_us\n";

TEST(CsvTable, ReadsQuotesCommentsAndWindowsLines) {
  const CsvTable table =
      CsvTable::read(written("# a comment\r\na,b\r\n\r\n\"x, \"\"y\"\"\",2.5\r\n"));
  ASSERT_EQ(table.rows(), 1u);
  EXPECT_EQ(table.text(0, "a"), "x, \"y\"");
  EXPECT_DOUBLE_EQ(table.number(0, "b"), 2.5);
  EXPECT_EQ(table.line(0), 4u);
  EXPECT_EQ(table.text(0, "c"), "");
  EXPECT_DOUBLE_EQ(table.number_or(0, "c", 7), 7);
}

TEST(CsvTable, NamesLineAndColumnOfWhatIsBroken) {
  EXPECT_THAT(refusal(""), HasSubstr("is empty"));
  EXPECT_THAT(refusal("a,a\n"), HasSubstr("line 1: a is the name of two columns"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,2\n"), HasSubstr("line 2: 4 fields"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,2,3,\"4\n"), HasSubstr("line 2: 4 opens"));
  EXPECT_THAT(refusal(kHeader + std::string("a\0b,bfloat16,1,2,3,4\n", 21)),
              HasSubstr("zero byte"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,2,x,4\n"), HasSubstr("line 2, column k: x"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,2,1.5,4\n"), HasSubstr("no whole number"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,0,3,4\n"), HasSubstr("column n: 0"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,2,3,-4\n"), HasSubstr("column time_us: -4"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,bfloat16,1,2,3,nan\n"), HasSubstr("column time_us"));
  EXPECT_THAT(refusal(kHeader + "a100_sxm,complex64,1,2,3,4\n"), HasSubstr("column dtype"));
}

// A whole compressed table reads; cut in the middle it is refused, not silently shorter.
TEST(CsvTable, RefusesACompressedTableThatBreaksOff) {
  const fs::path whole =
      fs::path(GPUTWIN_SOURCE_DIR) / "hwmodels" / "measurements" / "conv_deepbench.csv.gz";
  EXPECT_GT(CsvTable::read(whole).rows(), 2000u);
  std::ifstream in(whole, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const fs::path cut = fs::path(::testing::TempDir()) / "cut.csv.gz";
  std::ofstream(cut, std::ios::binary) << bytes.substr(0, bytes.size() / 2);
  try {
    CsvTable::read(cut);
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("damaged"));
  }
}

TEST(TableFormat, IsRecognisedByItsColumnsInAnyOrderWithOthersBeside) {
  const std::vector<Sample> rows =
      samples("k,n,m,dtype,time_us,gpu,heldout_why\n3,2,1,bfloat16,4.5,h100_sxm,hash\n");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].device, "h100-sxm-80gb");
  EXPECT_DOUBLE_EQ(rows[0].time.value, 4.5e-6);
  const auto& gemm = std::get<GemmQuery>(rows[0].query);
  EXPECT_EQ(gemm.shape.m, 1);
  EXPECT_EQ(gemm.shape.k, 3);
}

// What a row of each further kind of table asks, in one line each.
TEST(TableFormat, ReadsExchangesOfServingStacks) {
  const auto reduce = samples(
      "gpu,framework,version,backend,nranks,size_bytes,time_us\n"
      "h100_sxm,sglang,0.5.10,sglang_eager,4,512,20\n");
  const auto& all_reduce = std::get<AllReduceShape>(reduce.at(0).query);
  EXPECT_TRUE(all_reduce.eager);
  EXPECT_EQ(all_reduce.ranks, 4);
  EXPECT_EQ(all_reduce.bytes, 512);
  const std::string header =
      "gpu,version,mode,phase,nnodes,hidden,tokens,topk,experts,sms,time_us\n";
  const auto experts = samples(header + "h100_sxm,0.5.12,ll,combine,2,7168,64,8,256,,30\n");
  const auto& exchange = std::get<ExpertExchangeShape>(experts.at(0).query);
  EXPECT_TRUE(exchange.low_latency && exchange.combine);
  EXPECT_EQ(exchange.nodes, 2);
  EXPECT_EQ(exchange.sms, 0);
  EXPECT_THAT(refusal(header + "h100_sxm,0.5.12,fast,combine,1,7168,64,8,256,,30\n"),
              HasSubstr("column mode: fast"));
}

TEST(TableFormat, ReadsMessagesBetweenRanksAsTimes) {
  // 1,000,000 bytes at 2,000 MB/s take 500 us; latencies are given in us.
  const auto osu = samples(
      "system,test,cuda,context,size_bytes,value,unit\n"
      "alps_gh200_slingshot11,Bandwidth,0,srun -N2 "
      "--environment=omb-ompi-no-cxi,1000000,2000,MB/s\n"
      "alps_gh200_slingshot11,Latency,1,osu_latency -N1,8,3,us\n");
  EXPECT_DOUBLE_EQ(osu.at(0).time.value, 500e-6);
  EXPECT_EQ(std::get<CollectiveRow>(osu[0].query).env, "host stream no-cxi");
  EXPECT_EQ(std::get<CollectiveRow>(osu[0].query).nodes, 2);
  EXPECT_EQ(std::get<CollectiveRow>(osu[0].query).system, "alps-gh200");
  EXPECT_DOUBLE_EQ(osu.at(1).time.value, 3e-6);
  EXPECT_EQ(std::get<CollectiveRow>(osu[1].query).nodes, 1);
  const auto blink = samples(
      "system,gpu,pattern,impl,placement,size_bytes,time_us_median\n"
      "snellius,A100,multi_pingpong,Nccl,multinode,64,9\n"
      "snellius,H100,alltoall,Nvlink,singlenode,64,9\n");
  const auto& pairs = std::get<CollectiveRow>(blink.at(0).query);
  EXPECT_EQ(pairs.collective + "/" + pairs.env, "sendrecv/Nccl multi");
  EXPECT_EQ(std::get<CollectiveRow>(blink.at(1).query).ranks, 4);
}

TEST(TableFormat, ReadsPromptsOfServedModels) {
  const auto rows = samples(
      "hardware,model,tensor_parallel,prompt_size,batch_size,prompt_time\n"
      "a100-80gb,bloom-176b,8,512,2,286.8\n");
  const auto& prompt = std::get<PromptPassShape>(rows.at(0).query);
  EXPECT_EQ(prompt.layers, 70);
  EXPECT_EQ(prompt.tensor_parallel, 8);
  EXPECT_DOUBLE_EQ(rows[0].time.value, 0.2868);
}

TEST(TableFormat, AnUnknownHeaderNamesTheNearestOne) {
  EXPECT_THAT(refusal("gpu,dtype,m,n,time_us\n"),
              HasSubstr("nearest: gemm_aiconfigurator, which also has k"));
}

// Of this table whole layers (n, k) are kept out, whatever m is.
TEST(Samples, TheSameShapeIsKeptOutOnEveryDevice) {
  std::string text = kHeader;
  for (int m = 1; m <= 500; ++m) {
    for (const char* gpu : {"a100_sxm", "h100_sxm"}) {
      text += std::string(gpu) + ",bfloat16,32," + std::to_string(m) + ",64,1\n";
    }
  }
  const std::vector<Sample> rows = samples(text);
  std::size_t kept_out = 0;
  for (std::size_t i = 0; i < rows.size(); i += 2) {
    EXPECT_EQ(is_test(rows[i]), is_test(rows[i + 1]));
    kept_out += is_test(rows[i]) ? 1 : 0;
  }
  // 500 draws of one in five: 100, standard deviation 9.
  EXPECT_GT(kept_out, 64u);
  EXPECT_LT(kept_out, 136u);
}

TEST(DeviceAliases, AreReadByTableAndColumnAndNeverGuessed) {
  const DeviceAliases aliases = shipped_aliases();
  EXPECT_EQ(aliases.find("ops_llmcompass", "gpu", "A100"), "a100-sxm-80gb");
  EXPECT_EQ(aliases.find("p2p_snellius_blink", "gpu", "A100"), "a100-sxm-40gb");
  EXPECT_EQ(aliases.find("a_table_of_mine", "gpu", "A100"), "") << "two devices are called so";
  EXPECT_EQ(aliases.find("a_table_of_mine", "gpu", "h100_sxm"), "h100-sxm-80gb");
  EXPECT_EQ(aliases.find("a_table_of_mine", "gpu", "h100-sxm-80gb"), "h100-sxm-80gb");
  EXPECT_EQ(aliases.find("gemm_aiconfigurator", "gpu", "h100-turbo"), "");
}

}  // namespace
}  // namespace gputwin
