// Weights of a row's tokens by the instructions at hand; see `for_each_isa.h`.

namespace baton::ISA {

#if LEVEL >= 2
struct Doubles {
  static constexpr int LANES = 8;
  using Vector = __m512d;
  using Integers = __m512i;
  static Vector splat(double x) { return _mm512_set1_pd(x); }
  static Integers splat_int(int64_t x) { return _mm512_set1_epi64(x); }
  static Vector load(const float* p) { return _mm512_cvtps_pd(_mm256_loadu_ps(p)); }
  static void store(int64_t* p, Integers x) { _mm512_storeu_si512(p, x); }
  static Vector add(Vector a, Vector b) { return _mm512_add_pd(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm512_sub_pd(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_pd(a, b); }
  static Vector max(Vector a, Vector b) { return _mm512_max_pd(a, b); }
  static Vector round(Vector x) {
    return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Integers integers(Vector x) { return _mm512_cvtepi32_epi64(_mm512_cvtpd_epi32(x)); }
  static Integers bits(Vector x) { return _mm512_castpd_si512(x); }
  static Integers add(Integers a, Integers b) { return _mm512_add_epi64(a, b); }
  static Integers subtract(Integers a, Integers b) { return _mm512_sub_epi64(a, b); }
  static Integers either(Integers a, Integers b) { return _mm512_or_si512(a, b); }
  static Integers both(Integers a, Integers b) { return _mm512_and_si512(a, b); }
  static Integers exponent(Integers x) { return _mm512_srli_epi64(x, 52); }
  // By more than 63, or a negative number: 0.
  static Integers right(Integers x, Integers n) { return _mm512_srlv_epi64(x, n); }
  static Integers left(Integers x, Integers n) { return _mm512_sllv_epi64(x, n); }
};
// Bits of the eight weights that are at least `least`.
inline unsigned at_least(const int64_t* weights, int64_t least) {
  return _mm512_cmpge_epi64_mask(_mm512_loadu_si512(weights), _mm512_set1_epi64(least));
}
#else
struct Doubles {
  static constexpr int LANES = 4;
  using Vector = __m256d;
  using Integers = __m256i;
  static Vector splat(double x) { return _mm256_set1_pd(x); }
  static Integers splat_int(int64_t x) { return _mm256_set1_epi64x(x); }
  static Vector load(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
  static void store(int64_t* p, Integers x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }
  static Vector add(Vector a, Vector b) { return _mm256_add_pd(a, b); }
  static Vector subtract(Vector a, Vector b) { return _mm256_sub_pd(a, b); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_pd(a, b); }
  static Vector max(Vector a, Vector b) { return _mm256_max_pd(a, b); }
  static Vector round(Vector x) {
    return _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Integers integers(Vector x) { return _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(x)); }
  static Integers bits(Vector x) { return _mm256_castpd_si256(x); }
  static Integers add(Integers a, Integers b) { return _mm256_add_epi64(a, b); }
  static Integers subtract(Integers a, Integers b) { return _mm256_sub_epi64(a, b); }
  static Integers either(Integers a, Integers b) { return _mm256_or_si256(a, b); }
  static Integers both(Integers a, Integers b) { return _mm256_and_si256(a, b); }
  static Integers exponent(Integers x) { return _mm256_srli_epi64(x, 52); }
  // By more than 63, or a negative number: 0.
  static Integers right(Integers x, Integers n) { return _mm256_srlv_epi64(x, n); }
  static Integers left(Integers x, Integers n) { return _mm256_sllv_epi64(x, n); }
};
// Bits of the eight weights that are at least `least`.
inline unsigned at_least(const int64_t* weights, int64_t least) {
  unsigned bits = 0;
  for (int i = 0; i < 8; i += 4) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights + i));
    const __m256i less = _mm256_cmpgt_epi64(_mm256_set1_epi64x(least), x);
    bits |= (~_mm256_movemask_pd(_mm256_castsi256_pd(less)) & 15) << i;
  }
  return bits;
}
#endif

// floor(2 ** ((logit - top) * scale) * 2 ** weight_bits): see `common.sampling` for the steps.
inline Doubles::Integers weigh(const float* logits, double top, double scale, int weight_bits) {
  using D = Doubles;
  D::Vector x = D::multiply(D::subtract(D::load(logits), D::splat(top)), D::splat(scale));
  x = D::max(x, D::splat(-2.0 - weight_bits));
  const D::Vector n = D::round(x), f = D::subtract(x, n);
  D::Vector p = D::splat(EXP2_SERIES[0]);
  UNROLL for (int i = 1; i < EXP2_TERMS; i++) {
    p = D::add(D::multiply(p, f), D::splat(EXP2_SERIES[i]));
  }
  const D::Integers bits = D::bits(p);  // the number is its 53-bit mantissa * 2 ** -shift
  const D::Integers mantissa =
      D::either(D::both(bits, D::splat_int((int64_t{1} << 52) - 1)), D::splat_int(int64_t{1} << 52));
  const D::Integers shift =
      D::subtract(D::splat_int(1075 - weight_bits), D::add(D::exponent(bits), D::integers(n)));
  return D::either(D::right(mantissa, shift),
                   D::left(mantissa, D::subtract(D::splat_int(0), shift)));
}

// Weights of all n tokens, and of each WEIGHTS_BLOCK of them the sum; returns the sum of all.
// There is room for `weights` up to a multiple of 8; those past n are 0.
inline int64_t weigh_row(const float* logits, int64_t n, double top, double scale, int weight_bits,
                         int64_t* weights, int64_t* sums) {
  using D = Doubles;
  int64_t total = 0;
  for (int64_t begin = 0; begin < n; begin += WEIGHTS_BLOCK) {
    const int64_t end = n - begin < WEIGHTS_BLOCK ? n : begin + WEIGHTS_BLOCK;
    D::Integers lanes = D::splat_int(0);
    int64_t i = begin;
    for (; i + D::LANES <= end; i += D::LANES) {
      const D::Integers w = weigh(logits + i, top, scale, weight_bits);
      D::store(weights + i, w);
      lanes = D::add(lanes, w);
    }
    int64_t parts[D::LANES], sum = 0;
    D::store(parts, lanes);
    for (int64_t part : parts) sum += part;
    if (i < end) {
      float last[D::LANES];
      for (int64_t j = 0; j < D::LANES; j++) last[j] = i + j < end ? logits[i + j] : -__builtin_inff();
      D::store(weights + i, weigh(last, top, scale, weight_bits));
      for (int64_t j = i; j < end; j++) sum += weights[j];
    }
    sums[begin / WEIGHTS_BLOCK] = sum;
    total += sum;
  }
  for (int64_t i = n; i % 8; i++) weights[i] = 0;
  return total;
}

// Ids of tokens with at least that weight, ascending; returns how many.
inline int64_t find_at_least(const int64_t* weights, int64_t n, int64_t least, int32_t* ids) {
  int64_t n_found = 0;
  for (int64_t i = 0; i < n; i += 8) {
    for (unsigned bits = at_least(weights + i, least); bits; bits &= bits - 1) {
      ids[n_found++] = static_cast<int32_t>(i + __builtin_ctz(bits));
    }
  }
  return n_found;
}

}  // namespace baton::ISA
