// Operations on rows: norms, rotation and the writing of KV, the most likely token. In float32 a
// row's result has the same bits whatever rows are beside it and on any number of threads (law 3).
#pragma once

#include <cstdint>

#include "attention.h"
#include "matrix.h"

namespace baton {

// out = x / rms(x) * weight over rows of n elements, rounded before the weight multiplies. With a
// residual, x is first added to it, and it takes the place of x.
struct NormRows {
  Dtype dtype;
  const void* x;
  void* residual;  // or null
  const void* weight;
  float eps;
  int64_t n_rows;
  int n;
  void* out;
};
void norm(const NormRows& rows);

// Heads of q and k normed (where a weight is given) and rotated in place; k and v written to their
// slots. Rows are apart as given, in elements; heads of a row lie one after the other.
struct TurnRows {
  Dtype dtype;
  void *q, *k;
  const void* v;
  int64_t q_stride, k_stride, v_stride;
  int64_t n_rows;
  int n_heads;
  PageGeometry geometry;
  const void *q_norm, *k_norm;  // or null
  float eps;
  const float* cos_sin;
  const int64_t* positions;
  const int64_t* slots;
  void *page_k, *page_v;
};
void turn_and_write(const TurnRows& rows);

// Of each row of n logits the largest's index, of equals the lowest; -1 where it is not finite or
// a logit is NaN.
void argmax(const float* logits, int64_t n_rows, int64_t n, int64_t* out);

}  // namespace baton
