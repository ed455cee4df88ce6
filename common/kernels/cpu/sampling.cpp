#include "sampling.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "bf16.h"
#include "isa.h"
#include "rowwise.h"
#include "threads.h"
#include "vector_exp.h"

namespace baton {
namespace {

// 2 ** f for -1/2 <= f <= 1/2 within 1.6e-14: the highest power first. Also in common/sampling.py.
constexpr double EXP2_SERIES[] = {1.0148341268202081e-07, 1.3258335398449777e-06,
                                  1.5252990011882775e-05, 0.0001540344088448824,
                                  0.0013333557625477476,  0.009618129181163879,
                                  0.05550410866841569,    0.2402265069572282,
                                  0.6931471805598851,     1.0};
constexpr int EXP2_TERMS = sizeof(EXP2_SERIES) / sizeof(EXP2_SERIES[0]);
constexpr int64_t WEIGHTS_BLOCK = 512;

}  // namespace
}  // namespace baton

#define KERNELS "sampling_kernels.h"
#include "for_each_isa.h"

namespace baton {
namespace {

using Wide = unsigned __int128;

// ceil(share * total), exactly; 0 <= share <= 1, 0 <= total < 2^63.
int64_t part_of(double share, int64_t total) {
  int exponent;
  const double fraction = std::frexp(share, &exponent);
  const Wide product = static_cast<Wide>(std::ldexp(fraction, 53)) * static_cast<Wide>(total);
  const int shift = 53 - exponent;
  if (shift >= 127) return product > 0 ? 1 : 0;
  return static_cast<int64_t>((product + ((Wide{1} << shift) - 1)) >> shift);
}

// A token that may be drawn. Truncation takes tokens in descending order of `rank`, then ascending
// order of ids.
struct Candidate {
  uint64_t rank;
  int64_t weight;
  int64_t id;
};

bool goes_first(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.id < b.id;
}

// Leading bits of the weight, then the logit: it orders as the logits do, where they differ enough.
uint64_t rank_of(int64_t weight, float logit) {
  const double as_double = static_cast<double>(weight);
  uint64_t leading;
  std::memcpy(&leading, &as_double, 8);
  uint32_t ordered;
  logit += 0.0f;  // -0 equals 0
  std::memcpy(&ordered, &logit, 4);
  ordered = ordered >> 31 ? ~ordered : ordered | 0x80000000u;
  return leading >> 48 << 32 | ordered;
}

// The shortest beginning of their order whose weights reach `limit` (at most their sum): moves it
// to the front and returns its length.
int64_t shortest_prefix(Candidate* candidates, int64_t n, int64_t limit) {
  int64_t low = 0, high = n;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    std::nth_element(candidates + low, candidates + middle, candidates + high, goes_first);
    int64_t sum = 0;
    for (int64_t i = low; i < middle; i++) sum += candidates[i].weight;
    if (sum >= limit) {
      high = middle;
    } else {
      limit -= sum;
      low = middle;
    }
  }
  return low + 1;
}

int64_t sum_of(const Candidate* candidates, int64_t n) {
  int64_t sum = 0;
  for (int64_t i = 0; i < n; i++) sum += candidates[i].weight;
  return sum;
}

int64_t target_of(int64_t uniform, int64_t total) {
  return static_cast<int64_t>(static_cast<Wide>(uniform) * static_cast<Wide>(total) >> 53);
}

class Row {
 public:
  Row(const Draw& draw, int64_t n, int weight_bits) : draw_(draw), n_(n), bits_(weight_bits) {}

  int64_t draw() {
    int64_t top;
    argmax(draw_.logits, 1, n_, &top);
    if (top < 0) return -1;
    weights_.resize(round_up(n_, 8));
    sums_.resize(n_ / WEIGHTS_BLOCK + 1);
    const auto weigh = isa() >= Isa::avx512 ? avx512::weigh_row : avx2::weigh_row;
    total_ = weigh(draw_.logits, n_, draw_.logits[top], draw_.scale, bits_, weights_.data(),
                   sums_.data());
    const bool keeps_all = draw_.min_p <= 0 && !has_top_k() && draw_.top_p >= 1;
    return keeps_all ? among_all() : among_candidates();
  }

 private:
  bool has_top_k() const { return draw_.top_k > 0 && draw_.top_k < n_; }

  int64_t among_all() const {
    int64_t target = target_of(draw_.uniform, total_);
    int64_t block = 0;
    for (; target >= sums_[block]; block++) target -= sums_[block];
    int64_t id = block * WEIGHTS_BLOCK;
    for (; target >= weights_[id]; id++) target -= weights_[id];
    return id;
  }

  // Few tokens have nearly all the weight: looks at the likeliest, and at more while what is asked
  // for is not among them.
  int64_t among_candidates() {
    const int64_t least = std::max<int64_t>(1, part_of(draw_.min_p, int64_t{1} << bits_));
    if (draw_.min_p > 0) total_ = total_at_least(least);
    for (int shift = 11;; shift += 8) {
      const int64_t here = shift < bits_ ? std::max(least, int64_t{1} << (bits_ - shift)) : least;
      collect(here);
      int64_t n = candidates_.size();
      if (here == least || has_enough()) return among_kept(n);
    }
  }

  int64_t total_at_least(int64_t least) const {
    int64_t total = 0;
    for (int64_t i = 0; i < n_; i++) total += weights_[i] >= least ? weights_[i] : 0;
    return total;
  }

  void collect(int64_t least) {
    ids_.resize(round_up(n_, 8));
    const auto find = isa() >= Isa::avx512 ? avx512::find_at_least : avx2::find_at_least;
    const int64_t n_found = find(weights_.data(), n_, least, ids_.data());
    candidates_.clear();
    for (int64_t i = 0; i < n_found; i++) {
      const int64_t id = ids_[i], weight = weights_[id];
      candidates_.push_back({rank_of(weight, draw_.logits[id]), weight, id});
    }
  }

  // Whether nothing that is kept lies outside the candidates.
  bool has_enough() const {
    const int64_t n = candidates_.size();
    if (has_top_k()) return n >= draw_.top_k;
    return draw_.top_p < 1 && sum_of(candidates_.data(), n) >= part_of(draw_.top_p, total_);
  }

  int64_t among_kept(int64_t n) {
    Candidate* kept = candidates_.data();
    if (has_top_k()) {
      if (draw_.top_k < n) {
        n = draw_.top_k;
        std::nth_element(kept, kept + n, kept + candidates_.size(), goes_first);
      }
      total_ = sum_of(kept, n);
    }
    if (draw_.top_p < 1) {
      n = shortest_prefix(kept, n, part_of(draw_.top_p, total_));
    }
    int64_t target = target_of(draw_.uniform, sum_of(kept, n));
    for (size_t i = n; i < candidates_.size(); i++) weights_[kept[i].id] = 0;
    const int32_t* id = ids_.data();  // of all candidates, ascending
    for (; target >= weights_[*id]; id++) target -= weights_[*id];
    return *id;
  }

  const Draw& draw_;
  const int64_t n_;
  const int bits_;
  int64_t total_ = 0;
  // Kept for the thread's next row: fresh memory costs its first touch.
  static thread_local std::vector<int64_t> weights_, sums_;
  static thread_local std::vector<int32_t> ids_;
  static thread_local std::vector<Candidate> candidates_;
};

thread_local std::vector<int64_t> Row::weights_, Row::sums_;
thread_local std::vector<int32_t> Row::ids_;
thread_local std::vector<Candidate> Row::candidates_;

}  // namespace

int64_t draw(const Draw& draw, int64_t n, int weight_bits) {
  return Row(draw, n, weight_bits).draw();
}

void draw_all(const Draw* draws, int64_t n_draws, int64_t n, int weight_bits, int64_t* tokens) {
  parallel_for(n_draws, [&](int64_t i) { tokens[i] = draw(draws[i], n, weight_bits); });
}

}  // namespace baton
