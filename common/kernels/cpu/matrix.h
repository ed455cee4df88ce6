// A product's weights [outputs, inputs] as the kernels read them: blocks of 32 outputs, each one
// run of bytes in the order in which a product reads it. A block is one group of inputs after the
// other; a group is words of 128 bytes, in which each of the block's outputs has 4 bytes of codes,
// and then the outputs' scales. What fills up the last block and the last word is zero.
//
// Weights in the dtype of the rows that they multiply are their own codes, in one group without
// scales: a word is then a step, one float32 or a pair of bfloat16 (the operand of `vdpbf16ps`).
// Otherwise a weight is code * scale (+ minimum), and a kernel widens words to such steps.
//
// A gated matrix is two of as many outputs, gate and up, whose blocks take turns: gate 0, up 0,
// gate 1, ... Raise `PACKED_LAYOUT` in matrix.py with any change.
#pragma once

#include <cstdint>

namespace baton {

enum class Dtype { float32, bfloat16 };

constexpr int BLOCK = 32;
constexpr int STEP_BYTES = BLOCK * 4;

// How weights are kept; plain: in the dtype of the rows that they multiply.
enum class Format { plain, int8, q8_0, q4_1 };

// In a row as its source stores it, a group is its scales, then its codes. An int8 row is one group
// with a float32 for its scale; the others are GGUF's blocks, whose scales are float16.
struct Encoding {
  int code_bits;
  int group_inputs;  // 0: all
  int n_scales;      // 2: the second is the minimum
  int scale_bytes;   // of one
};
constexpr Encoding ENCODINGS[] = {{0, 0, 0, 0}, {8, 0, 1, 4}, {8, 32, 1, 2}, {4, 32, 2, 2}};

struct Matrix {
  char* data;
  int64_t n_outputs;  // of one part
  int64_t n_inputs;
  Dtype dtype;  // of the rows that it multiplies
  Format format;
  bool gated;

  int n_parts() const { return gated ? 2 : 1; }
  int64_t element_bytes() const { return dtype == Dtype::float32 ? 4 : 2; }
  int64_t row_bytes() const { return n_inputs * element_bytes(); }   // of a row multiplied
  int64_t out_bytes() const { return n_outputs * element_bytes(); }  // of its product
  int64_t n_steps() const { return n_groups() * group_inputs() * element_bytes() / 4; }
  int64_t n_blocks() const { return (n_outputs + BLOCK - 1) / BLOCK; }  // of one part

  Encoding encoding() const { return ENCODINGS[static_cast<int>(format)]; }
  int64_t word_inputs() const {
    return format == Format::plain ? 4 / element_bytes() : 32 / encoding().code_bits;
  }
  int64_t group_inputs() const {
    if (encoding().group_inputs) return encoding().group_inputs;
    return (n_inputs + word_inputs() - 1) / word_inputs() * word_inputs();
  }
  int64_t n_groups() const { return (n_inputs + group_inputs() - 1) / group_inputs(); }
  int64_t n_words() const { return group_inputs() / word_inputs(); }  // of a group
  int64_t scales_bytes() const { return BLOCK * encoding().n_scales * encoding().scale_bytes; }
  int64_t group_bytes() const { return n_words() * STEP_BYTES + scales_bytes(); }
  int64_t block_bytes() const { return n_groups() * group_bytes(); }
  char* block(int64_t block, int part) const {
    return data + (block * n_parts() + part) * block_bytes();
  }
  int64_t stored_row_bytes() const {  // of a row as its source stores it
    if (format == Format::plain) return row_bytes();
    const Encoding e = encoding();
    return n_inputs * e.code_bits / 8 + n_groups() * e.n_scales * e.scale_bytes;
  }
};

// Writes rows as their source stores them to the outputs from `first` on; of a gated matrix, up's
// outputs follow gate's. The matrix's memory must have been zero before the first. A code of 8 bits
// must not be -128.
void pack_rows(const Matrix& matrix, const char* rows, int64_t n_rows, int64_t first);

// Reads the outputs' weights, of the matrix's dtype: [n, inputs]. `outputs` counts as `first` does.
void unpack_rows(const Matrix& matrix, const int64_t* outputs, int64_t n, char* rows);

}  // namespace baton
