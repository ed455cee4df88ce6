// How a word of a matrix holds codes (`matrix.h`), and what one of them is worth. The places of
// codes in a word are those from which a kernel widens them fastest (`weight_formats.h`).
#pragma once

#include <cstdint>
#include <cstring>

namespace baton {

// Four codes from -127 to 127, as sign and magnitude.
struct Codes8 {
  static constexpr int INPUTS = 4;
  static uint32_t place(int8_t code, int i) {
    const uint32_t byte = code < 0 ? 0x80u | (-code & 0x7f) : code;
    return byte << 8 * i;
  }
  static float value(uint32_t word, int i) {
    const int32_t byte = word >> 8 * i & 0xff;
    const int32_t negative = -(byte >> 7);
    return static_cast<float>(((byte & 0x7f) ^ negative) - negative);
  }
};

// By which a byte permutation takes words of four codes to pairs of bfloat16.
struct CodeTables {
  alignas(64) uint8_t bytes[2][128];  // lower and upper, of a magnitude's bfloat16
  alignas(16) uint8_t pairs[16];      // of four words: inputs 0 and 1 of each, then 2 and 3
};
constexpr CodeTables make_code_tables() {
  CodeTables tables = {};
  for (int magnitude = 1; magnitude < 128; magnitude++) {
    int exponent = 0;
    while (magnitude >> (exponent + 1)) exponent++;
    const int bits = (127 + exponent) << 7 | (magnitude << (7 - exponent) & 0x7f);
    tables.bytes[0][magnitude] = static_cast<uint8_t>(bits);
    tables.bytes[1][magnitude] = static_cast<uint8_t>(bits >> 8);
  }
  for (int i = 0; i < 16; i++) {
    tables.pairs[i] = static_cast<uint8_t>(i % 8 / 2 * 4 + i / 8 * 2 + i % 2);
  }
  return tables;
}
inline constexpr CodeTables CODE_TABLES = make_code_tables();

// Eight codes from 0 to 15. Pair i's are the nibbles that two bytes 16 bits apart have below (i < 2)
// or above.
struct Codes4 {
  static constexpr int INPUTS = 8;
  static int first_bit(int i) { return 8 * (i / 2 % 2) + 16 * (i % 2) + 4 * (i / 4); }
  static uint32_t place(uint8_t code, int i) { return static_cast<uint32_t>(code) << first_bit(i); }
  static float value(uint32_t word, int i) {
    return static_cast<float>(static_cast<int32_t>(word >> first_bit(i) & 15));
  }
};

inline float half_to_float(uint16_t half) {
  const uint32_t magnitude = half & 0x7fff;
  const uint32_t exponent = magnitude >= 0x7c00 ? 0x7f800000u : 0;  // infinite, or not a number
  const uint32_t bits = magnitude << 13;
  float scaled;
  std::memcpy(&scaled, &bits, 4);
  scaled *= 0x1p112f;  // exact, also of subnormals
  uint32_t out;
  std::memcpy(&out, &scaled, 4);
  out |= exponent | (half & 0x8000u) << 16;
  float result;
  std::memcpy(&result, &out, 4);
  return result;
}

}  // namespace baton
