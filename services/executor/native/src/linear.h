// Products with packed weights: each row of activations is quantized in blocks of 32 to 8 bits, the dot products are
// integer, and every block's sum is scaled into a float sum.
//
// A row's result is the same bit for bit whatever rows are computed with it: the order of additions is fixed by the
// weight alone. Rows are taken RUN at a time so that a block of weights, unpacked once, meets all of them; TILE of them
// share the registers with SIDES vectors of outputs, so that neither weights nor activations are loaded for one product.
// With AMX, tiles take over from a few rows on (tiles.h), to the same bits.
#pragma once
#include <algorithm>

#include "columns.h"
#if TANDEM_AMX
#include "tiles.h"
#endif

namespace {

constexpr int RUN = TANDEM_AMX ? 128 : 32;
constexpr int TILE = 4;       // rows whose sums fit the registers
constexpr int AHEAD = 3072;  // bytes: how far before their use weights are asked for

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
#if TANDEM_AMX
        if (rows >= FEWEST_ROWS)
            multiply_tiles(w, group, x, stride, rows, sums);
        else
#endif
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
