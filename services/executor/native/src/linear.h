// Products with packed weights: each row of activations is quantized in blocks of 32 to 8 bits, the dot products are
// integer, and every block's sum is scaled into a float sum.
//
// A row's result is the same bit for bit whatever rows are computed with it: the order of additions is fixed by the
// weight alone. Rows are taken RUN at a time so that a block of weights, unpacked once, meets all of them in registers.
#pragma once
#include <algorithm>

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

constexpr int RUN = 32;
constexpr int AHEAD = 3072;  // bytes: how far before their use weights are asked for

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

// The 32 columns of a group, ready to be multiplied.
struct Nibbles {
    I w[VECTORS];
    F scale, offset;

    Nibbles(const uint8_t *quants, const uint16_t *scales) : scale(load_half(scales)), offset(load_half(scales + LANES)) {
        for (int i = 0; i < VECTORS / 2; i++) {
            const I both = load_int(quants + i * VECTOR_BYTES);
            w[i] = low_nibbles(both);
            w[i + VECTORS / 2] = high_nibbles(both);
        }
    }

    inline F multiply(const Activations &a, F sum) const {
#if TANDEM_VNNI
        I products = zero_int();
        for (int i = 0; i < VECTORS; i++) products = dot(products, w[i], four(a.q + 4 * i));
#else
        // 8 x 2 x 15 x 127 fits 16 bits.
        I words = pairs(w[0], four(a.q));
        for (int i = 1; i < VECTORS; i++) words = add_words(words, pairs(w[i], four(a.q + 4 * i)));
        const I products = pairs_of_words(words, all_words(1));
#endif
        sum = fma(offset, all(a.total), sum);
        return fma(to_float(products), mul(scale, all(a.scale)), sum);
    }
};

struct Bytes {
    I w[VECTORS];
    F scale;

    Bytes(const uint8_t *quants, const uint16_t *scales) : scale(load_half(scales)) {
        for (int i = 0; i < VECTORS; i++) w[i] = load_int(quants + i * VECTOR_BYTES);
    }

    inline F multiply(const Activations &a, F sum) const {
#if TANDEM_VNNI
        I products = all_int(-128 * a.sum);
        for (int i = 0; i < VECTORS; i++) products = dot(products, w[i], four(a.q + 4 * i));
#else
        I products = zero_int();
        for (int i = 0; i < VECTORS; i++) {
            const I words = pairs(magnitude_bytes(w[i]), with_sign(four(a.q + 4 * i), w[i]));
            products = add_int(products, pairs_of_words(words, all_words(1)));
        }
#endif
        return fma(to_float(products), mul(scale, all(a.scale)), sum);
    }
};

// sums [rows][LANES] = activations times one group. ROWS > 0: so many, in registers; 0: `rows` of them.
template <class Columns, int ROWS>
inline void multiply_group(const TandemWeight &w, const uint8_t *group, const Activations *x, int stride, int rows, F *sums) {
    const int quant_step = quant_bytes(w.format), scale_step = scale_bytes(w.format) / 2;
    const uint16_t *scales = scales_of(w, group);
    const int count = ROWS ? ROWS : rows;
    const int bytes = quant_step + scale_step * 2;
    const uint8_t *ahead = group + AHEAD;
    F held[ROWS ? ROWS : RUN];
    for (int row = 0; row < count; row++) held[row] = zero();
    for (int block = 0; block < w.columns / BLOCK; block++) {
        for (int line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line);
        ahead += bytes;
        const Columns columns(group, scales);
        int row = 0;
        for (; row + 2 <= count; row += 2) {  // what does not fit the registers is read once for two
            const F one = columns.multiply(x[row], held[row]), other = columns.multiply(x[row + 1], held[row + 1]);
            held[row] = one;
            held[row + 1] = other;
        }
        for (; row < count; row++) held[row] = columns.multiply(x[row], held[row]);
        group += quant_step;
        scales += scale_step;
        x += stride;
    }
    for (int row = 0; row < count; row++) sums[row] = held[row];
}

template <class Columns>
void multiply_rows(const TandemWeight &w, const uint8_t *group, const Activations *x, int stride, int rows, F *sums) {
    switch (rows) {
        case 1: return multiply_group<Columns, 1>(w, group, x, stride, 1, sums);
        case 2: return multiply_group<Columns, 2>(w, group, x, stride, 2, sums);
        case 3: return multiply_group<Columns, 3>(w, group, x, stride, 3, sums);
        case 4: return multiply_group<Columns, 4>(w, group, x, stride, 4, sums);
        default: return multiply_group<Columns, 0>(w, group, x, stride, rows, sums);
    }
}

// What a strip gives for up to RUN rows: [rows][STRIP].
struct Strip {
    alignas(64) float values[RUN][STRIP];
};

// x: block b of row r at x[b x stride + r].
inline void multiply_strip(const TandemWeight &w, int strip, const Activations *x, int stride, int rows, Strip &out) {
    for (int g = 0; g < STRIP_GROUPS; g++) {
        const uint8_t *group = group_of(w, strip * STRIP_GROUPS + g);
        F sums[RUN];
        if (has_nibbles(w.format))
            multiply_rows<Nibbles>(w, group, x, stride, rows, sums);
        else
            multiply_rows<Bytes>(w, group, x, stride, rows, sums);
        const int first = strip * STRIP + g * LANES;
        for (int row = 0; row < rows; row++) {
            float *to = out.values[row] + g * LANES;
            store(to, sums[row]);
            if (w.bias)
                for (int lane = 0; lane < std::min(LANES, w.rows - first); lane++) to[lane] += w.bias[first + lane];
        }
    }
}

// take(row, first output, count, values) for every row and strip of this item.
template <class Take>
inline void linear_item(const TandemWeight &w, int strip, const Activations *x, int tokens, const Take &take) {
    Strip sums;
    const int first = strip * STRIP, count = std::min(STRIP, w.rows - first);
    for (int start = 0; start < tokens; start += RUN) {
        const int rows = std::min(RUN, tokens - start);
        multiply_strip(w, strip, x + start, tokens, rows, sums);
        for (int row = 0; row < rows; row++) take(start + row, first, count, sums.values[row]);
    }
}

}  // namespace
