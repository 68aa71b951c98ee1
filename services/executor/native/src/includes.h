// The standard headers of the kernels, before any instruction set is chosen: their inline functions are shared with the
// rest of the program, which must run anywhere.
#pragma once
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "abi.h"

// Whether this compiler knows AMX.
#if defined(__x86_64__) && __has_include(<amxint8intrin.h>)
#define TANDEM_HAS_AMX 1
#else
#define TANDEM_HAS_AMX 0
#endif
