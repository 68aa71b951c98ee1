// Rows of activations, quantized in blocks of 32 to 8 bits each.
#pragma once
#include "weights.h"

namespace {

// A block of 32 activations: value = scale x q.
struct Activations {
    float scale;
    float total;   // scale x the sum of q: what an offset of the weights is multiplied by
    int32_t sum;   // of q
    int32_t unused;
    int8_t q[BLOCK];
};

inline void quantize_block(const float *x, Activations &out) {
    F top = zero(), nothing = zero();
    for (int i = 0; i < BLOCK; i += LANES) {
        top = max(top, magnitude(load(x + i)));
        nothing = fma(load(x + i), zero(), nothing);
    }
    const float most = largest(top);
    // 0, or not a number where x is not finite: that must reach the logits, where the row is found out.
    const float scale = most / 127 + sum(nothing);
    const F inverse = all(most > 0 ? 127 / most : 0);
    I total = zero_int();
    for (int i = 0; i < BLOCK; i += LANES) {
        const I q = to_int(mul(load(x + i), inverse));
        total = add_int(total, q);
        store_byte(out.q + i, q);
    }
    out.sum = sum(total);
    out.scale = scale;
    out.total = scale * float(out.sum);
}

// Activations of a row: block b at out[b x stride].
inline void quantize_row(const float *x, int columns, Activations *out, int stride) {
    for (int block = 0; block < columns / BLOCK; block++) quantize_block(x + block * BLOCK, out[int64_t(block) * stride]);
}

}  // namespace
