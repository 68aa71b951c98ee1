// The kernels for AVX-512 with bytes and words: x86-64-v4.
#include "includes.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq")
#define TANDEM_AVX512 1
#define TANDEM_VNNI 0
#define TANDEM_AMX 0
#include "table.h"

extern const TandemKernels tandem_avx512;
const TandemKernels tandem_avx512 = make_table("avx512");
#pragma GCC pop_options
#endif
