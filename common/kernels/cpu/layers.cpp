#include "layers.h"

#include "products.h"
#include "rowwise.h"

namespace baton {
namespace {

void linear(const Linear& weights, const void* x, int64_t n_rows, void* out) {
  const Matrix& m = weights.matrix;
  multiply({m, static_cast<const char*>(x), m.row_bytes(), n_rows, weights.bias,
            static_cast<char*>(out), m.dtype});
}

}  // namespace

void turn_write_attend(AttentionPlan& plan, const Turns& turns, Dtype dtype, void* qkv,
                       const HeadNorms& norms, const LayerPages& pages, void* out) {
  const PageGeometry& g = plan.geometry;
  const int64_t n_heads = int64_t{g.n_kv_heads} * plan.n_rep;
  const int64_t head_bytes = int64_t{g.head_dim} * (dtype == Dtype::float32 ? 4 : 2);
  TurnRows rows = {};
  rows.dtype = dtype;
  rows.q = qkv;
  rows.k = static_cast<char*>(qkv) + n_heads * head_bytes;
  rows.v = static_cast<char*>(qkv) + (n_heads + g.n_kv_heads) * head_bytes;
  rows.q_stride = rows.k_stride = rows.v_stride = (n_heads + 2 * g.n_kv_heads) * g.head_dim;
  rows.n_rows = turns.n_rows;
  rows.n_heads = static_cast<int>(n_heads);
  rows.geometry = g;
  rows.q_norm = norms.q;
  rows.k_norm = norms.k;
  rows.eps = norms.eps;
  rows.cos_sin = turns.cos_sin;
  rows.positions = turns.positions;
  rows.slots = turns.slots;
  rows.page_k = pages.k;
  rows.page_v = pages.v;
  turn_and_write(rows);
  attend(plan, {rows.q, out, pages.k, pages.v, rows.q_stride, n_heads * g.head_dim}, dtype);
}

char* Layers::scratch(int64_t n_bytes) {
  constexpr int64_t LINE = 64;
  if (n_bytes > scratch_bytes_) {
    scratch_.reset(new char[n_bytes + LINE]);
    scratch_bytes_ = n_bytes;
  }
  return scratch_.get() + (LINE - reinterpret_cast<uintptr_t>(scratch_.get()) % LINE);
}

void Layers::run(AttentionPlan& plan, const Turns& turns, const LayerPages* pages, void* residual,
                 void* out) {
  const int64_t n_rows = turns.n_rows;
  const Layer& first = layers_.front();
  const int64_t row_bytes[] = {first.qkv.matrix.out_bytes(), first.o.matrix.row_bytes(),
                               first.o.matrix.out_bytes(), first.gate_up.matrix.out_bytes()};
  char* qkv = scratch(n_rows * (row_bytes[0] + row_bytes[1] + row_bytes[2] + row_bytes[3]));
  char* attended = qkv + n_rows * row_bytes[0];
  char* mixed = attended + n_rows * row_bytes[1];
  char* gated = mixed + n_rows * row_bytes[2];
  NormRows rows = {dtype_, residual, nullptr, first.attn_norm, eps_, n_rows, hidden_, out};
  norm(rows);
  rows.x = mixed;
  rows.residual = residual;
  for (size_t i = 0; i < layers_.size(); i++) {
    const Layer& layer = layers_[i];
    linear(layer.qkv, out, n_rows, qkv);
    turn_write_attend(plan, turns, dtype_, qkv, layer.head_norms, pages[i], attended);
    linear(layer.o, attended, n_rows, mixed);
    rows.weight = layer.mlp_norm;
    norm(rows);
    linear(layer.gate_up, out, n_rows, gated);
    linear(layer.down, gated, n_rows, mixed);
    rows.weight = i + 1 < layers_.size() ? layers_[i + 1].attn_norm : final_norm_;
    norm(rows);
  }
}

}  // namespace baton
