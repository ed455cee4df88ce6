// Drawing tokens: `common.sampling`'s definition of a draw, computed row by row. Every result is an
// integer function of the logits' weights, and a weight is a fixed sequence of operations that are
// exact or rounded once, so the tokens are the same with all instructions, and torch's.
#pragma once

#include <cstdint>

namespace baton {

// Of one row. What is removed is decided in the order min_p, top_k, top_p.
struct Draw {
  const float* logits;
  double scale;      // log2(e) / temperature
  double min_p;      // 0: none
  double top_p;      // 1: none
  int64_t top_k;     // 0, or the number of logits or more: none
  int64_t uniform;   // 53 bits
};

// The token, or -1 where the largest logit is not finite or one is NaN. `weight_bits`: of the
// largest weight, so few that a row's sum stays below 2^62.
int64_t draw(const Draw& draw, int64_t n, int weight_bits);

void draw_all(const Draw* draws, int64_t n_draws, int64_t n, int weight_bits, int64_t* tokens);

}  // namespace baton
