// Products of attention, and the merging of their results; see `for_each_isa.h`.
//
// What is multiplied are words of 32 bits: a float32, or two bfloat16 (`vdpbf16ps` adds both
// products). Over them every sum of a product runs in ascending order, one by one.

namespace baton::ISA {

#if LEVEL >= 2
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#else
constexpr int TILE_ROWS = 6, TILE_VECTORS = 1;
#endif
constexpr int HALF_BLOCK = 64;  // keys whose packed words lie together

// Arithmetic in float32, of pages of either type.
template <class T>
struct ByFloat {
  using Element = T;
  static constexpr int PER_WORD = 1, EXP_TERMS = 6;

  static F32x16 load_words(const T* p, int n) { return n >= 16 ? load(p) : load(p, n); }
  static F32x16 add_product(F32x16 sum, F32x16 x, F32x16 y) { return fma(x, y, sum); }
  static void store_weights(float* row, int i, F32x16 weights) { store(row + 16 * i, weights); }

  static void pack_values(const T* first, const T* /*second*/, int head_dim, float* packed) {
    for (int d = 0; d < head_dim; d += 16) store(packed + d, load_words(first + d, head_dim - d));
  }
};

#if LEVEL >= 3
// Pairs of bfloat16 multiplied, added in float32.
struct ByPairs {
  using Element = bf16;
  static constexpr int PER_WORD = 2, EXP_TERMS = 3;

  static F32x16 load_words(const bf16* p, int n) {
    const __mmask16 mask = n >= 16 ? 0xffff : first(n);
    return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi32(mask, p))};
  }
  static F32x16 add_product(F32x16 sum, F32x16 x, F32x16 y) {
    return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(x.v),
                             reinterpret_cast<__m512bh>(y.v))};
  }
  static void store_weights(float* row, int i, F32x16 weights) {
    store(reinterpret_cast<bf16*>(row) + 16 * i, weights);
  }

  // Words of two keys' values; `second` may be null, for zeros.
  static void pack_values(const bf16* first_key, const bf16* second_key, int head_dim,
                          float* packed) {
    const __m512i low = _mm512_loadu_si512(LOW);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    int d = 0;
    for (; d + 32 <= head_dim && second_key; d += 32) {
      const __m512i a = _mm512_loadu_si512(first_key + d), b = _mm512_loadu_si512(second_key + d);
      _mm512_storeu_si512(packed + d, _mm512_permutex2var_epi16(a, low, b));
      _mm512_storeu_si512(packed + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
    for (; d < head_dim; d += 32) {
      const int n = head_dim - d;
      const __mmask32 mask = n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
      const __m512i a = _mm512_maskz_loadu_epi16(mask, first_key + d);
      const __m512i b = _mm512_maskz_loadu_epi16(second_key ? mask : 0, second_key + d);
      _mm512_storeu_si512(packed + d, _mm512_permutex2var_epi16(a, low, b));
      if (n > 16) _mm512_storeu_si512(packed + d + 16, _mm512_permutex2var_epi16(a, high, b));
    }
  }

  alignas(64) static constexpr uint16_t LOW[32] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,
                                                   37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
                                                   11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
};
#endif

// c (+)= a b over words from..to. a [ROWS, words], b [words, VECTORS * 16], c [ROWS, ...].
template <class Op, int ROWS, int VECTORS>
inline void tile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                 int from, int to) {
  F32x16 sums[ROWS][VECTORS];
  for (int r = 0; r < ROWS; r++) {
    for (int i = 0; i < VECTORS; i++) sums[r][i] = from ? load(c + r * ldc + 16 * i) : zero();
  }
  for (int w = from; w < to; w++) {
    F32x16 columns[VECTORS];
    for (int i = 0; i < VECTORS; i++) columns[i] = load(b + w * ldb + 16 * i);
    for (int r = 0; r < ROWS; r++) {
      const F32x16 word = splat(a[r * lda + w]);
      for (int i = 0; i < VECTORS; i++) sums[r][i] = Op::add_product(sums[r][i], columns[i], word);
    }
  }
  for (int r = 0; r < ROWS; r++) {
    for (int i = 0; i < VECTORS; i++) store(c + r * ldc + 16 * i, sums[r][i]);
  }
}

template <class Op, int ROWS>
void product_of_rows(const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
                     int64_t ldc, int from, int to, int n_vectors) {
  for (; n_vectors >= TILE_VECTORS; n_vectors -= TILE_VECTORS) {
    tile<Op, ROWS, TILE_VECTORS>(a, lda, b, ldb, c, ldc, from, to);
    b += 16 * TILE_VECTORS;
    c += 16 * TILE_VECTORS;
  }
#if LEVEL >= 2
  if (n_vectors == 3) tile<Op, ROWS, 3>(a, lda, b, ldb, c, ldc, from, to);
  if (n_vectors == 2) tile<Op, ROWS, 2>(a, lda, b, ldb, c, ldc, from, to);
  if (n_vectors == 1) tile<Op, ROWS, 1>(a, lda, b, ldb, c, ldc, from, to);
#endif
}

template <class Op>
void product(int n_rows, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
             int64_t ldc, int from, int to, int n_vectors) {
  static_assert(TILE_ROWS == 6);
  constexpr decltype(&product_of_rows<Op, 1>) by_rows[] = {
      &product_of_rows<Op, 1>, &product_of_rows<Op, 2>, &product_of_rows<Op, 3>,
      &product_of_rows<Op, 4>, &product_of_rows<Op, 5>, &product_of_rows<Op, 6>};
  by_rows[n_rows - 1](a, lda, b, ldb, c, ldc, from, to, n_vectors);
}

struct Partial {
  float* maxima;
  float* sums;
  float* values;
};

inline Partial partial_at(float* p, int rows) {
  return {p, p + round_up(rows, 16), p + 2 * round_up(rows, 16)};
}

// A block's weights and values, merged into what was there before: later blocks, later.
inline void merge(const Partial& running, const Partial& block, int n_rows, int n_values) {
  for (int r = 0; r < n_rows; r += 16) {
    const F32x16 before = load(running.maxima + r), here = load(block.maxima + r);
    const F32x16 maximum = max(before, here);
    alignas(64) float keep_before[16], keep_here[16];
    store(keep_before, exp2<6>(before - maximum));
    store(keep_here, exp2<6>(here - maximum));
    const int n = n_rows - r < 16 ? n_rows - r : 16;
    store(running.maxima + r, maximum, n);
    const F32x16 scaled = load(block.sums + r) * load(keep_here);
    store(running.sums + r, fma(load(running.sums + r), load(keep_before), scaled), n);
    for (int i = 0; i < n; i++) {
      float* to = running.values + int64_t{r + i} * n_values;
      const float* from = block.values + int64_t{r + i} * n_values;
      const F32x16 x = splat(keep_before[i]), y = splat(keep_here[i]);
      for (int d = 0; d < n_values; d += 16) store(to + d, fma(load(to + d), x, load(from + d) * y));
    }
  }
}

// Weights are powers of two, scores in units of this much.
inline float score_scale(int head_dim) {
  return 1.44269504f / __builtin_sqrtf(static_cast<float>(head_dim));
}

// A row's scores become weights: 2 ** (their excess over the maximum); 0 from the n-th on, up to a
// multiple of 16. Writes the maximum and the weights' sum.
template <class Op, bool FULL>
inline void weigh_some(float* scores, int n, float scale, float* maximum, float* sum_of_weights) {
  constexpr int MOST = KEY_BLOCK / 16;
  const F32x16 nothing = splat(-__builtin_inff());
  const int n_vectors = FULL ? MOST : (n + 15) / 16;
  F32x16 x[MOST] = {}, top = nothing;
  for (int i = 0; i < n_vectors; i++) {
    x[i] = load(scores + 16 * i) * splat(scale);
    if (!FULL && n - 16 * i < 16) x[i] = keep(x[i], n - 16 * i, nothing);
    top = max(top, x[i]);
  }
  *maximum = largest(top);
  top = splat(*maximum);
  F32x16 sums = zero();
  for (int i = 0; i < n_vectors; i++) {
    const F32x16 weights = exp2<Op::EXP_TERMS>(x[i] - top);
    sums = sums + weights;
    Op::store_weights(scores, i, weights);
  }
  *sum_of_weights = sum(sums);
}

template <class Op>
void weigh(float* scores, int n, float scale, float* maximum, float* sum_of_weights) {
  if (n == KEY_BLOCK) weigh_some<Op, true>(scores, n, scale, maximum, sum_of_weights);
  else weigh_some<Op, false>(scores, n, scale, maximum, sum_of_weights);
}

}  // namespace baton::ISA
