// What the processor has, and how code for it is marked. Code between BEGIN_X and END_TARGET may
// use X's instructions and must be called only where `isa()` is at least X; standard headers are
// included before, never between, or the linker could hand their AVX-512 code to everyone.
#pragma once

namespace baton {

enum class Isa { none, avx2, avx512, avx512bf16 };

// The best that processor and system support, unless `set_isa` chose a lesser one.
Isa isa();
Isa best_isa();
void set_isa(Isa isa);

}  // namespace baton

#define BATON_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BATON_BEGIN_TARGET(names) \
  BATON_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BATON_BEGIN_TARGET(names) _Pragma("GCC push_options") BATON_PRAGMA(GCC target(names))
#define END_TARGET _Pragma("GCC pop_options")
#endif

#define BEGIN_AVX2 BATON_BEGIN_TARGET("avx2,fma")
#define BEGIN_AVX512 BATON_BEGIN_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#define BEGIN_AVX512BF16 \
  BATON_BEGIN_TARGET("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi")
