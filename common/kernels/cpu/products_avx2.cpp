#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "products.h"
#include "vector_exp.h"

BEGIN_AVX2
namespace baton::avx2 {

#include "product_tiles.h"

namespace {

struct Vectors {
  using Vector = __m256;
  static constexpr int LANES = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector one() { return _mm256_set1_ps(1.0f); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
  static Vector broadcast(const char* from) {
    return _mm256_set1_ps(*reinterpret_cast<const float*>(from));
  }
  static Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector exp(Vector v) { return exp_ps(v); }
};

struct Float32 : Vectors {
  static constexpr int TILE_ROWS = 6;
  static Vector multiply_add(Vector sum, Vector w, Vector x) { return _mm256_fmadd_ps(w, x, sum); }
};

// A bfloat16 is the upper half of a float32.
struct Bfloat16 : Vectors {
  static constexpr int TILE_ROWS = 4;
  static Vector even(Vector v) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v), 16));
  }
  static Vector odd(Vector v) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(v), upper));
  }
  static Vector multiply_add(Vector sum, Vector w, Vector x) {
    return _mm256_fmadd_ps(odd(w), odd(x), _mm256_fmadd_ps(even(w), even(x), sum));
  }
};

}  // namespace

void chunk(const Product& p, int64_t row_begin, int64_t row_end, int64_t block) {
  if (p.matrix.dtype == Dtype::float32) run_chunk<Float32>(p, row_begin, row_end, block);
  else run_chunk<Bfloat16>(p, row_begin, row_end, block);
}

}  // namespace baton::avx2
END_TARGET
