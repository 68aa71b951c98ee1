// Which variants this processor can run.
#include <cstring>
#include <string>

#include "abi.h"

#if defined(__x86_64__)
extern const TandemKernels tandem_avx2, tandem_avxvnni, tandem_avx512, tandem_avx512vnni;
#endif

namespace {

struct Variant {
    const TandemKernels *kernels;
    bool runs;
};

#if defined(__x86_64__)
const auto &variants() {
    __builtin_cpu_init();
    static const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    static const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    static const Variant all[] = {
        {&tandem_avx512vnni, v4 && __builtin_cpu_supports("avx512vnni")},
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
            if (variant.runs) joined.append(joined.empty() ? "" : " ").append(variant.kernels->name);
        return joined;
    }();
    return names.c_str();
}
}
