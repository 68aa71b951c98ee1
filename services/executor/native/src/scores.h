// Rows of scores, one for each token of the vocabulary, before a token is chosen.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace {

// Minus infinity for every token whose bit is not set: bit t % 32 of word t / 32.
inline void ban_in_row(float *scores, const uint32_t *bits, int vocab) {
    constexpr float banned = -std::numeric_limits<float>::infinity();
    for (int first = 0; first < vocab; first += 32) {
        const uint32_t word = bits[first / 32];
        const int count = std::min(32, vocab - first);
        float *const at = scores + first;
        if (word == 0)
            std::fill(at, at + count, banned);
        else if (word != ~0u)
            for (int i = 0; i < count; i++) at[i] = (word >> i) & 1 ? at[i] : banned;
    }
}

}  // namespace
