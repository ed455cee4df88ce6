// Operations on rows; see `for_each_isa.h`.
//
// Sums over a row run in an order that its length alone decides (law 3).

namespace baton::ISA {

template <class T>
inline F32x16 load_part(const T* p, int n) { return n >= 16 ? load(p) : load(p, n); }
template <class T>
inline void store_part(T* p, F32x16 x, int n) {
  if (n >= 16) store(p, x);
  else store(p, x, n);
}

// 1 / root mean square of n elements.
template <class T>
inline float inverse_rms(const T* x, int n, float eps) {
  F32x16 sums[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 64 <= n; i += 64) {
    UNROLL for (int j = 0; j < 4; j++) {
      const F32x16 v = load(x + i + 16 * j);
      sums[j] = fma(v, v, sums[j]);
    }
  }
  for (; i < n; i += 16) {
    const F32x16 v = load_part(x + i, n - i);
    sums[0] = fma(v, v, sums[0]);
  }
  const float squares = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
}

// x and out may be the same.
template <class T>
inline void norm_row(const T* x, const T* weight, int n, float eps, T* out) {
  const F32x16 scale = splat(inverse_rms(x, n, eps));
  for (int i = 0; i < n; i += 16) {
    const F32x16 normed = rounded_as(x, load_part(x + i, n - i) * scale);
    store_part(out + i, normed * load_part(weight + i, n - i), n - i);
  }
}

template <class T>
void norm_rows(const NormRows& rows, int64_t begin, int64_t end) {
  const int n = rows.n;
  for (int64_t r = begin; r < end; r++) {
    const T* x = static_cast<const T*>(rows.x) + r * n;
    T* out = static_cast<T*>(rows.out) + r * n;
    if (rows.residual) {
      T* residual = static_cast<T*>(rows.residual) + r * n;
      for (int i = 0; i < n; i += 16) {
        const int left = n - i;
        store_part(residual + i, load_part(x + i, left) + load_part(residual + i, left), left);
      }
      x = residual;
    }
    norm_row(x, static_cast<const T*>(rows.weight), n, rows.eps, out);
  }
}

// Pairs (x[i], x[i + half]) turned. x and out may be the same.
template <class T>
inline void rotate_head(const T* x, const float* cos_sin, int half, T* out) {
  for (int i = 0; i < half; i += 16) {
    const int n = half - i;
    const F32x16 a = load_part(x + i, n), b = load_part(x + half + i, n);
    const F32x16 cos = load_part(cos_sin + i, n), sin = load_part(cos_sin + half + i, n);
    store_part(out + i, a * cos - b * sin, n);
    store_part(out + half + i, b * cos + a * sin, n);
  }
}

// Norms where there is a weight, then rotates; x is overwritten.
template <class T>
inline void turn_heads(T* x, int n_heads, int head_dim, const void* weight, float eps,
                       const float* cos_sin) {
  for (int h = 0; h < n_heads; h++, x += head_dim) {
    if (weight) norm_row(x, static_cast<const T*>(weight), head_dim, eps, x);
    rotate_head(x, cos_sin, head_dim / 2, x);
  }
}

template <class T>
void turn_rows(const TurnRows& rows, int64_t begin, int64_t end) {
  const PageGeometry& g = rows.geometry;
  const int head_dim = g.head_dim;
  for (int64_t r = begin; r < end; r++) {
    const float* cos_sin = rows.cos_sin + rows.positions[r] * head_dim;
    T* q = static_cast<T*>(rows.q) + r * rows.q_stride;
    T* k = static_cast<T*>(rows.k) + r * rows.k_stride;
    const T* v = static_cast<const T*>(rows.v) + r * rows.v_stride;
    turn_heads(q, rows.n_heads, head_dim, rows.q_norm, rows.eps, cos_sin);
    turn_heads(k, g.n_kv_heads, head_dim, rows.k_norm, rows.eps, cos_sin);
    int64_t at = rows.slots[r] / g.page_tokens * g.stride + rows.slots[r] % g.page_tokens * head_dim;
    for (int h = 0; h < g.n_kv_heads; h++, at += int64_t{g.page_tokens} * head_dim) {
      std::memcpy(static_cast<T*>(rows.page_k) + at, k + h * head_dim, head_dim * sizeof(T));
      std::memcpy(static_cast<T*>(rows.page_v) + at, v + h * head_dim, head_dim * sizeof(T));
    }
  }
}

// The first of the largest, or -1 where the largest is not finite or there is a NaN. Only the
// blocks' maxima are looked for everywhere.
inline int64_t first_largest(const float* x, int64_t n) {
  constexpr int64_t BLOCK_OF_ROW = 1024;
  float top = -__builtin_inff();
  int64_t begin = 0;
  unsigned bad = 0;
  for (int64_t block = 0; block < n; block += BLOCK_OF_ROW) {
    const int64_t end = n - block < BLOCK_OF_ROW ? n : block + BLOCK_OF_ROW;
    F32x16 most = splat(-__builtin_inff()), more = most;
    int64_t i = block;
    for (; i + 32 <= end; i += 32) {
      const F32x16 a = load(x + i), b = load(x + i + 16);
      most = max(most, a);
      more = max(more, b);
      bad |= nans(a) | nans(b);
    }
    for (; i < end; i += 16) {
      const int left = static_cast<int>(end - i);
      const F32x16 a = left >= 16 ? load(x + i) : keep(load(x + i, left), left, most);
      most = max(most, a);
      bad |= nans(a);
    }
    const float here = largest(max(most, more));
    if (here > top) {
      top = here;
      begin = block;
    }
  }
  if (bad || !(top - top == 0)) return -1;
  while (x[begin] != top) begin++;
  return begin;
}

}  // namespace baton::ISA
