// Rows of scores, one for each token of the vocabulary, before a token is chosen.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

#include "simd.h"

namespace {

constexpr int SCORES_AT_ONCE = 4096;  // about what one thread takes at a time

// The next LANES of count values; beyond them, `rest`.
inline F load_some(const float *p, int count, float rest) {
    if (count >= LANES) return load(p);
    float values[LANES];
    for (int i = 0; i < LANES; i++) values[i] = i < count ? p[i] : rest;
    return load(values);
}

inline bool are_finite(const float *scores, int count) {
    F total = zero();
    for (int i = 0; i < count; i += LANES) total = fma(load_some(scores + i, count - i, 0.0f), zero(), total);
    return sum(total) == 0.0f;  // infinity and NaN times 0 are NaN
}

inline float peak_of_block(const float *scores, int size) {
    constexpr float least = -std::numeric_limits<float>::infinity();
    F best = all(least);
    for (int i = 0; i < size; i += LANES) best = max(best, load_some(scores + i, size - i, least));
    return largest(best);
}

// weights = exp((scores - best) * factor), 0 where that is no normal number; returns their sum.
inline float weigh_block(const float *scores, float best, float factor, int size, float *weights) {
    F total = zero();
    for (int i = 0; i < size; i += LANES) {
        const F gap = mul(sub(load_some(scores + i, size - i, -std::numeric_limits<float>::infinity()), all(best)),
                          all(factor));
        const F weight = where_at_least(gap, LEAST_EXPONENT, exponential(gap));
        total = add(total, weight);
        if (i + LANES <= size) {
            store(weights + i, weight);
        } else {
            float values[LANES];
            store(values, weight);
            std::copy(values, values + (size - i), weights + i);
        }
    }
    return sum(total);
}

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
