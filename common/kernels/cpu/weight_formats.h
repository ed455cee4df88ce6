// The formats of weights that are not their rows' dtype, as kernels see them; a format F says
//
//   Codes               the places and values of codes (`codes.h`)
//   HAS_MINIMUM         a weight is code * scale + minimum, not code * scale
//   scale, minimum      of 16 outputs, from `output` on
//   DIRECT_ROWS         up to so many rows, codes are multiplied as they are (`direct_tile`)
//
// and, where codes can be multiplied as they are,
//
//   widen               16 outputs' words to operands of `vdpbf16ps`, one for each of their steps
//   code_scale, code_minimum   what takes a group's sum of operands times rows to that of weights:
//                       sum * code_scale + (sum of the rows) * code_minimum

namespace baton::ISA {

#if LEVEL >= 2
inline F32x16 load_halves(const char* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
#else
inline F32x16 load_halves(const char* p) {
  float values[16];
  for (int i = 0; i < 16; i++) {
    uint16_t half;
    std::memcpy(&half, p + 2 * i, 2);
    values[i] = half_to_float(half);
  }
  return load(values);
}
#endif

struct SignedBytes {
  using Codes = Codes8;
  static constexpr bool HAS_MINIMUM = false;
  static F32x16 minimum(const char*, int) { return zero(); }

#if LEVEL >= 3
  // A magnitude's bfloat16 has two bytes, each looked up by 7 bits.
  static void widen(const char* words, __m512 steps[Codes::INPUTS / 2]) {
    const __m512i codes = _mm512_loadu_si512(words);
    const __m512i low = _mm512_permutex2var_epi8(table(0, 0), codes, table(0, 1));
    const __m512i magnitude = _mm512_permutex2var_epi8(table(1, 0), codes, table(1, 1));
    constexpr int a_or_b_and_c = 0xf8;
    const __m512i high = _mm512_ternarylogic_epi32(
        magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), a_or_b_and_c);
    for (int s = 0; s < 2; s++) {
      steps[s] = _mm512_castsi512_ps(_mm512_permutex2var_epi8(low, pairs(s), high));
    }
  }

 private:
  static __m512i table(int byte, int half) {
    return _mm512_load_si512(CODE_TABLES.bytes[byte] + 64 * half);
  }
  static __m512i pairs(int step) { return _mm512_load_si512(CODE_TABLES.pairs[step]); }
#endif
};

struct Int8 : SignedBytes {
  static constexpr int DIRECT_ROWS = 64;
  static F32x16 scale(const char* scales, int output) {
    return load(reinterpret_cast<const float*>(scales) + output);
  }
  static F32x16 code_scale(const char* scales, int output) { return scale(scales, output); }
  static F32x16 code_minimum(const char* scales, int output) { return minimum(scales, output); }
};

struct Q8_0 : SignedBytes {
  static constexpr int DIRECT_ROWS = 24;
  static F32x16 scale(const char* scales, int output) { return load_halves(scales + 2 * output); }
  static F32x16 code_scale(const char* scales, int output) { return scale(scales, output); }
  static F32x16 code_minimum(const char* scales, int output) { return minimum(scales, output); }
};

struct Q4_1 {
  using Codes = Codes4;
  static constexpr bool HAS_MINIMUM = true;
  static constexpr int DIRECT_ROWS = 24;
  static F32x16 scale(const char* scales, int output) { return load_halves(scales + 2 * output); }
  static F32x16 minimum(const char* scales, int output) {
    return load_halves(scales + 2 * (BLOCK + output));
  }

#if LEVEL >= 3
  // A code below a bfloat16's 1 is 1 + code / 16.
  static void widen(const char* words, __m512 steps[Codes::INPUTS / 2]) {
    __m512i codes = _mm512_loadu_si512(words);
    constexpr int a_and_b_or_c = 0xea;
    for (int s = 0; s < Codes::INPUTS / 2; s++) {
      steps[s] = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(
          codes, _mm512_set1_epi32(0x00780078), _mm512_set1_epi32(0x3f803f80), a_and_b_or_c));
      codes = _mm512_ror_epi32(codes, 4);
    }
  }
  static F32x16 code_scale(const char* scales, int output) {
    return splat(16.0f) * scale(scales, output);
  }
  static F32x16 code_minimum(const char* scales, int output) {
    return minimum(scales, output) - code_scale(scales, output);
  }
#endif
};

}  // namespace baton::ISA
