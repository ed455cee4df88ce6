#include "products.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "bf16.h"
#include "codes.h"
#include "isa.h"
#include "scratch.h"
#include "threads.h"
#include "vector_exp.h"

namespace baton {

constexpr int MAX_CHUNK_ROWS = 192;

}  // namespace baton

#define KERNELS "product_kernels.h"
#include "for_each_isa.h"

namespace baton {
namespace {

constexpr int64_t CHUNK_BYTES = 600 << 10;  // of x: what stays in a core's L2 while weights pass

using ChunkFunction = avx2::ChunkFunction;

ChunkFunction chunk_function(const Product& p) {
  const Matrix& m = p.matrix;
  switch (isa()) {
    case Isa::avx512bf16:
      return avx512bf16::chunk_of(m.format, m.dtype, p.out_dtype);
    case Isa::avx512:
      return avx512::chunk_of(m.format, m.dtype, p.out_dtype);
    default:
      return avx2::chunk_of(m.format, m.dtype, p.out_dtype);
  }
}

// Rows once more, each with zeros behind it up to the end of the last step.
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
  std::vector<float> group_sums;
  if (p.matrix.encoding().n_scales > 1 && p.matrix.dtype == Dtype::bfloat16 &&
      isa() == Isa::avx512bf16 && p.n_rows <= avx512bf16::Q4_1::DIRECT_ROWS) {
    group_sums.resize(p.n_rows * p.matrix.n_groups());
    avx512bf16::sum_groups(p.matrix, p.x, p.x_stride, p.n_rows, group_sums.data());
    p.group_sums = group_sums.data();
  }
  const ChunkFunction chunk = chunk_function(p);
  parallel_for(n_chunks * n_blocks, [&](int64_t task) {
    const int64_t row_begin = task / n_blocks * most;
    chunk(p, row_begin, std::min(p.n_rows, row_begin + most), task % n_blocks);
  });
}

}  // namespace baton
