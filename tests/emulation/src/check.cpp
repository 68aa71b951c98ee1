// Checks every variant of the kernels that this processor can run, on random shapes: each kernel against double
// precision, whole steps against AVX2's, and the promise that a row's result is the same bit for bit in any company.
//
//     check [ROUNDS [SEED [VARIANT]]]     prints a line for each variant and part; fails if anything was not as expected
//     check refused                       that a process to which the system refuses tiles does without them
#include <signal.h>
#include <sys/time.h>

#include <string>

#include "attention.h"
#include "products.h"
#include "steps.h"
#include "tokens.h"

namespace {

double seconds() {
    timeval now;
    gettimeofday(&now, nullptr);
    return double(now.tv_sec) + 1e-6 * double(now.tv_usec);
}

int64_t check_variant(const TandemKernels &kernels, const TandemKernels &proven, int rounds, uint64_t seed) {
    Report report(kernels.name);
    const auto part = [&](const char *name, const auto &check) {
        const int64_t checks = report.checks(), failures = report.failures();
        const double start = seconds();
        Draw draw(seed);
        check(draw);
        std::printf("%s %s: %lld checks, %lld failed, %.1f s\n", kernels.name, name, (long long)(report.checks() - checks),
                    (long long)(report.failures() - failures), seconds() - start);
        std::fflush(stdout);
    };
    part("tokens", [&](Draw &draw) { check_tokens(kernels, draw, report, 4 * rounds); });
    part("products", [&](Draw &draw) { check_products(kernels, draw, report, rounds); });
    part("attention", [&](Draw &draw) { check_attentions(kernels, draw, report, rounds); });
    part("steps", [&](Draw &draw) { check_steps(kernels, proven, draw, report, rounds); });
    return report.failures();
}

// A system refuses tiles to whoever has a stack for signals that is too small for them.
int check_refused() {
    static uint8_t small[4096];
    stack_t stack{};
    stack.ss_sp = small;
    stack.ss_size = sizeof(small);
    if (sigaltstack(&stack, nullptr)) return 2;
    const std::string names = tandem_variants();
    std::printf("variants when tiles are refused: %s\n", names.c_str());
    return names.empty() || names.find("amx") != names.npos || tandem_kernels("amx");
}

}  // namespace

int main(int count, char **arguments) {
    if (tandem_abi_version() != TANDEM_ABI_VERSION) {
        std::printf("the library was built from other sources\n");
        return 2;
    }
    if (count > 1 && std::string(arguments[1]) == "refused") return check_refused();
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 10;
    const uint64_t seed = count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1;
    const std::string wanted = count > 3 ? arguments[3] : "";
    const TandemKernels *proven = tandem_kernels("avx2");
    std::string names = tandem_variants();
    std::printf("variants: %s\n", names.c_str());
    if (!proven) return 2;
    if (!wanted.empty()) names = tandem_kernels(wanted.c_str()) ? wanted : "";  // also one that is not offered
    int64_t failures = 0;
    bool is_any = false;
    for (size_t at = 0; at < names.size();) {
        const std::string name = names.substr(at, names.find(' ', at) - at);
        at += name.size() + 1;
        is_any = true;
        failures += check_variant(*tandem_kernels(name.c_str()), *proven, rounds, seed);
    }
    std::printf("%lld failures\n", (long long)failures);
    return failures || !is_any;
}
