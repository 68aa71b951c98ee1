// The kernels for AVX-512 with byte dot products.
#include "includes.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#define TANDEM_AVX512 1
#define TANDEM_VNNI 1
#define TANDEM_AMX 0
#include "table.h"

extern const TandemKernels tandem_avx512vnni;
const TandemKernels tandem_avx512vnni = make_table("avx512vnni");
#pragma GCC pop_options
#endif
