// exp of a vector's lanes, with the same bits at every vector width (law 3).
//
// Below -87.336 (where the result would be subnormal) 0, above 88.722 infinity, of NaN NaN; in
// between within 2 units in the last place. Cephes' expf: x = n ln 2 + r, a polynomial in r, and
// n added to the exponent.
#pragma once

#include <immintrin.h>

#include "isa.h"

namespace baton::exp_constants {
constexpr float LOWEST = -87.336540f, HIGHEST = 88.722839f;
constexpr float LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
constexpr float P0 = 1.9875691500e-4f, P1 = 1.3981999507e-3f, P2 = 8.3334519073e-3f;
constexpr float P3 = 4.1665795894e-2f, P4 = 1.6666665459e-1f, P5 = 5.0000001201e-1f;
}  // namespace baton::exp_constants

BEGIN_AVX512
namespace baton {

inline __m512 exp_ps(__m512 x) {
  namespace c = exp_constants;
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(c::LOG2_E)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(c::LN2_HIGH), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(c::LN2_LOW), r);
  __m512 p = _mm512_set1_ps(c::P0);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c::P1));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c::P2));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c::P3));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c::P4));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c::P5));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
  const __m512 y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  const __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(c::LOWEST), _CMP_LT_OQ);
  const __mmask16 high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(c::HIGHEST), _CMP_GT_OQ);
  const __m512 infinity = _mm512_set1_ps(__builtin_inff());
  return _mm512_mask_mov_ps(_mm512_mask_mov_ps(y, low, _mm512_setzero_ps()), high, infinity);
}

}  // namespace baton
END_TARGET

BEGIN_AVX2
namespace baton {

inline __m256 exp_ps(__m256 x) {
  namespace c = exp_constants;
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(c::LOG2_E)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(c::LN2_HIGH), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(c::LN2_LOW), r);
  __m256 p = _mm256_set1_ps(c::P0);
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c::P1));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c::P2));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c::P3));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c::P4));
  p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(c::P5));
  p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(c::LOWEST), _CMP_LT_OQ);
  const __m256 high = _mm256_cmp_ps(x, _mm256_set1_ps(c::HIGHEST), _CMP_GT_OQ);
  return _mm256_blendv_ps(_mm256_andnot_ps(low, y), _mm256_set1_ps(__builtin_inff()), high);
}

}  // namespace baton
END_TARGET
