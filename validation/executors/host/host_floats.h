// An operand as F32 without gaps.
#pragma once

#include <string>
#include <vector>

#include "validation/executors/host/host_memory.h"
#include "validation/executors/interpreter/interpreter.h"

namespace gputwin::executors {

/// In place if the operand lies so, else a copy that store_back() writes back. Moves, and then
/// points at the same elements.
class Floats {
 public:
  Floats(const HostOperand& operand, bool read) : operand_(&operand), data_(floats_of(operand)) {
    if (data_ != nullptr) return;
    copy_ = read ? load<float>(operand)
                 : std::vector<float>(static_cast<std::size_t>(operand.view.elements()));
    data_ = copy_.data();
  }
  float* data() const { return data_; }
  std::int64_t size() const { return operand_->view.elements(); }
  void store_back() const {
    if (!copy_.empty()) store(*operand_, copy_);
  }

  Floats(Floats&&) = default;
  Floats& operator=(Floats&&) = delete;
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;

 private:
  const HostOperand* operand_;
  std::vector<float> copy_;
  float* data_;
};

inline void need(bool condition, const std::string& what) {
  if (!condition) throw Fault(what);
}

}  // namespace gputwin::executors
