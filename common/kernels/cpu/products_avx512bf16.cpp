#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "products.h"
#include "vector_exp.h"

BEGIN_AVX512BF16
namespace baton::avx512bf16 {

#include "product_tiles.h"

namespace {

struct Bfloat16 {
  using Vector = __m512;
  static constexpr int LANES = 16;
  static constexpr int TILE_ROWS = 12;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector one() { return _mm512_set1_ps(1.0f); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
  static Vector broadcast(const char* from) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(from));
  }
  static Vector multiply_add(Vector sum, Vector w, Vector x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector exp(Vector v) { return exp_ps(v); }
};

}  // namespace

void chunk(const Product& p, int64_t row_begin, int64_t row_end, int64_t block) {
  run_chunk<Bfloat16>(p, row_begin, row_end, block);
}

}  // namespace baton::avx512bf16
END_TARGET
