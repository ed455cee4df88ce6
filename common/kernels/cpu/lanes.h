// Sixteen floats, and what kernels do with them; included by `for_each_isa.h`.
//
// Every function gives the same bits with all instructions (subnormals rounded to bfloat16
// excepted): an AVX2 vector is two halves, and sums over lanes are the same tree.

namespace baton::ISA {

#if LEVEL >= 2

struct F32x16 {
  __m512 v;
};

inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline F32x16 zero() { return {_mm512_setzero_ps()}; }
inline F32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F32x16 load(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
inline void store(float* p, F32x16 x, int n) { _mm512_mask_storeu_ps(p, first(n), x.v); }

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Of a NaN and a number: b.
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F32x16 exp(F32x16 x) { return {exp_ps(x.v)}; }
inline F32x16 round(F32x16 x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// The first n lanes of x, the others of y.
inline F32x16 keep(F32x16 x, int n, F32x16 y) { return {_mm512_mask_mov_ps(y.v, first(n), x.v)}; }
// 0 where a < b, else x.
inline F32x16 zero_where_less(F32x16 a, F32x16 b, F32x16 x) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), x.v)};
}
// x * 2^n: n integers, the result a normal number.
inline F32x16 times_power_of_two(F32x16 x, F32x16 n) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), exponent))};
}

inline F32x16 widen(__m256i halves) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
inline F32x16 load(const bf16* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F32x16 load(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }

inline __m256i narrow(F32x16 x) {
#if LEVEL >= 3
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
#else
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}
inline void store(bf16* p, F32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x));
}
inline void store(bf16* p, F32x16 x, int n) { _mm256_mask_storeu_epi16(p, first(n), narrow(x)); }

inline __m256 low_half(F32x16 x) { return _mm512_castps512_ps256(x.v); }
inline __m256 high_half(F32x16 x) { return _mm512_extractf32x8_ps(x.v, 1); }

#else

struct F32x16 {
  __m256 a, b;
};

// Ones in the first n of eight lanes; n may lie outside 0 .. 8.
inline __m256i first(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F32x16 load(const float* p, int n) {
  return {_mm256_maskload_ps(p, first(n)), _mm256_maskload_ps(p + 8, first(n - 8))};
}
inline void store(float* p, F32x16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline void store(float* p, F32x16 x, int n) {
  _mm256_maskstore_ps(p, first(n), x.a);
  _mm256_maskstore_ps(p + 8, first(n - 8), x.b);
}

inline F32x16 operator+(F32x16 x, F32x16 y) {
  return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)};
}
inline F32x16 operator-(F32x16 x, F32x16 y) {
  return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)};
}
inline F32x16 operator*(F32x16 x, F32x16 y) {
  return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)};
}
inline F32x16 operator/(F32x16 x, F32x16 y) {
  return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)};
}
inline F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
// Of a NaN and a number: y.
inline F32x16 max(F32x16 x, F32x16 y) {
  return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}
inline F32x16 exp(F32x16 x) { return {exp_ps(x.a), exp_ps(x.b)}; }
inline F32x16 round(F32x16 x) {
  constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, how), _mm256_round_ps(x.b, how)};
}
// The first n lanes of x, the others of y.
inline F32x16 keep(F32x16 x, int n, F32x16 y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(first(n))),
          _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(first(n - 8)))};
}
// 0 where x < y, else z.
inline F32x16 zero_where_less(F32x16 x, F32x16 y, F32x16 z) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, y.a, _CMP_NLT_UQ), z.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, y.b, _CMP_NLT_UQ), z.b)};
}
inline __m256 times_power_of_two(__m256 x, __m256 n) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
// x * 2^n: n integers, the result a normal number.
inline F32x16 times_power_of_two(F32x16 x, F32x16 n) {
  return {times_power_of_two(x.a, n.a), times_power_of_two(x.b, n.b)};
}

inline __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
inline F32x16 load(const bf16* p) {
  const auto* halves = reinterpret_cast<const __m128i*>(p);
  return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
}
inline F32x16 load(const bf16* p, int n) {
  bf16 padded[16] = {};
  for (int i = 0; i < n; i++) padded[i] = p[i];
  return load(padded);
}

inline __m256i narrow(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  const __m256 rounded = _mm256_blendv_ps(_mm256_castsi256_ps(sum), quiet, nan);
  return _mm256_srli_epi32(_mm256_castps_si256(rounded), 16);
}
inline void store(bf16* p, F32x16 x) {
  const __m256i crossed = _mm256_packus_epi32(narrow(x.a), narrow(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm256_permute4x64_epi64(crossed, _MM_SHUFFLE(3, 1, 2, 0)));
}
inline void store(bf16* p, F32x16 x, int n) {
  bf16 padded[16];
  store(padded, x);
  for (int i = 0; i < n; i++) p[i] = padded[i];
}

inline __m256 low_half(F32x16 x) { return x.a; }
inline __m256 high_half(F32x16 x) { return x.b; }

#endif

// Row i, lane j becomes row j, lane i.
#if LEVEL >= 2
inline void transpose(F32x16 rows[16]) {
  __m512d pairs[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_castps_pd(_mm512_unpacklo_ps(rows[i].v, rows[i + 1].v));
    pairs[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(rows[i].v, rows[i + 1].v));
  }
  __m512 fours[16];  // [4 i + j]: column j of each group of four columns, rows 4 i .. 4 i + 3
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; j++) {
      const __m512d a = pairs[i + j], b = pairs[i + 2 + j];
      fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  }
  for (int j = 0; j < 4; j++) {
    const __m512 a = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xdd);
    rows[j].v = _mm512_shuffle_f32x4(a, c, 0x88);
    rows[4 + j].v = _mm512_shuffle_f32x4(b, d, 0x88);
    rows[8 + j].v = _mm512_shuffle_f32x4(a, c, 0xdd);
    rows[12 + j].v = _mm512_shuffle_f32x4(b, d, 0xdd);
  }
}
#else
inline void transpose(__m256 rows[8]) {
  __m256 fours[8];
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; j++) {
      const __m256 a = j ? _mm256_unpackhi_ps(rows[i], rows[i + 1])
                         : _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      const __m256 b = j ? _mm256_unpackhi_ps(rows[i + 2], rows[i + 3])
                         : _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
      fours[i + 2 * j] = _mm256_shuffle_ps(a, b, 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(a, b, 0xee);
    }
  }
  for (int j = 0; j < 4; j++) {
    rows[j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
    rows[4 + j] = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
  }
}
inline void transpose(F32x16 rows[16]) {
  __m256 quarters[4][8];  // upper left, upper right, lower left, lower right
  for (int i = 0; i < 8; i++) {
    quarters[0][i] = rows[i].a;
    quarters[1][i] = rows[i].b;
    quarters[2][i] = rows[8 + i].a;
    quarters[3][i] = rows[8 + i].b;
  }
  for (auto& quarter : quarters) transpose(quarter);
  for (int i = 0; i < 8; i++) {
    rows[i] = {quarters[0][i], quarters[2][i]};
    rows[8 + i] = {quarters[1][i], quarters[3][i]};
  }
}
#endif

inline float sum(F32x16 x) {
  const __m256 eight = _mm256_add_ps(low_half(x), high_half(x));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Bits of the lanes that are NaN.
#if LEVEL >= 2
inline unsigned nans(F32x16 x) { return _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q); }
#else
inline unsigned nans(F32x16 x) {
  return _mm256_movemask_ps(_mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q)) |
         _mm256_movemask_ps(_mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q)) << 8;
}
#endif

// NaN may or may not win.
inline float largest(F32x16 x) {
  const __m256 eight = _mm256_max_ps(low_half(x), high_half(x));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// 2^x, for x <= 0: below -126 it is 0, of NaN NaN. `TERMS` of the series: with 6 the error is that
// of float32, with 3 a 16th of bfloat16's. Minimax coefficients over -1/2 .. 1/2; 2^0 is 1.
template <int TERMS>
inline F32x16 exp2(F32x16 x) {
  const F32x16 n = round(x);
  const F32x16 f = x - n;
  F32x16 p;
  if constexpr (TERMS == 6) {
    p = fma(splat(0.00015353362f), f, splat(0.0013398875f));
    p = fma(p, f, splat(0.009618437f));
    p = fma(p, f, splat(0.055503324f));
    p = fma(p, f, splat(0.24022648f));
    p = fma(p, f, splat(0.6931472f));
  } else {
    static_assert(TERMS == 3);
    p = fma(splat(0.05500893f), f, splat(0.24221097f));
    p = fma(p, f, splat(0.6932829f));
  }
  p = fma(p, f, splat(1.0f));
  return zero_where_less(x, splat(-126.0f), times_power_of_two(p, n));
}

// Rounded as if stored there.
inline F32x16 rounded_as(const float*, F32x16 x) { return x; }
#if LEVEL >= 2
inline F32x16 rounded_as(const bf16*, F32x16 x) { return widen(narrow(x)); }
#else
inline F32x16 rounded_as(const bf16*, F32x16 x) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(narrow(x.a), 16)),
          _mm256_castsi256_ps(_mm256_slli_epi32(narrow(x.b), 16))};
}
#endif

}  // namespace baton::ISA
