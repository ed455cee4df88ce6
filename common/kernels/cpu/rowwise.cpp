#include "rowwise.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "bf16.h"
#include "isa.h"
#include "threads.h"
#include "vector_exp.h"

#define KERNELS "rowwise_kernels.h"
#include "for_each_isa.h"

namespace baton {
namespace {

constexpr int64_t TASK_ELEMENTS = 16384;  // a few microseconds: what sharing out costs

// Calls f(begin, end) over runs of rows, several at once where there are enough of them.
template <class F>
void over_rows(int64_t n_rows, int64_t n_elements, F f) {
  const int64_t rows = std::max<int64_t>(1, TASK_ELEMENTS / std::max<int64_t>(1, n_elements));
  const int64_t n_tasks = (n_rows + rows - 1) / rows;
  parallel_for(n_tasks, [&](int64_t i) { f(i * rows, std::min(n_rows, (i + 1) * rows)); });
}

// The function for the instructions at hand. Rounding to bfloat16 is one of AVX-512 bf16's.
#define CHOOSE(function, dtype)                                                              \
  (dtype == Dtype::float32                                                                   \
       ? (isa() >= Isa::avx512 ? avx512::function<float> : avx2::function<float>)            \
       : (isa() == Isa::avx512bf16 ? avx512bf16::function<bf16>                              \
          : isa() == Isa::avx512   ? avx512::function<bf16>                                  \
                                   : avx2::function<bf16>))

}  // namespace

void norm(const NormRows& rows) {
  const auto kernel = CHOOSE(norm_rows, rows.dtype);
  over_rows(rows.n_rows, rows.n, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
}

void turn_and_write(const TurnRows& rows) {
  const auto kernel = CHOOSE(turn_rows, rows.dtype);
  const int64_t n_elements = (rows.n_heads + 2 * rows.geometry.n_kv_heads) * rows.geometry.head_dim;
  over_rows(rows.n_rows, n_elements, [&](int64_t begin, int64_t end) { kernel(rows, begin, end); });
}

void argmax(const float* logits, int64_t n_rows, int64_t n, int64_t* out) {
  const auto kernel = isa() >= Isa::avx512 ? avx512::first_largest : avx2::first_largest;
  over_rows(n_rows, n, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) out[row] = kernel(logits + row * n, n);
  });
}

}  // namespace baton
