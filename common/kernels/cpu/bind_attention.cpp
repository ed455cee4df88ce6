// Bindings of attention and of the rotation and writing that go before it.

#include <nanobind/nanobind.h>

#include <string>

#include "attention.h"
#include "bind.h"
#include "layers.h"
#include "rowwise.h"
#include "threads.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace baton {
namespace {

void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }
template <class T>
const T* array_at(uintptr_t address) { return reinterpret_cast<const T*>(address); }

// Kernels trust what they are given; a plan that names what is not there must not reach memory.
void check(const Sequences& s, int page_tokens, int64_t n_pages) {
  for (int b = 0; b < s.n_sequences; b++) {
    const int64_t n_used = (int64_t{s.len_B[b]} + page_tokens - 1) / page_tokens;
    const int n_rows = s.start_B1[b + 1] - s.start_B1[b];
    if (n_rows < 1 || n_rows > s.len_B[b] || n_used > s.table_width) {
      throw nb::index_error(("sequence " + std::to_string(b) + " has no such rows").c_str());
    }
    const int32_t* table = s.tables_BM + int64_t{b} * s.table_width;
    for (int64_t i = 0; i < n_used; i++) {
      if (table[i] < 0 || table[i] >= n_pages) {
        throw nb::index_error(("no page " + std::to_string(table[i])).c_str());
      }
    }
  }
}

void check(const int64_t* indices, int64_t n, int64_t end, const char* what) {
  for (int64_t i = 0; i < n; i++) {
    if (indices[i] < 0 || indices[i] >= end) {
      throw nb::index_error((std::string("no ") + what + " " + std::to_string(indices[i])).c_str());
    }
  }
}

TurnRows rows_of(const Turns& turns, bool float32, uintptr_t page_k, uintptr_t page_v) {
  TurnRows rows = {};
  rows.dtype = float32 ? Dtype::float32 : Dtype::bfloat16;
  rows.n_rows = turns.n_rows;
  rows.geometry = turns.pages.geometry;
  rows.cos_sin = turns.cos_sin;
  rows.positions = turns.positions;
  rows.slots = turns.slots;
  rows.page_k = at(page_k);
  rows.page_v = at(page_v);
  return rows;
}

void turn_and_write_at(const Turns& turns, bool float32, uintptr_t q, int n_heads, uintptr_t k,
                       uintptr_t v, int64_t v_stride, uintptr_t page_k, uintptr_t page_v) {
  TurnRows rows = rows_of(turns, float32, page_k, page_v);
  rows.q = at(q);
  rows.k = at(k);
  rows.v = at(v);
  rows.n_heads = n_heads;
  rows.q_stride = int64_t{n_heads} * rows.geometry.head_dim;
  rows.k_stride = int64_t{rows.geometry.n_kv_heads} * rows.geometry.head_dim;
  rows.v_stride = v_stride;
  turn_and_write(rows);
}

void attend_at(AttentionPlan& plan, bool float32, uintptr_t q, uintptr_t page_k, uintptr_t page_v,
               uintptr_t out) {
  const int64_t stride = int64_t{plan.geometry.n_kv_heads} * plan.n_rep * plan.geometry.head_dim;
  attend(plan, {at(q), at(out), at(page_k), at(page_v), stride, stride},
         float32 ? Dtype::float32 : Dtype::bfloat16);
}

void turn_write_attend_at(AttentionPlan& plan, const Turns& turns, bool float32, uintptr_t qkv,
                          uintptr_t q_norm, uintptr_t k_norm, float eps, uintptr_t page_k,
                          uintptr_t page_v, uintptr_t out) {
  turn_write_attend(plan, turns, float32 ? Dtype::float32 : Dtype::bfloat16, at(qkv),
                    {at(q_norm), at(k_norm), eps}, {at(page_k), at(page_v)}, at(out));
}

}  // namespace

void bind_attention(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  nb::class_<Pages>(m, "Pages")
      .def("__init__",
           [](Pages* self, int64_t n_pages, int page_tokens, int n_kv_heads, int head_dim,
              int64_t stride) {
             new (self) Pages{{page_tokens, n_kv_heads, head_dim, stride}, n_pages};
           });
  nb::class_<AttentionPlan>(m, "AttentionPlan")
      .def("__init__",
           [](AttentionPlan* self, uintptr_t start, uintptr_t len, uintptr_t tables,
              int n_sequences, int table_width, const Pages& pages, int n_rep) {
             const Sequences sequences = {array_at<int32_t>(start), array_at<int32_t>(len),
                                          array_at<int32_t>(tables), n_sequences, table_width};
             check(sequences, pages.geometry.page_tokens, pages.n_pages);
             new (self) AttentionPlan(sequences, pages.geometry, n_rep, n_threads());
           });
  nb::class_<Turns>(m, "Turns")
      .def("__init__",
           [](Turns* self, uintptr_t cos_sin, int64_t n_positions, uintptr_t positions,
              uintptr_t slots, int64_t n_rows, const Pages& pages) {
             const Turns turns = {array_at<float>(cos_sin), array_at<int64_t>(positions),
                                  array_at<int64_t>(slots), n_rows, pages};
             check(turns.positions, n_rows, n_positions, "position");
             check(turns.slots, n_rows, pages.n_pages * pages.geometry.page_tokens, "slot");
             new (self) Turns(turns);
           });
  m.def("turn_and_write", &turn_and_write_at, unlocked);
  m.def("attend", &attend_at, unlocked);
  m.def("turn_write_attend", &turn_write_attend_at, unlocked);
}

}  // namespace baton
