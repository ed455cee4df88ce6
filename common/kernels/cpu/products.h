// Products of rows with a matrix, of any number of rows, with what follows them fused in.
//
// An output is one chain of additions over the inputs in ascending order, whatever the number of
// rows, the place of its row, the threads and the width of vectors: in float32 its bits depend on
// its row and its weights alone (law 3). (In bfloat16 the same holds for each set of instructions,
// but for GGUF's groups: with few rows they are sums of codes, scaled, with many the weights are.)
// No product may therefore be split over its inputs and summed up later.
#pragma once

#include "matrix.h"

namespace baton {

struct Product {
  Matrix matrix;
  const char* x;       // [n_rows, n_inputs] of the matrix's dtype, rows x_stride bytes apart; where
  int64_t x_stride;    // a row is an odd number of bfloat16, a zero follows it
  int64_t n_rows;
  const char* bias;    // [parts * n_outputs] of the matrix's dtype, or null
  char* out;           // [n_rows, n_outputs], contiguous
  Dtype out_dtype;     // float32, or the matrix's
  const float* group_sums = nullptr;  // [n_rows, groups] of x's inputs, where codes are multiplied
};

// out = x W' + b, or of a gated matrix silu(gate) * up.
void multiply(Product product);

// A tile of many rows keeps so many operations in flight that it has no room for reads of memory: it
// must ask for its weights early. With few rows the processor's own prefetching is faster alone.
// (Zen 4, bfloat16: 8 rows at 26 GB/s instead of 19, 1 row at 33 instead of 23.) Tiles of so many
// rows ask; where the border lies is for whoever can measure it. Changes no result.
inline int prefetch_rows = 5;

}  // namespace baton
