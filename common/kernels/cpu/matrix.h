// A product's weights [outputs, inputs] as the kernels read them: blocks of 32 outputs, each one
// run of `n_steps` times 128 bytes in the order in which a product reads it. A step holds, for each
// of the block's outputs, 4 bytes: one float32, or a pair of bfloat16 (the operand of `vdpbf16ps`).
// What fills up the last block and an odd last pair is zero.
//
// A gated matrix is two of as many outputs, gate and up, whose blocks take turns: gate 0, up 0,
// gate 1, ... Raise `LAYOUT` in native_matrix.py with any change.
#pragma once

#include <cstdint>

namespace baton {

enum class Dtype { float32, bfloat16 };

constexpr int BLOCK = 32;
constexpr int STEP_BYTES = BLOCK * 4;

struct Matrix {
  char* data;
  int64_t n_outputs;  // of one part
  int64_t n_inputs;
  Dtype dtype;
  bool gated;

  int n_parts() const { return gated ? 2 : 1; }
  int64_t element_bytes() const { return dtype == Dtype::float32 ? 4 : 2; }
  int64_t row_bytes() const { return n_inputs * element_bytes(); }   // of a row multiplied
  int64_t out_bytes() const { return n_outputs * element_bytes(); }  // of its product
  int64_t n_steps() const { return (row_bytes() + 3) / 4; }
  int64_t n_blocks() const { return (n_outputs + BLOCK - 1) / BLOCK; }  // of one part
  char* block(int64_t block, int part) const {
    return data + (block * n_parts() + part) * n_steps() * STEP_BYTES;
  }
};

// Writes rows [n_rows, inputs] to the outputs from `first` on; of a gated matrix, up's outputs
// follow gate's. The matrix's memory must have been zero before the first.
void pack_rows(const Matrix& matrix, const char* rows, int64_t n_rows, int64_t first);

// Reads the outputs' weights: [n, inputs]. `outputs` counts as `first` does.
void unpack_rows(const Matrix& matrix, const int64_t* outputs, int64_t n, char* rows);

}  // namespace baton
