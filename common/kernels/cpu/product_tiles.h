// The product's inner loops, for the instructions of the file that includes this between its
// BEGIN_ and END_TARGET: everything here is local to that file. A kernel K says
//
//   Vector, LANES, load, store, broadcast   of 4 bytes a lane
//   multiply_add(sum, w, x)                 sum + w * x, or of pairs sum + w0 x0 + w1 x1
//   TILE_ROWS                               rows whose sums fit in the registers beside w and x
//   exp(vector)

namespace {

constexpr int64_t PREFETCH_BYTES = 8192;  // ahead; into the next block at a block's end
constexpr int64_t CACHED_STEPS = 1024;    // of a block, where it is read more than once

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

// sums[n_rows][BLOCK] of one block.
template <class K>
void multiply_block(const char* w, const char* x, int64_t x_stride, int64_t n_steps, int n_rows,
                    float* sums) {
  constexpr std::make_integer_sequence<int, K::TILE_ROWS> SIZES;
  const int n_tiles = (n_rows + K::TILE_ROWS - 1) / K::TILE_ROWS;
  const int64_t n_cached = n_tiles == 1 ? n_steps : CACHED_STEPS;
  for (int64_t step = 0; step < n_steps; step += n_cached) {
    const int64_t n = std::min(n_cached, n_steps - step);
    for (int t = 0; t < n_tiles; t++) {  // tiles as equal as can be: a tile of one row costs as
      const int row = n_rows * t / n_tiles;  // much as one of several
      const int n_tile_rows = n_rows * (t + 1) / n_tiles - row;
      const bool prefetch = t == 0 && n_tile_rows >= prefetch_rows;
      const TileFunction f = prefetch ? tile_of<K, true>(n_tile_rows, SIZES)
                                      : tile_of<K, false>(n_tile_rows, SIZES);
      f(w + step * STEP_BYTES, x + row * x_stride + step * 4, x_stride, n, sums + row * BLOCK,
        step == 0);
    }
  }
}

inline float from_bfloat16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// To nearest, ties to even.
inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

inline void add_bias(float* sums, const char* bias, Dtype dtype, int n) {
  if (dtype == Dtype::float32) {
    const float* values = reinterpret_cast<const float*>(bias);
    for (int i = 0; i < n; i++) sums[i] += values[i];
  } else {
    const uint16_t* values = reinterpret_cast<const uint16_t*>(bias);
    for (int i = 0; i < n; i++) sums[i] += from_bfloat16(values[i]);
  }
}

// gate[BLOCK] = silu(gate) * up
template <class K>
void silu_multiply(float* gate, const float* up) {
  for (int i = 0; i < BLOCK; i += K::LANES) {
    const auto g = K::load(gate + i);
    const auto sigmoid_inverse = K::add(K::exp(K::subtract(K::zero(), g)), K::one());
    K::store(gate + i, K::multiply(K::divide(g, sigmoid_inverse), K::load(up + i)));
  }
}

inline void put(const float* sums, char* out, Dtype dtype, int n) {
  if (dtype == Dtype::float32) {
    std::memcpy(out, sums, n * sizeof(float));
  } else {
    uint16_t* to = reinterpret_cast<uint16_t*>(out);
    for (int i = 0; i < n; i++) to[i] = to_bfloat16(sums[i]);
  }
}

template <class K>
void run_chunk(const Product& p, int64_t row_begin, int64_t row_end, int64_t block) {
  alignas(64) float sums[2][MAX_CHUNK_ROWS * BLOCK];
  const Matrix& m = p.matrix;
  const int n_rows = static_cast<int>(row_end - row_begin);
  const char* x = p.x + row_begin * p.x_stride;
  for (int part = 0; part < m.n_parts(); part++) {
    multiply_block<K>(m.block(block, part), x, p.x_stride, m.n_steps(), n_rows, sums[part]);
  }
  const int64_t first = block * BLOCK;
  const int n = static_cast<int>(std::min<int64_t>(BLOCK, m.n_outputs - first));
  const int64_t out_bytes = p.out_dtype == Dtype::float32 ? 4 : 2;
  for (int row = 0; row < n_rows; row++) {
    float* gate = sums[0] + row * BLOCK;
    for (int part = 0; p.bias && part < m.n_parts(); part++) {
      add_bias(sums[part] + row * BLOCK,
               p.bias + (part * m.n_outputs + first) * m.element_bytes(), m.dtype, n);
    }
    if (m.gated) silu_multiply<K>(gate, sums[1] + row * BLOCK);
    char* out = p.out + ((row_begin + row) * m.n_outputs + first) * out_bytes;
    put(gate, out, p.out_dtype, n);
  }
}

}  // namespace
