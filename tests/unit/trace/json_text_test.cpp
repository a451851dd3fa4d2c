#include "sim/trace/json_text.h"

#include <gtest/gtest.h>

namespace gputwin {
namespace {

std::string microseconds(Ps time) {
  std::string text;
  append_microseconds(text, time);
  return text;
}

// 1 us is 1,000,000 ps; zeros at the end are not written, so whole microseconds have no point.
TEST(JsonText, WritesPicosecondsExactlyInMicroseconds) {
  EXPECT_EQ(microseconds(0), "0");
  EXPECT_EQ(microseconds(1), "0.000001");
  EXPECT_EQ(microseconds(1'500'000), "1.5");
  EXPECT_EQ(microseconds(12'000'340), "12.00034");
  EXPECT_EQ(microseconds(31'500'000'000'001), "31500000.000001");
  EXPECT_EQ(microseconds(7'000'000), "7");
}

TEST(JsonText, EscapesWhatJsonForbidsInStrings) {
  std::string text;
  append_string(text, "a\"b\\c\n·");
  EXPECT_EQ(text, "\"a\\\"b\\\\c\\u000a·\"");
}

}  // namespace
}  // namespace gputwin
