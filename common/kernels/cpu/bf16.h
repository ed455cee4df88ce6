// bfloat16 in memory.
#pragma once

#include <cstdint>

namespace baton {

struct bf16 {
  uint16_t bits;
};

}  // namespace baton
