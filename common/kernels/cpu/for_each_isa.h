// Includes the file KERNELS once for each instruction set, with `lanes.h` before it, as code that
// may use its instructions: ISA is then the namespace inside `baton`, LEVEL the `Isa`'s number. So
// KERNELS has no include guard and includes nothing; whoever includes this includes all headers.

#define UNROLL _Pragma("GCC unroll 8")

#define ISA avx2
#define LEVEL 1
BEGIN_AVX2
#include "lanes.h"
#include KERNELS
END_TARGET
#undef ISA
#undef LEVEL

#define ISA avx512
#define LEVEL 2
BEGIN_AVX512
#include "lanes.h"
#include KERNELS
END_TARGET
#undef ISA
#undef LEVEL

#define ISA avx512bf16
#define LEVEL 3
BEGIN_AVX512BF16
#include "lanes.h"
#include KERNELS
END_TARGET
#undef ISA
#undef LEVEL

#undef UNROLL
