#include "products.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "bf16.h"
#include "isa.h"
#include "threads.h"
#include "vector_exp.h"

namespace baton {

constexpr int MAX_CHUNK_ROWS = 192;

}  // namespace baton

#define KERNELS "product_tiles.h"
#include "for_each_isa.h"

namespace baton {
namespace {

constexpr int64_t CHUNK_BYTES = 600 << 10;  // of x: what stays in a core's L2 while weights pass

using ChunkFunction = void (*)(const Product&, int64_t row_begin, int64_t row_end, int64_t block);

ChunkFunction chunk_function(Dtype dtype, Dtype out_dtype) {
  if (dtype == Dtype::float32) {
    return isa() >= Isa::avx512 ? avx512::chunk<avx512::Float32, float>
                                : avx2::chunk<avx2::Float32, float>;
  }
  const bool wide = out_dtype == Dtype::float32;
  switch (isa()) {
    case Isa::avx512bf16:
      return wide ? avx512bf16::chunk<avx512bf16::Bfloat16, float>
                  : avx512bf16::chunk<avx512bf16::Bfloat16, bf16>;
    case Isa::avx512:
      return wide ? avx512::chunk<avx512::Bfloat16, float> : avx512::chunk<avx512::Bfloat16, bf16>;
    default:
      return wide ? avx2::chunk<avx2::Bfloat16, float> : avx2::chunk<avx2::Bfloat16, bf16>;
  }
}

// Rows of an odd number of bfloat16 once more, each with a zero behind it.
std::unique_ptr<char[]> padded_rows(const Product& p, int64_t stride) {
  std::unique_ptr<char[]> rows(new char[p.n_rows * stride]());
  for (int64_t row = 0; row < p.n_rows; row++) {
    std::memcpy(rows.get() + row * stride, p.x + row * p.x_stride, p.matrix.row_bytes());
  }
  return rows;
}

}  // namespace

void multiply(Product p) {
  if (p.n_rows == 0) return;
  const int64_t step_row_bytes = p.matrix.n_steps() * 4;
  std::unique_ptr<char[]> padded;
  if (p.matrix.row_bytes() != step_row_bytes) {
    padded = padded_rows(p, step_row_bytes);
    p.x = padded.get();
    p.x_stride = step_row_bytes;
  }
  const int64_t most = std::clamp<int64_t>(CHUNK_BYTES / step_row_bytes, 12, MAX_CHUNK_ROWS);
  const int64_t n_chunks = (p.n_rows + most - 1) / most;
  const int64_t n_blocks = p.matrix.n_blocks();
  const ChunkFunction chunk = chunk_function(p.matrix.dtype, p.out_dtype);
  parallel_for(n_chunks * n_blocks, [&](int64_t task) {
    const int64_t row_begin = task / n_blocks * most;
    chunk(p, row_begin, std::min(p.n_rows, row_begin + most), task % n_blocks);
  });
}

}  // namespace baton
