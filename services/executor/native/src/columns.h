// 32 columns of a group of weights in registers, and their products with a few rows of activations.
#pragma once
#include "activations.h"

namespace {

// 32 columns of a group, ready to be multiplied. multiply: sums [ROWS][SIDES] += rows of activations times the block.
struct Nibbles {
    static constexpr bool HAS_OFFSETS = true;
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
    static constexpr bool HAS_OFFSETS = false;
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

}  // namespace
