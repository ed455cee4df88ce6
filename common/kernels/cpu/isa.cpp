#include "isa.h"

namespace baton {

Isa best_isa() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::none;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx512) return Isa::avx2;
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  return bf16 ? Isa::avx512bf16 : Isa::avx512;
}

static Isa chosen = best_isa();

Isa isa() { return chosen; }

void set_isa(Isa isa) { chosen = isa; }

}  // namespace baton
