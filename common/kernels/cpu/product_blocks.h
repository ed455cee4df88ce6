// What a product does with its tiles' sums, block by block.

namespace baton::ISA {

// out[n] = a row's sums of a block, rounded once: plus bias, or silu(gate) * up.
template <class Element, class Out>
void put(const float* sums, const Element* bias, Out* out, int n) {
  for (int i = 0; i < n; i += 16) {
    const int left = std::min(16, n - i);
    F32x16 y = load(sums + i);
    if (bias) y = y + load(bias + i, left);
    store(out + i, y, left);
  }
}

template <class Element, class Out>
void put_gated(const float* gate, const float* up, const Element* gate_bias,
               const Element* up_bias, Out* out, int n) {
  for (int i = 0; i < n; i += 16) {
    const int left = std::min(16, n - i);
    F32x16 g = load(gate + i), u = load(up + i);
    if (gate_bias) {
      g = g + load(gate_bias + i, left);
      u = u + load(up_bias + i, left);
    }
    store(out + i, g / (exp(zero() - g) + splat(1.0f)) * u, left);
  }
}

// Weights of the rows' dtype.
struct Plain {};

// sums[n_rows][BLOCK] of one part of a block, rows from `row` on.
template <class K, class F>
void multiply_part(const Product& p, int64_t row, int n_rows, const char* w, float* sums) {
  const Matrix& m = p.matrix;
  const char* x = p.x + row * p.x_stride;
  if constexpr (std::is_same_v<F, Plain>) {
    multiply_block<K>(w, x, p.x_stride, m.n_steps(), n_rows, sums, true);
  } else {
    thread_local Scratch scratch;
    char* steps = scratch.get(m.n_steps() * STEP_BYTES);
#if LEVEL >= 3
    if constexpr (std::is_same_v<K, Bfloat16>) {
      const DirectRows rows = {x, p.x_stride, p.group_sums + row * m.n_groups()};
      if (p.n_rows <= F::DIRECT_ROWS) return multiply_direct<F>(m, w, rows, n_rows, sums);
      return widen_and_multiply<F>(m, w, rows, n_rows, sums, steps, WIDENING_SIZES);
    }
#endif
    widen_block<K, F>(m, w, steps);
    multiply_block<K>(steps, x, p.x_stride, m.n_steps(), n_rows, sums, false);
  }
}

// Rows [row_begin, row_end) of the outputs of one block. At most MAX_CHUNK_ROWS rows.
template <class K, class F, class Out>
void chunk(const Product& p, int64_t row_begin, int64_t row_end, int64_t block) {
  using Element = typename K::Element;
  alignas(64) float sums[2][MAX_CHUNK_ROWS * BLOCK];
  const Matrix& m = p.matrix;
  const int n_rows = static_cast<int>(row_end - row_begin);
  for (int part = 0; part < m.n_parts(); part++) {
    multiply_part<K, F>(p, row_begin, n_rows, m.block(block, part), sums[part]);
  }
  const int64_t first = block * BLOCK;
  const int n = static_cast<int>(std::min<int64_t>(BLOCK, m.n_outputs - first));
  const Element* bias = nullptr;
  if (p.bias) bias = reinterpret_cast<const Element*>(p.bias) + first;
  Out* out = reinterpret_cast<Out*>(p.out) + row_begin * m.n_outputs + first;
  for (int row = 0; row < n_rows; row++, out += m.n_outputs) {
    const float* y = sums[0] + row * BLOCK;
    if (!m.gated) put(y, bias, out, n);
    else put_gated(y, sums[1] + row * BLOCK, bias, bias ? bias + m.n_outputs : bias, out, n);
  }
}

using ChunkFunction = void (*)(const Product&, int64_t row_begin, int64_t row_end, int64_t block);

template <class K, class Out>
ChunkFunction chunk_of(Format format) {
  switch (format) {
    case Format::plain: return chunk<K, Plain, Out>;
    case Format::int8: return chunk<K, Int8, Out>;
    case Format::q8_0: return chunk<K, Q8_0, Out>;
    case Format::q4_1: return chunk<K, Q4_1, Out>;
  }
  return nullptr;
}

// `out`: float32, or the rows' dtype.
inline ChunkFunction chunk_of(Format format, Dtype dtype, Dtype out) {
  if (dtype == Dtype::float32) return chunk_of<Float32, float>(format);
  return out == Dtype::float32 ? chunk_of<Bfloat16, float>(format)
                               : chunk_of<Bfloat16, bf16>(format);
}

}  // namespace baton::ISA
