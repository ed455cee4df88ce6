// The Python module `common.kernels.cpu._native`: choice of instructions and threads; kernels.
// Kernels take addresses as integers: a tensor's `data_ptr()` costs a twentieth of its DLPack.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bind.h"
#include "isa.h"
#include "threads.h"

namespace nb = nanobind;

namespace {

const char* const NAMES[] = {"", "avx2", "avx512", "avx512bf16"};

std::string name_of(baton::Isa isa) { return NAMES[static_cast<int>(isa)]; }

void set_isa(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(baton::best_isa()); i++) {
    if (name == NAMES[i]) return baton::set_isa(static_cast<baton::Isa>(i));
  }
  throw nb::value_error(("not supported by this processor: " + name).c_str());
}

void set_threads(int n) {
  if (n < 1 || n > baton::MAX_THREADS) throw nb::value_error("threads out of range");
  baton::set_threads(n);
}

}  // namespace

NB_MODULE(_native, m) {
  m.attr("SOURCES") = BATON_SOURCES;
  m.def("isa", [] { return name_of(baton::isa()); });
  m.def("best_isa", [] { return name_of(baton::best_isa()); });
  m.def("set_isa", set_isa);
  m.def("set_threads", set_threads, nb::call_guard<nb::gil_scoped_release>());
  m.def("n_threads", &baton::n_threads);
  baton::bind_attention(m);
  baton::bind_products(m);
  baton::bind_rowwise(m);
  baton::bind_layers(m);
}
