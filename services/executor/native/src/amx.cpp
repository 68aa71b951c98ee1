// The kernels for AVX-512 with byte dot products and tiles of bytes. Compilers that know no tiles leave them out.
#include "includes.h"

#if TANDEM_HAS_AMX
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,amx-tile,amx-int8")
#define TANDEM_AVX512 1
#define TANDEM_VNNI 1
#define TANDEM_AMX 1
#include "table.h"

extern const TandemKernels tandem_amx;
const TandemKernels tandem_amx = make_table("amx");
#pragma GCC pop_options
#endif
