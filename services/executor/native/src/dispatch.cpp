// Which variants this processor, and the system it runs, allow.
#include "includes.h"

#include <string>

#if defined(__x86_64__)
extern const TandemKernels tandem_avx2, tandem_avxvnni, tandem_avx512, tandem_avx512vnni;
#endif
#if TANDEM_HAS_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
extern const TandemKernels tandem_amx;
#endif

namespace {

struct Variant {
    const TandemKernels *kernels;
    bool runs;
    bool is_offered = true;  // not while it was never run on a processor: then it is to be had by its name alone
};

#if TANDEM_HAS_AMX
// Tiles are 8 KB more for the system to save at a switch of threads, so a process has to ask for them, once for all of
// its threads. A system that does not know them, or a thread with a small stack for signals, refuses.
bool may_use_tiles() {
    constexpr unsigned TILES = 1u << 24, TILES_OF_BYTES = 1u << 25;  // of leaf 7
    constexpr long ASK = 0x1023, TILE_DATA = 18;                     // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & TILES) || !(d & TILES_OF_BYTES)) return false;
    return syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}
#endif

#if defined(__x86_64__)
const auto &variants() {
    __builtin_cpu_init();
    static const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    static const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    static const bool has_dots = v4 && __builtin_cpu_supports("avx512vnni");
    static const Variant all[] = {
#if TANDEM_HAS_AMX
        {&tandem_amx, has_dots && may_use_tiles(), false},
#endif
        {&tandem_avx512vnni, has_dots},
        {&tandem_avx512, v4},
        {&tandem_avxvnni, v3 && __builtin_cpu_supports("avxvnni")},
        {&tandem_avx2, v3},
    };
    return all;
}
#else
const Variant *const none = nullptr;
struct Nothing {
    const Variant *begin() const { return none; }
    const Variant *end() const { return none; }
};
Nothing variants() { return {}; }
#endif

}  // namespace

extern "C" {

int32_t tandem_abi_version(void) { return TANDEM_ABI_VERSION; }

const TandemKernels *tandem_kernels(const char *name) {
    for (const Variant &variant : variants())
        if (variant.runs && std::strcmp(variant.kernels->name, name) == 0) return variant.kernels;
    return nullptr;
}

const char *tandem_variants(void) {
    static const std::string names = [] {
        std::string joined;
        for (const Variant &variant : variants())
            if (variant.runs && variant.is_offered) joined.append(joined.empty() ? "" : " ").append(variant.kernels->name);
        return joined;
    }();
    return names.c_str();
}
}
