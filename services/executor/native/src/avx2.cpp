// The kernels for AVX2 with FMA and F16C: x86-64-v3.
#include "includes.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define TANDEM_AVX512 0
#define TANDEM_VNNI 0
#define TANDEM_AMX 0
#include "table.h"

extern const TandemKernels tandem_avx2;
const TandemKernels tandem_avx2 = make_table("avx2");
#pragma GCC pop_options
#endif
