// Memory that a thread keeps for what it works on: fresh memory costs its first touch.
#pragma once

#include <cstdint>
#include <memory>

namespace baton {

class Scratch {
 public:
  // At least n_bytes, from the beginning of a cache line; what was in it may be lost.
  char* get(int64_t n_bytes) {
    constexpr int64_t LINE = 64;
    if (n_bytes > n_bytes_) {
      memory_.reset(new char[n_bytes + LINE]);
      n_bytes_ = n_bytes;
    }
    return memory_.get() + (LINE - reinterpret_cast<uintptr_t>(memory_.get()) % LINE);
  }

 private:
  std::unique_ptr<char[]> memory_;
  int64_t n_bytes_ = 0;
};

}  // namespace baton
