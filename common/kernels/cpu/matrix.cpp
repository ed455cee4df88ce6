#include "matrix.h"

#include <algorithm>
#include <cstring>

#include "threads.h"

namespace baton {
namespace {

// The output's 4 bytes of the first step; those of the next follow STEP_BYTES later.
char* first_step(const Matrix& matrix, int64_t output) {
  const int part = output >= matrix.n_outputs;
  output -= part * matrix.n_outputs;
  return matrix.block(output / BLOCK, part) + output % BLOCK * 4;
}

}  // namespace

void pack_rows(const Matrix& matrix, const char* rows, int64_t n_rows, int64_t first) {
  const int64_t row_bytes = matrix.row_bytes();
  parallel_for((n_rows + BLOCK - 1) / BLOCK, [&](int64_t task) {
    const int64_t begin = task * BLOCK, end = std::min(n_rows, begin + BLOCK);
    for (int64_t row = begin; row < end; row++) {
      const char* from = rows + row * row_bytes;
      char* to = first_step(matrix, first + row);
      for (int64_t at = 0; at + 4 <= row_bytes; at += 4, to += STEP_BYTES) {
        std::memcpy(to, from + at, 4);
      }
      if (row_bytes % 4) std::memcpy(to, from + row_bytes - 2, 2);
    }
  });
}

void unpack_rows(const Matrix& matrix, const int64_t* outputs, int64_t n, char* rows) {
  const int64_t row_bytes = matrix.row_bytes();
  parallel_for(n, [&](int64_t i) {
    const char* from = first_step(matrix, outputs[i]);
    char* to = rows + i * row_bytes;
    for (int64_t at = 0; at + 4 <= row_bytes; at += 4, from += STEP_BYTES) {
      std::memcpy(to + at, from, 4);
    }
    if (row_bytes % 4) std::memcpy(to + row_bytes - 2, from, 2);
  });
}

}  // namespace baton
