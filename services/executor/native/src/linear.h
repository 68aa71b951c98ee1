// Products with packed weights: each row of activations is quantized in blocks of 32 to 8 bits, the dot products are
// integer, and every block's sum is scaled into a float sum.
//
// A row's result is the same bit for bit whatever rows are computed with it: the order of additions is fixed by the
// weight alone. Rows are taken RUN at a time so that a block of weights, unpacked once, meets all of them; TILE of them
// share the registers with SIDES vectors of outputs, so that neither weights nor activations are loaded for one product.
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
constexpr int TILE = 4;       // rows whose sums fit the registers
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

// 32 columns of a group, ready to be multiplied. multiply: sums [ROWS][SIDES] += rows of activations times the block.
struct Nibbles {
    I w[VECTORS][SIDES];
    F scale[SIDES], offset[SIDES];

    explicit Nibbles(const uint8_t *block) {
        for (int i = 0; i < VECTORS / 2; i++)
            for (int side = 0; side < SIDES; side++) {
                const I both = load_int(block + (i * SIDES + side) * VECTOR_BYTES);
                w[i][side] = low_nibbles(both);
                w[i + VECTORS / 2][side] = high_nibbles(both);
            }
        const uint16_t *scales = (const uint16_t *)(block + GROUP * BLOCK / 2);
        for (int side = 0; side < SIDES; side++) {
            scale[side] = load_half(scales + side * LANES);
            offset[side] = load_half(scales + GROUP + side * LANES);
        }
    }

    template <int ROWS>
    inline void multiply(const Activations *x, F (*sums)[SIDES]) const {
        I products[ROWS][SIDES];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++) products[row][side] = zero_int();
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++)
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; row++) {
                const I a = four(x[row].q + 4 * i);
#pragma GCC unroll 2
                for (int side = 0; side < SIDES; side++) {
                    I &sum = products[row][side];
#if TANDEM_VNNI
                    sum = dot(sum, w[i][side], a);
#else
                    // 8 x 2 x 15 x 127 fits 16 bits.
                    sum = add_words(sum, pairs(w[i][side], a));
#endif
                    keep(sum);
                }
            }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++) {
                const I whole = TANDEM_VNNI ? products[row][side] : pairs_of_words(products[row][side], all_words(1));
                const F moved = fma(offset[side], all(x[row].total), sums[row][side]);
                sums[row][side] = fma(to_float(whole), mul(scale[side], all(x[row].scale)), moved);
            }
    }
};

struct Bytes {
    I w[VECTORS][SIDES];
    F scale[SIDES];

    explicit Bytes(const uint8_t *block) {
        for (int i = 0; i < VECTORS; i++)
            for (int side = 0; side < SIDES; side++) w[i][side] = load_int(block + (i * SIDES + side) * VECTOR_BYTES);
        const uint16_t *scales = (const uint16_t *)(block + GROUP * BLOCK);
        for (int side = 0; side < SIDES; side++) scale[side] = load_half(scales + side * LANES);
    }

    template <int ROWS>
    inline void multiply(const Activations *x, F (*sums)[SIDES]) const {
        I products[ROWS][SIDES];
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
            for (int side = 0; side < SIDES; side++)
                products[row][side] = TANDEM_VNNI ? all_int(-128 * x[row].sum) : zero_int();
#pragma GCC unroll 8
        for (int i = 0; i < VECTORS; i++)
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; row++) {
                const I a = four(x[row].q + 4 * i);
#pragma GCC unroll 2
                for (int side = 0; side < SIDES; side++) {
                    I &sum = products[row][side];
#if TANDEM_VNNI
                    sum = dot(sum, w[i][side], a);
#else
                    const I words = pairs(magnitude_bytes(w[i][side]), with_sign(a, w[i][side]));
                    sum = add_int(sum, pairs_of_words(words, all_words(1)));
#endif
                    keep(sum);
                }
            }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 2
            for (int side = 0; side < SIDES; side++)
                sums[row][side] =
                    fma(to_float(products[row][side]), mul(scale[side], all(x[row].scale)), sums[row][side]);
    }
};

template <class Columns>
inline void multiply_many(const Columns &columns, const Activations *x, int rows, F (*sums)[SIDES]) {
    for (; rows >= TILE; rows -= TILE, x += TILE, sums += TILE) columns.template multiply<TILE>(x, sums);
    switch (rows) {
        case 3: return columns.template multiply<3>(x, sums);
        case 2: return columns.template multiply<2>(x, sums);
        case 1: return columns.template multiply<1>(x, sums);
    }
}

// sums [rows][SIDES] = activations times one group. ROWS > 0: so many, in registers; 0: `rows` of them.
template <class Columns, int ROWS>
inline void multiply_group(const TandemWeight &w, const uint8_t *block, const Activations *x, int stride, int rows,
                           F (*sums)[SIDES]) {
    const int count = ROWS ? ROWS : rows, bytes = block_bytes(w.format);
    F held[ROWS ? ROWS : RUN][SIDES];
    for (int row = 0; row < count; row++)
        for (int side = 0; side < SIDES; side++) held[row][side] = zero();
    for (int left = w.columns / BLOCK; left > 0; left--, block += bytes, x += stride) {
        for (int line = 0; line < bytes; line += 64) __builtin_prefetch(block + AHEAD + line);
        const Columns columns(block);
        if constexpr (ROWS > 0)
            columns.template multiply<ROWS>(x, held);
        else
            multiply_many(columns, x, rows, held);
    }
    for (int row = 0; row < count; row++)
        for (int side = 0; side < SIDES; side++) sums[row][side] = held[row][side];
}

template <class Columns>
void multiply_rows(const TandemWeight &w, const uint8_t *group, const Activations *x, int stride, int rows,
                   F (*sums)[SIDES]) {
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
        F sums[RUN][SIDES];
        if (has_nibbles(w.format))
            multiply_rows<Nibbles>(w, group, x, stride, rows, sums);
        else
            multiply_rows<Bytes>(w, group, x, stride, rows, sums);
        const int first = strip * STRIP + g * GROUP;
        for (int row = 0; row < rows; row++) {
            float *to = out.values[row] + g * GROUP;
            for (int side = 0; side < SIDES; side++) store(to + side * LANES, sums[row][side]);
            if (w.bias)
                for (int i = 0; i < std::min(GROUP, w.rows - first); i++) to[i] += w.bias[first + i];
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
