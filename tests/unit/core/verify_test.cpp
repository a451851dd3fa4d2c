#include "sim/core/verify.h"

#include <gmock/gmock.h>

#include "sim/core/plan_text.h"

namespace gputwin {
namespace {

// Two ranks; each test puts its own bodies into the two programs.
std::vector<Violation> check(const std::string& body0, const std::string& body1,
                             Depth depth = Depth::Races) {
  const std::string head = R"(
buffer x 4x8 f32 framed
buffer w 8x8 f32 class=weights persistent
communicator c 0 1
communicator d 0 1
)";
  const std::string program = R"(
  stream compute compute
  stream comm communication
  slot c tp
  slot d dp
  slot peer pp peer
body
)";
  return verify(
      parse_plan(head + "program p frames=1" + program + body0 + "\nprogram q frames=1" + program +
                 body1 + "\nrank p gpu=0 c=c d=d peer=1\nrank q gpu=1 c=c d=d peer=0\n"),
      depth);
}

std::string first_rule(const std::vector<Violation>& v) { return v.empty() ? "" : v.front().rule; }

TEST(Verify, AcceptsMatchingRanks) {
  const std::string body = "collective comm R/sum all_reduce n=64 slot=c : w : w";
  EXPECT_EQ(first_rule(check(body, body)), "");
}

TEST(Verify, FindsCollectivesThatDoNotMatch) {
  EXPECT_EQ(first_rule(check("collective comm R/sum all_reduce n=64 slot=c : w : w",
                             "collective comm R/sum all_reduce n=32 slot=c : w[0:4] : w[0:4]")),
            "collective-mismatch");
  EXPECT_EQ(first_rule(check("collective comm R/sum all_reduce n=64 slot=c : w : w", "")),
            "collective-mismatch");
}

TEST(Verify, FindsSendsWithoutReceives) {
  EXPECT_EQ(first_rule(check("send comm P/x send_to n=64 slot=peer : w :", "")),
            "message-mismatch");
}

TEST(Verify, FindsWaitsWithoutRecord) {
  EXPECT_EQ(first_rule(check("wait comm e0\nrecord compute e0", "")), "wait-without-record");
  EXPECT_EQ(first_rule(check("record compute e0\nwait comm e0 previous", "")),
            "wait-without-record");
}

TEST(Verify, FindsUseOutsideLifetime) {
  EXPECT_EQ(first_rule(check("kernel compute F/z @0 zero n=32 : : x", "")), "use-of-dead-buffer");
  EXPECT_EQ(first_rule(check("alloc x @0", "")), "alloc-without-free");
  EXPECT_EQ(first_rule(check("free x @0", "")), "free-of-dead");
  EXPECT_EQ(first_rule(check("alloc x @0\nalloc x @0\nfree x @0", "")), "alloc-of-live");
  EXPECT_EQ(first_rule(check("alloc x @0\nkernel compute F/z zero n=32 : : x\nfree x @0", "")),
            "frame");
}

TEST(Verify, FindsGathersThatLoseBytes) {
  const std::string body = "collective comm G/w all_gather n=64 slot=c : w[0:2] : w";
  EXPECT_EQ(first_rule(check(body, body)), "bytes-not-conserved");
}

TEST(Verify, FindsRacesBetweenStreams) {
  const std::string racy =
      "kernel compute F/z zero n=64 : : w\ncollective comm R/s all_reduce n=64 slot=c : w : w";
  const std::string sound =
      "kernel compute F/z zero n=64 : : w\nrecord compute e0\nwait comm e0\n"
      "collective comm R/s all_reduce n=64 slot=c : w : w";
  EXPECT_EQ(first_rule(check(racy, sound)), "race");
  EXPECT_EQ(first_rule(check(sound, sound)), "");
  EXPECT_EQ(first_rule(check(racy, racy, Depth::Structure)), "");
}

// Both ranks use both communicators on one stream, in opposite order: NCCL would hang.
TEST(Verify, FindsDeadlocksAcrossCommunicators) {
  const std::string c = "collective comm R/c all_reduce n=64 slot=c : w : w\n";
  const std::string d = "collective comm R/d all_reduce n=64 slot=d : w : w\n";
  EXPECT_EQ(first_rule(check(c + d, d + c)), "deadlock");
  EXPECT_EQ(first_rule(check(c + d, c + d)), "");
}

// Two ranks that send before they receive on one stream block each other, unless the pair is
// grouped.
TEST(Verify, FindsRendezvousDeadlocks) {
  const std::string send = "send comm P/s send_to n=64 slot=peer : w :";
  const std::string receive = "recv comm P/r recv_from n=64 slot=peer : : w";
  EXPECT_EQ(first_rule(check(send + "\n" + receive, send + "\n" + receive)), "deadlock");
  EXPECT_EQ(first_rule(check("send comm P/s send_to n=64 slot=peer grouped : w :\n"
                             "recv comm P/r recv_from n=64 slot=peer grouped : : w",
                             "send comm P/s send_to n=64 slot=peer grouped : w :\n"
                             "recv comm P/r recv_from n=64 slot=peer grouped : : w")),
            "");
}

}  // namespace
}  // namespace gputwin
