// Attention of a few query rows over keys and values where they lie in their pages, in bfloat16;
// see `for_each_isa.h`. Packing them first would double what is loaded and stored.

#if LEVEL >= 3
namespace baton::ISA {

constexpr int FEW_ROWS = 4;  // four accumulators each

inline __m512bh words(__m512i x) { return reinterpret_cast<__m512bh>(x); }

// Keys or values of a block; each 16, from a multiple of 16 on, lie one after the other.
struct Runs {
  const bf16* first;
  const Keys& keys;
  const int n;

  const bf16* at(int i) const { return first + keys.at[i]; }
};

// scores[r * KEY_BLOCK + i] = q_r k_i for 16 keys, one after the other in memory. Rows of q are
// `n_words` words, a multiple of 16, zeros past the head's.
//
// Of keys a, 4 + a, 8 + a, 12 + a the same four words are brought together in one vector, and
// multiplied by four words of q; so four lanes are left to add up, not sixteen.
template <int ROWS>
void score_16_keys(const bf16* k, int head_dim, const float* q, int n_words, float* scores) {
  __m512 sums[ROWS][4];
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    UNROLL
    for (int a = 0; a < 4; a++) sums[r][a] = _mm512_setzero_ps();
  }
  for (int w = 0; w < n_words; w += 16) {
    const int left = head_dim / 2 - w;
    const __mmask16 mask = left < 16 ? first(left) : 0xffff;
    UNROLL
    for (int a = 0; a < 4; a++) {
      __m512i x[4];
      UNROLL
      for (int j = 0; j < 4; j++) x[j] = _mm512_maskz_loadu_epi32(mask, k + (4 * j + a) * head_dim + 2 * w);
      const __m512i even01 = _mm512_shuffle_i32x4(x[0], x[1], 0x88);
      const __m512i even23 = _mm512_shuffle_i32x4(x[2], x[3], 0x88);
      const __m512i odd01 = _mm512_shuffle_i32x4(x[0], x[1], 0xdd);
      const __m512i odd23 = _mm512_shuffle_i32x4(x[2], x[3], 0xdd);
      const __m512i fours[4] = {_mm512_shuffle_i32x4(even01, even23, 0x88),
                                _mm512_shuffle_i32x4(odd01, odd23, 0x88),
                                _mm512_shuffle_i32x4(even01, even23, 0xdd),
                                _mm512_shuffle_i32x4(odd01, odd23, 0xdd)};
      UNROLL
      for (int i = 0; i < 4; i++) {
        UNROLL
        for (int r = 0; r < ROWS; r++) {
          const __m128i four = _mm_loadu_si128(
              reinterpret_cast<const __m128i*>(q + int64_t{r} * n_words + w + 4 * i));
          sums[r][a] = _mm512_dpbf16_ps(sums[r][a], words(fours[i]),
                                        words(_mm512_broadcast_i32x4(four)));
        }
      }
    }
  }
  UNROLL
  for (int r = 0; r < ROWS; r++) {
    const __m512* s = sums[r];
    const __m512d low = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(s[0], s[1]), _mm512_unpackhi_ps(s[0], s[1])));
    const __m512d high = _mm512_castps_pd(
        _mm512_add_ps(_mm512_unpacklo_ps(s[2], s[3]), _mm512_unpackhi_ps(s[2], s[3])));
    _mm512_storeu_ps(scores + r * KEY_BLOCK,
                     _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)),
                                   _mm512_castpd_ps(_mm512_unpackhi_pd(low, high))));
  }
}

// out[r * n_values + d] = sum over keys of weight * value, for 32 * CHUNKS values d, of which `mask`
// says which are there in the last 32. Weights are bfloat16, KEY_BLOCK floats' room a row, 0 past
// the keys.
template <int ROWS, int CHUNKS>
void weigh_chunks(const Runs& values, int head_dim, __mmask32 mask, const float* weights,
                  float* out, int n_values, Ahead<bf16>& ahead) {
  const __m512i low = _mm512_loadu_si512(ByPairs::LOW);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  __m512 sums[ROWS][2 * CHUNKS];
  UNROLL for (int r = 0; r < ROWS; r++) {
    UNROLL for (int p = 0; p < 2 * CHUNKS; p++) sums[r][p] = _mm512_setzero_ps();
  }
  for (int run = 0; run < values.n; run += 16) {
    const bf16* v = values.at(run);
    const int n = values.n - run < 16 ? values.n - run : 16;
    for (int i = 0; i < n; i += 2, v += 2 * head_dim) {
      ahead.ask(2);
      const __mmask32 both = i + 1 < n ? ~__mmask32{0} : 0;
      __m512i pairs[2 * CHUNKS];
      UNROLL for (int c = 0; c < CHUNKS; c++) {
        const __mmask32 there = c + 1 < CHUNKS ? ~__mmask32{0} : mask;
        const __m512i one = _mm512_maskz_loadu_epi16(there, v + 32 * c);
        const __m512i two = _mm512_maskz_loadu_epi16(there & both, v + head_dim + 32 * c);
        pairs[2 * c] = _mm512_permutex2var_epi16(one, low, two);
        pairs[2 * c + 1] = _mm512_permutex2var_epi16(one, high, two);
      }
      UNROLL for (int r = 0; r < ROWS; r++) {
        const F32x16 weight = splat(weights[r * KEY_BLOCK + (run + i) / 2]);
        UNROLL for (int p = 0; p < 2 * CHUNKS; p++) {
          sums[r][p] = _mm512_dpbf16_ps(sums[r][p], words(pairs[p]),
                                        reinterpret_cast<__m512bh>(weight.v));
        }
      }
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    UNROLL for (int p = 0; p < 2 * CHUNKS; p++) {
      const __mmask16 there = p + 1 < 2 * CHUNKS || mask >> 16 ? 0xffff : 0;
      _mm512_mask_storeu_ps(out + r * n_values + 16 * p, there, sums[r][p]);
    }
  }
}

// A task of one query token and ROWS query heads.
template <int ROWS>
class FewKernel {
 public:
  FewKernel(const Blocks<bf16>& blocks)
      : blocks_(blocks),
        head_dim_(blocks.plan.geometry.head_dim),
        n_words_(round_up(head_dim_ / 2, 16)),
        n_values_(round_up(head_dim_, 16)) {
    float* p = attention_scratch(2 * partial_floats(ROWS, head_dim_) + ROWS * KEY_BLOCK +
                                 ROWS * n_words_);
    running_ = p;
    fresh_ = running_ + partial_floats(ROWS, head_dim_);
    scores_ = fresh_ + partial_floats(ROWS, head_dim_);
    queries_ = scores_ + ROWS * KEY_BLOCK;
  }

  void run(float* partials) {
    copy_queries<ByPairs>(blocks_, ROWS, queries_, n_words_);
    for (; blocks_.more(); blocks_.advance()) {
      float* running = partials ? partials : running_;
      const bool first = partials || blocks_.nth() == 0;
      const Partial block = partial_at(first ? running : fresh_, ROWS);
      attend_block(block);
      if (!first) merge(partial_at(running, ROWS), block, ROWS, n_values_);
      if (partials) partials += partial_floats(ROWS, head_dim_);
    }
    if (!partials) write_results<bf16>(blocks_, partial_at(running_, ROWS));
  }

 private:
  void attend_block(const Partial& to) {
    const Keys& here = blocks_.here();
    const Runs keys = {blocks_.keys, here, here.n};
    Ahead<bf16> values_ahead(blocks_.values, here, head_dim_);
    for (int i = 0; i < here.n; i += 16) {
      values_ahead.ask(KEY_BLOCK / 8);
      score_16_keys<ROWS>(keys.at(i), head_dim_, queries_, n_words_, scores_ + i);
    }
    const float scale = score_scale(head_dim_);
    for (int r = 0; r < ROWS; r++) {
      weigh<ByPairs>(scores_ + r * KEY_BLOCK, here.n, scale, to.maxima + r, to.sums + r);
    }
    values_ahead.ask(KEY_BLOCK);
    Ahead<bf16> keys_ahead(blocks_.keys, blocks_.after(), head_dim_);
    for (int d = 0; d < head_dim_; d += 64) {
      const int left = head_dim_ - d, last = left >= 64 ? 32 : (left - 1) % 32 + 1;
      const __mmask32 mask = last == 32 ? ~__mmask32{0} : (__mmask32{1} << last) - 1;
      constexpr auto one = &weigh_chunks<ROWS, 1>, two = &weigh_chunks<ROWS, 2>;
      (left > 32 ? two : one)({blocks_.values + d, here, here.n}, head_dim_, mask, scores_,
                              to.values + d, n_values_, keys_ahead);
    }
    keys_ahead.ask(KEY_BLOCK);
  }

  Blocks<bf16> blocks_;
  const int head_dim_, n_words_, n_values_;
  float *running_, *fresh_, *scores_, *queries_;
};

}  // namespace baton::ISA
#endif
