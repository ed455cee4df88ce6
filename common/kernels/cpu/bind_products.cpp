// Bindings of matrices and products.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bind.h"
#include "products.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace baton {
namespace {

const char* bytes_at(uintptr_t address) { return reinterpret_cast<const char*>(address); }
char* memory_at(uintptr_t address) { return reinterpret_cast<char*>(address); }

Format format_of(const std::string& name) {
  const char* const NAMES[] = {"plain", "int8", "q8_0", "q4_1"};
  for (int i = 0; i < 4; i++) {
    if (name == NAMES[i]) return static_cast<Format>(i);
  }
  throw nb::value_error(("no such format of weights: " + name).c_str());
}

Dtype dtype_of(bool float32) { return float32 ? Dtype::float32 : Dtype::bfloat16; }

void multiply_at(const Matrix& matrix, uintptr_t x, int64_t n_rows, uintptr_t bias, uintptr_t out,
                 bool out_float32) {
  Product p;
  p.matrix = matrix;
  p.x = bytes_at(x);
  p.x_stride = matrix.row_bytes();
  p.n_rows = n_rows;
  p.bias = bytes_at(bias);
  p.out = memory_at(out);
  p.out_dtype = dtype_of(out_float32);
  multiply(p);
}

}  // namespace

void bind_products(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  m.attr("BLOCK") = BLOCK;
  nb::class_<Matrix>(m, "Matrix")
      .def("__init__",
           [](Matrix* self, uintptr_t data, int64_t n_outputs, int64_t n_inputs, bool float32,
              const std::string& format, bool gated) {
             new (self) Matrix{memory_at(data),   n_outputs, n_inputs, dtype_of(float32),
                               format_of(format), gated};
           },
           "data"_a, "n_outputs"_a, "n_inputs"_a, nb::kw_only(), "float32"_a, "weight_format"_a, "gated"_a)
      .def_prop_ro("n_blocks", [](const Matrix& self) { return self.n_blocks() * self.n_parts(); })
      .def_prop_ro("block_bytes", &Matrix::block_bytes)
      .def("pack",
           [](const Matrix& self, uintptr_t rows, int64_t n_rows, int64_t first) {
             if (first < 0 || first + n_rows > self.n_outputs * self.n_parts()) {
               throw nb::index_error("no such row");
             }
             pack_rows(self, bytes_at(rows), n_rows, first);
           }, unlocked)
      .def("unpack",
           [](const Matrix& self, uintptr_t outputs, int64_t n, uintptr_t rows) {
             const int64_t* indices = reinterpret_cast<const int64_t*>(outputs);
             const int64_t n_outputs = self.n_outputs * self.n_parts();
             for (int64_t i = 0; i < n; i++) {
               if (indices[i] < 0 || indices[i] >= n_outputs) throw nb::index_error("no such row");
             }
             unpack_rows(self, indices, n, memory_at(rows));
           }, unlocked);
  m.def("multiply", &multiply_at, unlocked);
  m.def("set_prefetch_rows", [](int n_rows) { prefetch_rows = n_rows; });
}

}  // namespace baton
