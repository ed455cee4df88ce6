// Causal attention over pages: what a pass attends to, cut into tasks, and the kernels for a task.
//
// A task is some query tokens of one sequence and one KV head (all query heads that share it, so
// that each KV byte is read once), and some key blocks. Key blocks are `KEY_BLOCK` tokens, aligned
// to absolute position; a query's blocks are merged in ascending order, so in float32 its bits do
// not depend on how tasks were cut (law 3). The online softmax is arXiv 1805.02867's.
//
// Axes: T rows of the pass, N query heads, G KV heads, D head dim, B sequences, M table width.
#pragma once

#include <cstdint>
#include <vector>

#include "matrix.h"

namespace baton {

constexpr int KEY_BLOCK = 128;

// Where a token's key or value lies: element offsets from a layer's first (see `paged.PageGeometry`).
struct PageGeometry {
  int page_tokens, n_kv_heads, head_dim;
  int64_t stride;  // elements between pages
};

// The arrays of a `PassPlan`; must outlive what refers to them.
struct Sequences {
  const int32_t* start_B1;
  const int32_t* len_B;
  const int32_t* tables_BM;
  int n_sequences, table_width;
};

struct AttentionTask {
  int sequence, kv_head;
  int first_query, n_queries;  // tokens, counted from the sequence's first row of the pass
  int first_block, end_block;
  int64_t partials;  // where the blocks' partial results go, in floats; -1: they are merged at once
  double cost;
};

class AttentionPlan {
 public:
  // `n_rep`: query heads a KV head.
  AttentionPlan(const Sequences& sequences, const PageGeometry& geometry, int n_rep, int n_threads);

  const Sequences sequences;
  const PageGeometry geometry;
  const int n_rep;
  std::vector<AttentionTask> tasks;  // costly ones first
  std::vector<AttentionTask> cut;    // what tasks with partials add up to: all blocks of each
  std::vector<float> partials;

 private:
  void add(AttentionTask whole, double share);
};

// One layer's tensors. q and out are [T, N, D] with rows apart as given, in elements.
struct AttentionTensors {
  const void* q;
  void* out;
  const void* k;
  const void* v;
  int64_t q_stride, out_stride;
};



void attend(AttentionPlan& plan, const AttentionTensors& tensors, Dtype dtype);

// Partial results of a block for `rows` queries: maxima, sums, weighted values.
constexpr int64_t round_up(int64_t n, int multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t partial_floats(int rows, int head_dim) {
  return 2 * round_up(rows, 16) + int64_t{rows} * round_up(head_dim, 16);
}

// Memory of the calling thread, aligned to 64 bytes, good until it asks again.
float* attention_scratch(int64_t n_floats);

}  // namespace baton
