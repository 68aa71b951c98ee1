// Weights laid out for the kernels: GROUP outputs side by side, 32 inputs at a time, still in their stored 4 or 8 bits.
//
// A group holds GROUP rows: SIDES vectors of them. It is read from end to end, block by block of 32 columns. A block has 8
// times SIDES vectors; those of number i hold, for each row, the 4 columns from 4 i on: four activations, repeated over a
// vector, meet all rows at once. 4-bit values: byte b of number i < 4 has the value of number i in its low half and that
// of number i + 4 in its high half. The block ends with its scales (and then offsets), one half for each row:
//     value = scale x q + offset     Q4_1 as stored; Q4_0: offset = -8 scale; Q8_0: no offset, q has a sign.
// Rows are padded to whole strips with zeros. A strip is the least that one thread takes: STRIP rows.
#pragma once
#include <cmath>
#include <cstring>

#include "abi.h"
#include "simd.h"

namespace {

constexpr int BLOCK = 32;
constexpr int STRIP = 32;
constexpr int SIDES = 2;  // vectors of outputs that share the activations in a register
constexpr int GROUP = SIDES * LANES;
constexpr int STRIP_GROUPS = STRIP / GROUP;
constexpr int VECTORS = BLOCK / 4;
constexpr int VECTOR_BYTES = LANES * 4;

inline bool has_nibbles(int32_t format) { return format == TANDEM_Q4_0 || format == TANDEM_Q4_1; }

// Bytes of the values of one block of a group, and of all of it.
inline int quant_bytes(int32_t format) { return has_nibbles(format) ? GROUP * BLOCK / 2 : GROUP * BLOCK; }
inline int block_bytes(int32_t format) { return quant_bytes(format) + (has_nibbles(format) ? GROUP * 4 : GROUP * 2); }

inline int64_t group_bytes(int32_t format, int columns) {
    return (int64_t(columns / BLOCK) * block_bytes(format) + 63) / 64 * 64;
}

inline int num_strips(int rows) { return (rows + STRIP - 1) / STRIP; }

int64_t packed_bytes(int32_t format, int32_t rows, int32_t columns) {
    return num_strips(rows) * STRIP_GROUPS * group_bytes(format, columns);
}

inline const uint8_t *group_of(const TandemWeight &w, int group) {
    return w.packed + group * group_bytes(w.format, w.columns);
}

// One stored block of 32 values: its scale, its offset, and the values as bytes.
struct Stored {
    uint16_t scale, offset;
    uint8_t values[BLOCK];
};

inline void read_nibbles(const uint8_t *from, uint8_t *values) {
    for (int i = 0; i < BLOCK / 2; i++) {
        values[i] = from[i] & 15;
        values[i + BLOCK / 2] = from[i] >> 4;
    }
}

inline Stored read_block(int32_t format, const uint8_t *row, int block) {
    Stored s{};
    if (format == TANDEM_Q4_1) {
        const uint8_t *p = row + block * 20;
        memcpy(&s.scale, p, 2);
        memcpy(&s.offset, p + 2, 2);
        read_nibbles(p + 4, s.values);
    } else if (format == TANDEM_Q4_0) {
        const uint8_t *p = row + block * 18;
        memcpy(&s.scale, p, 2);
        s.offset = float_to_half(-8.0f * half_to_float(s.scale));
        read_nibbles(p + 2, s.values);
    } else if (format == TANDEM_Q8_0) {
        const uint8_t *p = row + block * 34;
        memcpy(&s.scale, p, 2);
        memcpy(s.values, p + 2, BLOCK);
    } else {
        const float *p = (const float *)row + block * BLOCK;
        float top = 0;
        for (int i = 0; i < BLOCK; i++) top = std::fmax(top, std::fabs(p[i]));
        s.scale = float_to_half(top / 127);
        const float scale = half_to_float(s.scale);
        const float inverse = scale > 0 ? 1 / scale : 0;
        for (int i = 0; i < BLOCK; i++) {
            const float q = std::nearbyint(p[i] * inverse);
            s.values[i] = uint8_t(int8_t(std::fmax(-127.0f, std::fmin(127.0f, q))));
        }
    }
#if TANDEM_VNNI
    // The dot product takes bytes without a sign; linear.h takes the 128 away again.
    if (!has_nibbles(format))
        for (uint8_t &value : s.values) value ^= 0x80;
#endif
    return s;
}

// The byte of a block in which a value lies, of its rows and columns.
inline int place(int row, int column) { return column / 4 * (GROUP * 4) + row * 4 + column % 4; }

// Lay one block of a group out.
inline void pack_block(int32_t format, const Stored *rows, uint8_t *block) {
    uint16_t *scales = (uint16_t *)(block + quant_bytes(format));
    for (int row = 0; row < GROUP; row++) {
        const Stored &s = rows[row];
        scales[row] = s.scale;
        if (has_nibbles(format)) {
            scales[GROUP + row] = s.offset;
            for (int i = 0; i < BLOCK / 2; i++) block[place(row, i)] = s.values[i] | s.values[i + BLOCK / 2] << 4;
        } else {
            for (int i = 0; i < BLOCK; i++) block[place(row, i)] = s.values[i];
        }
    }
}

inline void pack_group(const TandemWeight &w, const void *const *sources, int group) {
    uint8_t *at = (uint8_t *)group_of(w, group);
    for (int block = 0; block < w.columns / BLOCK; block++, at += block_bytes(w.format)) {
        Stored rows[GROUP];
        for (int i = 0; i < GROUP; i++) {
            const int row = group * GROUP + i;
            rows[i] = row < w.rows ? read_block(w.format, (const uint8_t *)sources[row], block) : Stored{};
        }
        pack_block(w.format, rows, at);
    }
}

// One row back as floats.
void unpack_row(const TandemWeight &w, int row, float *out) {
    const uint8_t *at = group_of(w, row / GROUP);
    const int within = row % GROUP;
    for (int block = 0; block < w.columns / BLOCK; block++, at += block_bytes(w.format)) {
        const uint16_t *scales = (const uint16_t *)(at + quant_bytes(w.format)) + within;
        const float scale = half_to_float(scales[0]);
        const float offset = has_nibbles(w.format) ? half_to_float(scales[GROUP]) : 0;
        for (int i = 0; i < BLOCK; i++) {
            float q;
            if (has_nibbles(w.format)) {
                const uint8_t both = at[place(within, i % (BLOCK / 2))];
                q = i < BLOCK / 2 ? both & 15 : both >> 4;
            } else {
                const uint8_t byte = at[place(within, i)];
                q = TANDEM_VNNI ? float(byte) - 128 : float(int8_t(byte));
            }
            out[block * BLOCK + i] = scale * q + offset;
        }
    }
}

}  // namespace
