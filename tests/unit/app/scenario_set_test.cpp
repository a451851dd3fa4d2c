// Overrides on the command line: paths, indices, units, names.
#include <gmock/gmock.h>

#include "sim/app/scenario.h"
#include "sim/app/set_path.h"
#include "sim/core/error.h"
#include "tests/unit/app/shipped_scenarios.h"

namespace gputwin {
namespace {

using test::data_dirs;
using test::kFlagship;
using test::kTinyScenario;
using ::testing::HasSubstr;

Scenario with(const std::vector<std::string>& sets) {
  return parse_scenario(kTinyScenario, "tiny.json", sets, data_dirs());
}

InputError refusal(const std::string& set) {
  try {
    with({set});
  } catch (const InputError& e) {
    EXPECT_EQ(e.file, "--set") << e.what();
    EXPECT_FALSE(e.fix.empty()) << e.what();
    return e;
  }
  ADD_FAILURE() << "was accepted: " << set;
  return {"", "", "", "", ""};
}

TEST(SetPath, ChangesValuesOfEveryType) {
  const Scenario s = with({"layout.tp=2", "layout.sp=true", "layout.schedule=none", "name=x",
                           "layout.rank_order=tp-cp-pp-dp", "model.dropout=0.1"});
  EXPECT_EQ(s.layout.tp, 2);
  EXPECT_TRUE(s.layout.sp);
  EXPECT_EQ(s.name, "x");
  EXPECT_EQ(s.layout.rank_order[2], Dim::Pp);
  EXPECT_EQ(std::get<Transformer>(s.workload).dropout, 0.1);
}

TEST(SetPath, ReachesIntoArraysAndCreatesThem) {
  const Scenario s =
      with({"layout.dp=4", "what_if.stragglers.0.rank=3", "what_if.stragglers.0.slowdown=1.5",
            "what_if.jitter={\"sigma\": 0.1}", "layout.pp=2", "layout.stage_layers=[1, 3]",
            "layout.stage_layers.0=2", "layout.stage_layers.1=2"});
  EXPECT_EQ(s.what_if.stragglers, (std::vector{Straggler{RankId(3), 1.5}}));
  EXPECT_EQ(s.what_if.jitter, (Jitter{0.1, 0}));
  EXPECT_EQ(s.layout.stage_layers, (std::vector<std::int32_t>{2, 2}));
  EXPECT_EQ(refusal("what_if.stragglers.1.rank=3").fix, "use an index from 0 to 0; 0 appends");
  EXPECT_EQ(refusal("what_if.stragglers.0.rank=0").pointer, "/what_if/stragglers/0/slowdown");
}

TEST(SetPath, NamesTheNearestPathElsewhere) {
  EXPECT_THAT(refusal("cluster.fabric.nic_Gbps=200").fix,
              HasSubstr("nearest path: cluster.groups.0.type.nics.each_Gbps;"));
  EXPECT_THAT(refusal("cluster.nics.per_node=4").fix,
              HasSubstr("nearest path: cluster.groups.0.type.nics.per_node;"));
  EXPECT_THAT(refusal("cluster.oversubscription=2").fix,
              HasSubstr("nearest path: cluster.fabric.levels.0.oversubscription;"));
  EXPECT_THAT(refusal("global_batch=8").fix, HasSubstr("nearest path: job.global_batch;"));
  EXPECT_THAT(refusal("layout.tpp=3").fix, ::testing::Not(HasSubstr("nearest path")));
}

TEST(SetPath, ConvertsUnitsOfTheSameKind) {
  const auto nics = [](const std::string& value) {
    return with({"cluster.groups.0.type.nics.each_Gbps=" + value}).cluster.groups[0].type.nics.each;
  };
  EXPECT_DOUBLE_EQ(nics("400").value, 50e9);
  EXPECT_DOUBLE_EQ(nics("400Gbps").value, 50e9);
  EXPECT_DOUBLE_EQ(nics("400 Gb/s").value, 50e9);
  EXPECT_DOUBLE_EQ(nics("50GBps").value, 50e9);
  EXPECT_DOUBLE_EQ(nics("0.4Tbps").value, 50e9);
  const auto latency = [](const std::string& value) {
    return with({"cluster.fabric.switch_latency_us=" + value}).cluster.fabric.switch_latency;
  };
  EXPECT_DOUBLE_EQ(latency("1.5").value, 1.5e-6);
  EXPECT_DOUBLE_EQ(latency("1500ns").value, 1.5e-6);
  EXPECT_DOUBLE_EQ(latency("0.0015ms").value, 1.5e-6);
  EXPECT_EQ(
      with({"cluster.groups.0.type.host.memory_GiB=2TiB"}).cluster.groups[0].type.host.memory.value,
      2LL << 40);
}

TEST(SetPath, RefusesUnitsOfAnotherKind) {
  EXPECT_EQ(refusal("cluster.fabric.switch_latency_us=3Gbps").problem,
            "carries a unit of another kind");
  EXPECT_THAT(refusal("cluster.fabric.switch_latency_us=3Gbps").fix, HasSubstr("ns, us, ms, s"));
  EXPECT_EQ(refusal("cluster.groups.0.type.nics.each_Gbps=3furlongs").problem,
            "carries an unknown unit");
  EXPECT_EQ(refusal("layout.tp=8GBps").fix, "write 8");
  EXPECT_EQ(refusal("layout.tp=eight").problem, "is not a number");
  EXPECT_EQ(refusal("layout.tp=inf").problem, "is not a number");
}

TEST(SetPath, NamesTheOverrideAsTheFile) {
  EXPECT_STREQ(refusal("layout.tp=3").what(),
               "--set: /layout/tp: 3 does not divide heads (8) (nearest legal values: 2, 4)");
  EXPECT_THAT(refusal("layout.tpp=3").fix, HasSubstr("nearest: tp"));
  EXPECT_THAT(refusal("model.haeds=3").fix, HasSubstr("nearest: heads"));
  EXPECT_THAT(refusal("layout.tp=1e30").problem, HasSubstr("is not a whole number in range"));
  EXPECT_THAT(refusal("layout.tp=-2").fix, HasSubstr("nearest legal value: 1"));
  EXPECT_THAT(refusal("layout=3").fix, HasSubstr("name one of its keys"));
  EXPECT_THAT(refusal("layout.sp=1").fix, HasSubstr("true or false"));
  EXPECT_THAT(refusal("layout.tp").problem, HasSubstr("path=value"));
  EXPECT_THAT(refusal("layout..tp=3").problem, HasSubstr("empty step"));
  EXPECT_THAT(refusal("layout.tp.x=3").fix, HasSubstr("end the path at /layout/tp"));
  EXPECT_THAT(refusal("layout.stage_layers.first=3").problem, HasSubstr("needs an index"));
  EXPECT_THAT(refusal("passes.0.offload=true").problem, HasSubstr("cannot stand for an object"));
  EXPECT_THAT(refusal("model.mtp_layers=1").problem, HasSubstr("not supported yet"));
  EXPECT_THAT(refusal("model=gpt3_157b").fix, HasSubstr("nearest: gpt3_175b"));
  EXPECT_EQ(refusal("schema=2").pointer, "/schema");
}

TEST(SetPath, NamesAndChangesModelsAndClusters) {
  const Scenario named = with({"model=llama3_8b", "cluster=a100_8x8", "model.layers=16"});
  EXPECT_EQ(std::get<Transformer>(named.workload).hidden, 4096);
  EXPECT_EQ(std::get<Transformer>(named.workload).layers, 16);
  EXPECT_EQ(named.cluster.gpus(), 64);
  // A part of a named cluster: the file is inlined first.
  const Scenario slower =
      load_scenario(kFlagship, {"cluster.groups.0.type.nics.each_Gbps=100"}, data_dirs());
  EXPECT_DOUBLE_EQ(slower.cluster.groups[0].type.nics.each.value, 12.5e9);
  EXPECT_EQ(slower.cluster.nodes(), 128);
  // Later overrides win; a name given last discards earlier changes.
  EXPECT_EQ(with({"layout.tp=2", "layout.tp=4"}).layout.tp, 4);
  const Scenario again = with({"model.layers=16", "model=llama3_8b"});
  EXPECT_EQ(std::get<Transformer>(again.workload).layers, 32);
}

}  // namespace
}  // namespace gputwin
