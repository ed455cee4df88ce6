#include "matrix.h"

#include <algorithm>
#include <cstring>

#include "bf16.h"
#include "codes.h"
#include "threads.h"

namespace baton {
namespace {

// The output's 4 bytes of its block's first word; those of the next follow STEP_BYTES later.
char* first_word(const Matrix& matrix, int64_t output) {
  const int part = output >= matrix.n_outputs;
  output -= part * matrix.n_outputs;
  return matrix.block(output / BLOCK, part) + output % BLOCK * 4;
}

// The group's scale of the output whose words begin at `word`: of several one after another, each
// in an array of its own.
char* scale(const Matrix& matrix, char* word, int64_t group, int64_t output, int i) {
  const Encoding e = matrix.encoding();
  const int64_t lane = output % matrix.n_outputs % BLOCK;
  return word - lane * 4 + (group + 1) * matrix.group_bytes() - matrix.scales_bytes() +
         (i * BLOCK + lane) * e.scale_bytes;
}

float scale_value(const Matrix& matrix, const char* at) {
  if (matrix.encoding().scale_bytes == 2) {
    uint16_t half;
    std::memcpy(&half, at, 2);
    return half_to_float(half);
  }
  float value;
  std::memcpy(&value, at, 4);
  return value;
}

int64_t inputs_of(const Matrix& m, int64_t group) {
  return std::min(m.group_inputs(), m.n_inputs - group * m.group_inputs());
}

void pack_plain(const Matrix& m, const char* row, char* to) {
  const int64_t n_bytes = m.row_bytes();
  for (int64_t at = 0; at + 4 <= n_bytes; at += 4, to += STEP_BYTES) std::memcpy(to, row + at, 4);
  if (n_bytes % 4) std::memcpy(to, row + n_bytes - 2, 2);
}

// `code(codes, i)`: of input i of a group whose codes are stored there.
template <class Codes, class Code>
void pack_codes(const Matrix& m, const char* row, int64_t output, Code code) {
  const Encoding e = m.encoding();
  char* to = first_word(m, output);
  for (int64_t g = 0; g < m.n_groups(); g++) {
    for (int i = 0; i < e.n_scales; i++, row += e.scale_bytes) {
      std::memcpy(scale(m, to, g, output, i), row, e.scale_bytes);
    }
    const int64_t n = inputs_of(m, g);
    for (int64_t i = 0; i < n; i++) {
      char* at = to + g * m.group_bytes() + i / Codes::INPUTS * STEP_BYTES;
      uint32_t word;
      std::memcpy(&word, at, 4);
      word |= Codes::place(code(row, i), i % Codes::INPUTS);
      std::memcpy(at, &word, 4);
    }
    row += n * e.code_bits / 8;
  }
}

void pack_row(const Matrix& m, const char* row, int64_t output) {
  switch (m.format) {
    case Format::plain:
      return pack_plain(m, row, first_word(m, output));
    case Format::int8:
    case Format::q8_0:
      return pack_codes<Codes8>(m, row, output, [](const char* codes, int64_t i) {
        return static_cast<int8_t>(codes[i]);
      });
    case Format::q4_1:  // a byte has a code of the group's first half below one of its second
      return pack_codes<Codes4>(m, row, output, [](const char* codes, int64_t i) {
        return static_cast<uint8_t>(codes[i % 16] >> (i < 16 ? 0 : 4) & 15);
      });
  }
}

void put(float value, float* to) { *to = value; }
void put(float value, bf16* to) {  // to the nearest, of two the even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  to->bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void unpack_plain(const Matrix& m, int64_t output, char* row) {
  const int64_t n_bytes = m.row_bytes();
  const char* from = first_word(m, output);
  for (int64_t at = 0; at + 4 <= n_bytes; at += 4, from += STEP_BYTES) {
    std::memcpy(row + at, from, 4);
  }
  if (n_bytes % 4) std::memcpy(row + n_bytes - 2, from, 2);
}

template <class Codes, class Element>
void unpack_codes(const Matrix& m, int64_t output, Element* row) {
  char* from = first_word(m, output);
  for (int64_t g = 0; g < m.n_groups(); g++) {
    const float a = scale_value(m, scale(m, from, g, output, 0));
    const float b = m.encoding().n_scales > 1 ? scale_value(m, scale(m, from, g, output, 1)) : 0.0f;
    const char* words = from + g * m.group_bytes();
    for (int64_t i = 0; i < inputs_of(m, g); i++, row++) {
      uint32_t word;
      std::memcpy(&word, words + i / Codes::INPUTS * STEP_BYTES, 4);
      put(Codes::value(word, i % Codes::INPUTS) * a + b, row);
    }
  }
}

template <class Element>
void unpack_row(const Matrix& m, int64_t output, Element* row) {
  if (m.format == Format::q4_1) unpack_codes<Codes4>(m, output, row);
  else unpack_codes<Codes8>(m, output, row);
}

}  // namespace

void pack_rows(const Matrix& matrix, const char* rows, int64_t n_rows, int64_t first) {
  const int64_t row_bytes = matrix.stored_row_bytes();
  parallel_for((n_rows + BLOCK - 1) / BLOCK, [&](int64_t task) {
    const int64_t begin = task * BLOCK, end = std::min(n_rows, begin + BLOCK);
    for (int64_t row = begin; row < end; row++) {
      pack_row(matrix, rows + row * row_bytes, first + row);
    }
  });
}

void unpack_rows(const Matrix& matrix, const int64_t* outputs, int64_t n, char* rows) {
  parallel_for(n, [&](int64_t i) {
    char* row = rows + i * matrix.row_bytes();
    if (matrix.format == Format::plain) unpack_plain(matrix, outputs[i], row);
    else if (matrix.dtype == Dtype::float32) {
      unpack_row(matrix, outputs[i], reinterpret_cast<float*>(row));
    } else {
      unpack_row(matrix, outputs[i], reinterpret_cast<bf16*>(row));
    }
  });
}

}  // namespace baton
