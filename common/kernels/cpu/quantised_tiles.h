// Products with weights in the formats of `weight_formats.h`. For many rows a block is widened to
// the rows' dtype once and multiplied as any other. For few, which wait for memory, codes are
// multiplied as they are: what is widened never leaves the registers.
//
// (Zen 4: rotating and shifting, a broadcast of floats, multiplying and storing wait for the units
// that products take; permuting, logic, narrowing and a broadcast of integers do not.)

namespace baton::ISA {

// A step of 16 outputs from their inputs in float32.
inline void put_step(const F32x16* input, float* to) { store(to, *input); }

#if LEVEL >= 3
inline __m512 rounded_pairs(const F32x16 inputs[2]) {
  const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i pairs = _mm512_mullo_epi32(places, _mm512_set1_epi32(0x00010001));
  const __m512i interleaved = _mm512_add_epi32(pairs, _mm512_set1_epi32(0x00100000));
  const __m512i rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(inputs[1].v, inputs[0].v));
  return _mm512_castsi512_ps(_mm512_permutexvar_epi16(interleaved, rounded));
}
inline void put_step(const F32x16* inputs, bf16* to) {
  _mm512_storeu_ps(to, rounded_pairs(inputs));
}
#else
inline void put_step(const F32x16* inputs, bf16* to) {
  bf16 rounded[2][16];
  for (int j = 0; j < 2; j++) store(rounded[j], inputs[j]);
  for (int o = 0; o < 16; o++) {
    to[2 * o] = rounded[0][o];
    to[2 * o + 1] = rounded[1][o];
  }
}
#endif

// steps[n_steps][BLOCK] of one block: each weight code * scale + minimum, rounded once.
template <class K, class F>
void widen_block(const Matrix& m, const char* w, char* steps) {
  using Element = typename K::Element;
  constexpr int STEP_INPUTS = 4 / sizeof(Element);
  const int64_t n_words = m.n_words();
  for (int64_t g = 0; g < m.n_groups(); g++, w += m.scales_bytes()) {
    const char* scales = w + n_words * STEP_BYTES;
    for (int64_t word = 0; word < n_words; word++, w += STEP_BYTES) {
      const uint32_t* words = reinterpret_cast<const uint32_t*>(w);
      UNROLL for (int i = 0; i < F::Codes::INPUTS; i += STEP_INPUTS, steps += STEP_BYTES) {
        for (int output = 0; output < BLOCK; output += 16) {
          const F32x16 scale = F::scale(scales, output), minimum = F::minimum(scales, output);
          F32x16 inputs[STEP_INPUTS];
          for (int j = 0; j < STEP_INPUTS; j++) {
            float codes[16];
            for (int o = 0; o < 16; o++) codes[o] = F::Codes::value(words[output + o], i + j);
            inputs[j] = load(codes) * scale;
            if (F::HAS_MINIMUM) inputs[j] = inputs[j] + minimum;
          }
          put_step(inputs, reinterpret_cast<Element*>(steps + output * 4));
        }
      }
    }
  }
}

#if LEVEL >= 3

constexpr int64_t CODES_PREFETCH_BYTES = 4096;  // ahead

// The first inputs of pairs, in float32.
inline F32x16 even_inputs(__m512 pairs) {
  const __m512i upper_halves = _mm512_broadcast_i32x4(
      _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13));  // -1: 0
  return {_mm512_castsi512_ps(_mm512_shuffle_epi8(_mm512_castps_si512(pairs), upper_halves))};
}

// To every lane; as integers, see above.
inline __m512 pair(const char* from) {
  int32_t bits;
  std::memcpy(&bits, from, 4);
  return _mm512_castsi512_ps(_mm512_set1_epi32(bits));
}

struct DirectRows {
  const char* x;
  int64_t x_stride;
  const float* group_sums;  // of each row's inputs, group by group
};

// sums[ROWS][BLOCK] = x[ROWS][inputs] * w[inputs][BLOCK] of one block.
template <class F, int ROWS>
void direct_tile(const Matrix& m, const char* w, DirectRows rows, float* sums) {
  constexpr int STEPS = F::Codes::INPUTS / 2;
  const int64_t n_groups = F::ONE_GROUP ? 1 : m.n_groups(), n_words = m.n_words();
  const char* x = rows.x;
  constexpr bool IN_REGISTERS = F::ONE_GROUP || ROWS <= 6;  // totals, beside the groups' sums
  F32x16 total[ROWS][2];
  for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = zero();
  for (int64_t g = 0; g < n_groups; g++, w += m.scales_bytes()) {
    __m512 sum[ROWS][2];
    for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
    for (int64_t word = 0; word < n_words; word++, w += STEP_BYTES) {
      _mm_prefetch(w + CODES_PREFETCH_BYTES, _MM_HINT_T0);
      _mm_prefetch(w + CODES_PREFETCH_BYTES + 64, _MM_HINT_T0);
      __m512 weights[2][STEPS];
      for (int v = 0; v < 2; v++) F::widen(w + v * 64, weights[v]);
      for (int s = 0; s < STEPS; s++, x += 4) {
        for (int r = 0; r < ROWS; r++) {
          const __m512 value = pair(x + r * rows.x_stride);
          for (int v = 0; v < 2; v++) {
            sum[r][v] = Bfloat16::multiply_add(sum[r][v], weights[v][s], value);
          }
        }
      }
    }
    for (int v = 0; v < 2; v++) {
      const F32x16 scale = F::code_scale(w, v * 16), minimum = F::code_minimum(w, v * 16);
      for (int r = 0; r < ROWS; r++) {
        float* at = sums + r * BLOCK + v * 16;
        F32x16 y = IN_REGISTERS ? total[r][v] : g ? load(at) : zero();
        y = fma({sum[r][v]}, scale, y);
        if (F::HAS_MINIMUM) y = fma(splat(rows.group_sums[r * n_groups + g]), minimum, y);
        if (IN_REGISTERS) total[r][v] = y;
        else store(at, y);
      }
    }
  }
  for (int r = 0; r < ROWS && IN_REGISTERS; r++) {
    for (int v = 0; v < 2; v++) store(sums + r * BLOCK + v * 16, total[r][v]);
  }
}

// The same of the first rows of many, with weights rounded to bfloat16, which it leaves in `steps`
// for the others: [n_steps][BLOCK].
template <class F, int ROWS>
void widening_tile(const Matrix& m, const char* w, DirectRows rows, float* sums, char* steps) {
  constexpr int STEPS = F::Codes::INPUTS / 2;
  const int64_t n_groups = m.n_groups(), n_words = m.n_words();
  const char* x = rows.x;
  __m512 sum[ROWS][2];
  for (int r = 0; r < ROWS; r++) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int64_t g = 0; g < n_groups; g++, w += m.scales_bytes()) {
    const char* scales = w + n_words * STEP_BYTES;
    const F32x16 scale[2] = {F::code_scale(scales, 0), F::code_scale(scales, 16)};
    const F32x16 minimum[2] = {F::code_minimum(scales, 0), F::code_minimum(scales, 16)};
    for (int64_t word = 0; word < n_words; word++, w += STEP_BYTES) {
      _mm_prefetch(w + CODES_PREFETCH_BYTES, _MM_HINT_T0);
      _mm_prefetch(w + CODES_PREFETCH_BYTES + 64, _MM_HINT_T0);
      __m512 weights[2][STEPS];
      for (int v = 0; v < 2; v++) F::widen(w + v * 64, weights[v]);
      for (int s = 0; s < STEPS; s++, x += 4, steps += STEP_BYTES) {
        for (int v = 0; v < 2; v++) {
          F32x16 inputs[2] = {even_inputs(weights[v][s]), {Bfloat16::odd(weights[v][s])}};
          for (auto& input : inputs) {
            input = F::HAS_MINIMUM ? fma(input, scale[v], minimum[v]) : input * scale[v];
          }
          weights[v][s] = rounded_pairs(inputs);
          _mm512_storeu_ps(steps + v * 64, weights[v][s]);
        }
        for (int r = 0; r < ROWS; r++) {
          const __m512 value = pair(x + r * rows.x_stride);
          for (int v = 0; v < 2; v++) {
            sum[r][v] = Bfloat16::multiply_add(sum[r][v], weights[v][s], value);
          }
        }
      }
    }
  }
  for (int r = 0; r < ROWS; r++) {
    for (int v = 0; v < 2; v++) store(sums + r * BLOCK + v * 16, {sum[r][v]});
  }
}

constexpr std::make_integer_sequence<int, 4> WIDENING_SIZES;  // more rows leave no registers

template <class F, int... ROWS>
void widen_and_multiply(const Matrix& m, const char* w, DirectRows rows, int n_rows, float* sums,
                        char* steps, std::integer_sequence<int, ROWS...>) {
  using Tile = void (*)(const Matrix&, const char*, DirectRows, float*, char*);
  static constexpr Tile TILES[] = {widening_tile<F, ROWS + 1>...};
  const int n_first = std::min<int>(n_rows, sizeof...(ROWS));
  TILES[n_first - 1](m, w, rows, sums, steps);
  if (n_rows > n_first) {
    multiply_block<Bfloat16>(steps, rows.x + n_first * rows.x_stride, rows.x_stride, m.n_steps(),
                             n_rows - n_first, sums + n_first * BLOCK, false);
  }
}

template <class F>
using DirectFunction = void (*)(const Matrix&, const char*, DirectRows, float*);

template <class F, int... ROWS>
DirectFunction<F> direct_tile_of(int n_rows, std::integer_sequence<int, ROWS...>) {
  static constexpr DirectFunction<F> TILES[] = {direct_tile<F, ROWS + 1>...};
  return TILES[n_rows - 1];
}

template <class F>
void multiply_direct(const Matrix& m, const char* w, DirectRows rows, int n_rows, float* sums) {
  constexpr std::make_integer_sequence<int, F::TILE_ROWS> SIZES;
  const int n_tiles = (n_rows + F::TILE_ROWS - 1) / F::TILE_ROWS;
  for (int t = 0; t < n_tiles; t++) {
    const int row = n_rows * t / n_tiles;
    const int n_tile_rows = n_rows * (t + 1) / n_tiles - row;
    const DirectRows part = {rows.x + row * rows.x_stride, rows.x_stride,
                             rows.group_sums + row * m.n_groups()};
    direct_tile_of<F>(n_tile_rows, SIZES)(m, w, part, sums + row * BLOCK);
  }
}

// sums[n_rows][groups] of rows' inputs.
inline void sum_groups(const Matrix& m, const char* x, int64_t x_stride, int64_t n_rows,
                       float* sums) {
  const __m512 ones = _mm512_castsi512_ps(_mm512_set1_epi32(0x3f803f80));
  for (int64_t row = 0; row < n_rows; row++, x += x_stride) {
    for (int64_t g = 0; g < m.n_groups(); g++) {
      const __m512 inputs = _mm512_loadu_ps(x + g * 64);
      *sums++ = sum({Bfloat16::multiply_add(_mm512_setzero_ps(), ones, inputs)});
    }
  }
}

#endif

}  // namespace baton::ISA
