// The kernels for AVX2 with byte dot products: hybrid laptop processors.
#include "includes.h"

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avxvnni")
#define TANDEM_AVX512 0
#define TANDEM_VNNI 1
#define TANDEM_AMX 0
#include "table.h"

extern const TandemKernels tandem_avxvnni;
const TandemKernels tandem_avxvnni = make_table("avxvnni");
#pragma GCC pop_options
#endif
