#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "products.h"
#include "vector_exp.h"

BEGIN_AVX512
namespace baton::avx512 {

#include "product_tiles.h"

namespace {

struct Vectors {
  using Vector = __m512;
  static constexpr int LANES = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector one() { return _mm512_set1_ps(1.0f); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
  static Vector broadcast(const char* from) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(from));
  }
  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector exp(Vector v) { return exp_ps(v); }
};

struct Float32 : Vectors {
  static constexpr int TILE_ROWS = 12;
  static Vector multiply_add(Vector sum, Vector w, Vector x) { return _mm512_fmadd_ps(w, x, sum); }
};

// A bfloat16 is the upper half of a float32.
struct Bfloat16 : Vectors {
  static constexpr int TILE_ROWS = 10;
  static Vector even(Vector v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v), 16));
  }
  static Vector odd(Vector v) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), upper));
  }
  static Vector multiply_add(Vector sum, Vector w, Vector x) {
    return _mm512_fmadd_ps(odd(w), odd(x), _mm512_fmadd_ps(even(w), even(x), sum));
  }
};

}  // namespace

void chunk(const Product& p, int64_t row_begin, int64_t row_end, int64_t block) {
  if (p.matrix.dtype == Dtype::float32) run_chunk<Float32>(p, row_begin, row_end, block);
  else run_chunk<Bfloat16>(p, row_begin, row_end, block);
}

}  // namespace baton::avx512
END_TARGET
