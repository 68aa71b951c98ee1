// Weights laid out for the kernels: LANES outputs side by side, 32 inputs at a time, still in their stored 4 or 8 bits.
//
// A group holds LANES rows. For every block of 32 columns it has 8 vectors; vector i holds, for each row, the 4 columns
// from 4 i on: four activations, repeated over a vector, meet all rows at once. 4-bit values: byte b of vector i < 4 has
// the value of vector i in its low half and that of vector i + 4 in its high half. After the blocks of a group come their
// scales (and offsets), one half for each row:
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
constexpr int STRIP_GROUPS = STRIP / LANES;
constexpr int VECTORS = BLOCK / 4;
constexpr int VECTOR_BYTES = LANES * 4;

inline bool has_nibbles(int32_t format) { return format == TANDEM_Q4_0 || format == TANDEM_Q4_1; }

// Bytes of one block of a group, and of its scales.
inline int quant_bytes(int32_t format) { return has_nibbles(format) ? VECTORS / 2 * VECTOR_BYTES : VECTORS * VECTOR_BYTES; }
inline int scale_bytes(int32_t format) { return has_nibbles(format) ? LANES * 4 : LANES * 2; }

inline int64_t group_bytes(int32_t format, int columns) {
    const int64_t bytes = int64_t(columns / BLOCK) * (quant_bytes(format) + scale_bytes(format));
    return (bytes + 63) / 64 * 64;
}

inline int num_strips(int rows) { return (rows + STRIP - 1) / STRIP; }

int64_t packed_bytes(int32_t format, int32_t rows, int32_t columns) {
    return num_strips(rows) * STRIP_GROUPS * group_bytes(format, columns);
}

inline const uint8_t *group_of(const TandemWeight &w, int group) {
    return w.packed + group * group_bytes(w.format, w.columns);
}
inline const uint16_t *scales_of(const TandemWeight &w, const uint8_t *group) {
    return (const uint16_t *)(group + int64_t(w.columns / BLOCK) * quant_bytes(w.format));
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

// Where a value lies in its block: the vector, and the byte within it.
struct Place {
    int vector, byte;

    Place(int lane, int column) : vector(column / 4), byte(lane * 4 + column % 4) {}
};

// Lay one block of a group out.
inline void pack_block(int32_t format, const Stored *lanes, uint8_t *quants, uint16_t *scales) {
    for (int lane = 0; lane < LANES; lane++) {
        const Stored &s = lanes[lane];
        scales[lane] = s.scale;
        if (has_nibbles(format)) {
            scales[LANES + lane] = s.offset;
            for (int i = 0; i < BLOCK / 2; i++) {
                const Place place(lane, i);
                quants[place.vector * VECTOR_BYTES + place.byte] = s.values[i] | s.values[i + BLOCK / 2] << 4;
            }
        } else {
            for (int i = 0; i < BLOCK; i++) {
                const Place place(lane, i);
                quants[place.vector * VECTOR_BYTES + place.byte] = s.values[i];
            }
        }
    }
}

inline void pack_group(const TandemWeight &w, const void *const *sources, int group) {
    uint8_t *quants = (uint8_t *)group_of(w, group);
    uint16_t *scales = (uint16_t *)scales_of(w, quants);
    for (int block = 0; block < w.columns / BLOCK; block++) {
        Stored lanes[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            const int row = group * LANES + lane;
            lanes[lane] = row < w.rows ? read_block(w.format, (const uint8_t *)sources[row], block) : Stored{};
        }
        pack_block(w.format, lanes, quants, scales);
        quants += quant_bytes(w.format);
        scales += scale_bytes(w.format) / 2;
    }
}

// One row back as floats.
void unpack_row(const TandemWeight &w, int row, float *out) {
    const uint8_t *group = group_of(w, row / LANES);
    const uint16_t *scales = scales_of(w, group);
    const int lane = row % LANES;
    for (int block = 0; block < w.columns / BLOCK; block++) {
        const uint8_t *quants = group + int64_t(block) * quant_bytes(w.format);
        const uint16_t *s = scales + block * (scale_bytes(w.format) / 2) + lane;
        const float scale = half_to_float(s[0]);
        const float offset = has_nibbles(w.format) ? half_to_float(s[LANES]) : 0;
        for (int i = 0; i < BLOCK; i++) {
            float q;
            if (has_nibbles(w.format)) {
                const Place place(lane, i % (BLOCK / 2));
                const uint8_t both = quants[place.vector * VECTOR_BYTES + place.byte];
                q = i < BLOCK / 2 ? both & 15 : both >> 4;
            } else {
                const Place place(lane, i);
                const uint8_t byte = quants[place.vector * VECTOR_BYTES + place.byte];
                q = TANDEM_VNNI ? float(byte) - 128 : float(int8_t(byte));
            }
            out[block * BLOCK + i] = scale * q + offset;
        }
    }
}

}  // namespace
