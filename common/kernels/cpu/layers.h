// All layers of a pass in one call: Llama's sequence of products, attention and norms, so that at
// few rows no step waits for the interpreter, nor for its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "matrix.h"

namespace baton {

struct Pages {
  PageGeometry geometry;
  int64_t n_pages;
};

// Rows to rotate and write: where, and by how much.
struct Turns {
  const float* cos_sin;
  const int64_t *positions, *slots;
  int64_t n_rows;
  Pages pages;
};

// One layer's keys and values in a pool.
struct LayerPages {
  void *k, *v;
};

struct HeadNorms {
  const void *q, *k;  // or null
  float eps;
};

// Norms heads, rotates, writes k and v, attends: qkv (rows of heads, overwritten) to out.
void turn_write_attend(AttentionPlan& plan, const Turns& turns, Dtype dtype, void* qkv,
                       const HeadNorms& norms, const LayerPages& pages, void* out);

struct Linear {
  Matrix matrix;
  const char* bias;  // or null
};

struct Layer {
  const void *attn_norm, *mlp_norm;
  HeadNorms head_norms;
  Linear qkv, o, gate_up, down;
};

class Layers {
 public:
  Layers(Dtype dtype, int hidden, float eps, const void* final_norm)
      : dtype_(dtype), hidden_(hidden), eps_(eps), final_norm_(final_norm) {}

  void add(const Layer& layer) { layers_.push_back(layer); }
  size_t size() const { return layers_.size(); }

  // residual [n_rows, hidden], embeddings before, the last residual after; out likewise: its norm.
  void run(AttentionPlan& plan, const Turns& turns, const LayerPages* pages, void* residual,
           void* out);

 private:
  char* scratch(int64_t n_bytes);

  Dtype dtype_;
  int hidden_;
  float eps_;
  const void* final_norm_;
  std::vector<Layer> layers_;
  std::unique_ptr<char[]> scratch_;  // grows, never shrinks: fresh memory costs its first touch
  int64_t scratch_bytes_ = 0;
};

}  // namespace baton
