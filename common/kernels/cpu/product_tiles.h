// Tiles of a product whose weights are of its rows' dtype. A kernel K says
//
//   Vector, LANES, zero, load, store, broadcast   of 4 bytes a lane
//   multiply_add(sum, w, x)                       sum + w * x, or of pairs sum + w0 x0 + w1 x1
//   TILE_ROWS                                     whose sums fit in the registers beside w and x
//   Element                                       of weights, rows and bias

namespace baton::ISA {

constexpr int64_t PREFETCH_BYTES = 8192;  // ahead; into the next block at a block's end
constexpr int64_t CACHED_STEPS = 1024;    // of a block, where it is read more than once

#if LEVEL >= 2

struct Registers {
  using Vector = __m512;
  static constexpr int LANES = 16;
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
  static Vector broadcast(const char* from) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(from));
  }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  // A bfloat16 is the upper half of a float32.
  static Vector even(Vector pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
  }
  static Vector odd(Vector pairs) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), upper));
  }
};
constexpr int FLOAT32_ROWS = 12, BFLOAT16_ROWS = 10;

#else

struct Registers {
  using Vector = __m256;
  static constexpr int LANES = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
  static Vector broadcast(const char* from) {
    return _mm256_set1_ps(*reinterpret_cast<const float*>(from));
  }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector even(Vector pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
  }
  static Vector odd(Vector pairs) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    return _mm256_castsi256_ps(_mm256_and_si256(_mm256_castps_si256(pairs), upper));
  }
};
constexpr int FLOAT32_ROWS = 6, BFLOAT16_ROWS = 4;

#endif

struct Float32 : Registers {
  using Element = float;
  static constexpr int TILE_ROWS = FLOAT32_ROWS;
  static Vector multiply_add(Vector sum, Vector w, Vector x) { return fma(w, x, sum); }
};

#if LEVEL >= 3

struct Bfloat16 : Registers {
  using Element = bf16;
  static constexpr int TILE_ROWS = FLOAT32_ROWS;
  static Vector multiply_add(Vector sum, Vector w, Vector x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
};

#else

struct Bfloat16 : Registers {
  using Element = bf16;
  static constexpr int TILE_ROWS = BFLOAT16_ROWS;
  static Vector multiply_add(Vector sum, Vector w, Vector x) {
    return fma(odd(w), odd(x), fma(even(w), even(x), sum));
  }
};

#endif

// sums[ROWS][BLOCK] = (or +=) x[ROWS][steps] * w[steps][BLOCK], in vectors v .. v + WIDE of a block.
template <class K, int ROWS, int WIDE, bool PREFETCH>
void tile_part(const char* w, const char* x, int64_t x_stride, int64_t n_steps, float* sums,
               bool first) {
  typename K::Vector sum[ROWS][WIDE];
  for (int r = 0; r < ROWS; r++) {
    for (int v = 0; v < WIDE; v++) {
      sum[r][v] = first ? K::zero() : K::load(sums + r * BLOCK + v * K::LANES);
    }
  }
  for (int64_t step = 0; step < n_steps; step++, w += STEP_BYTES, x += 4) {
    typename K::Vector weights[WIDE];
    for (int v = 0; v < WIDE; v++) {
      weights[v] = K::load(reinterpret_cast<const float*>(w) + v * K::LANES);
    }
    if (PREFETCH) {
      for (int line = 0; line < WIDE * K::LANES * 4; line += 64) {
        _mm_prefetch(w + PREFETCH_BYTES + line, _MM_HINT_T1);
      }
    }
    for (int r = 0; r < ROWS; r++) {
      const auto value = K::broadcast(x + r * x_stride);
      for (int v = 0; v < WIDE; v++) sum[r][v] = K::multiply_add(sum[r][v], weights[v], value);
    }
  }
  for (int r = 0; r < ROWS; r++) {
    for (int v = 0; v < WIDE; v++) K::store(sums + r * BLOCK + v * K::LANES, sum[r][v]);
  }
}

template <class K, int ROWS, bool PREFETCH>
void tile(const char* w, const char* x, int64_t x_stride, int64_t n_steps, float* sums, bool first) {
  constexpr int VECTORS = BLOCK / K::LANES;
  constexpr int WIDE = ROWS * VECTORS <= K::TILE_ROWS * 2 ? VECTORS : 2;
  for (int v = 0; v < VECTORS; v += WIDE) {
    tile_part<K, ROWS, WIDE, PREFETCH>(w + v * K::LANES * 4, x, x_stride, n_steps,
                                       sums + v * K::LANES, first);
  }
}

using TileFunction = void (*)(const char*, const char*, int64_t, int64_t, float*, bool);

template <class K, bool PREFETCH, int... ROWS>
TileFunction tile_of(int n_rows, std::integer_sequence<int, ROWS...>) {
  static constexpr TileFunction TILES[] = {tile<K, ROWS + 1, PREFETCH>...};
  return TILES[n_rows - 1];
}

// sums[n_rows][BLOCK] of one block. `cold`: its weights are in no cache.
template <class K>
void multiply_block(const char* w, const char* x, int64_t x_stride, int64_t n_steps, int n_rows,
                    float* sums, bool cold) {
  constexpr std::make_integer_sequence<int, K::TILE_ROWS> SIZES;
  const int n_tiles = (n_rows + K::TILE_ROWS - 1) / K::TILE_ROWS;
  const int64_t n_cached = n_tiles == 1 ? n_steps : CACHED_STEPS;
  for (int64_t step = 0; step < n_steps; step += n_cached) {
    const int64_t n = std::min(n_cached, n_steps - step);
    for (int t = 0; t < n_tiles; t++) {  // tiles as equal as can be: a tile of one row costs as
      const int row = n_rows * t / n_tiles;  // much as one of several
      const int n_tile_rows = n_rows * (t + 1) / n_tiles - row;
      const bool prefetch = cold && t == 0 && n_tile_rows >= prefetch_rows;
      const TileFunction f = prefetch ? tile_of<K, true>(n_tile_rows, SIZES)
                                      : tile_of<K, false>(n_tile_rows, SIZES);
      f(w + step * STEP_BYTES, x + row * x_stride + step * 4, x_stride, n, sums + row * BLOCK,
        step == 0);
    }
  }
}

}  // namespace baton::ISA
