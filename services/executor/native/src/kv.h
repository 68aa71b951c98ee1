// KV memory: how a cell is written and how sixteen values of it are read, for each type it may have.
//
// Keys lie transposed within their block, so that one vector meets the same element of many keys. Bytes have one scale
// for each token and head, after the block's values: the same whatever was written with it.
#pragma once
#include "rows.h"

namespace {

inline int64_t head_bytes(const TandemShape &s) {
    const int64_t cells = s.block_size;
    if (s.kv_type == TANDEM_KV_I8) return cells * (s.head_dim + int64_t(sizeof(float)));
    return cells * s.head_dim * (s.kv_type == TANDEM_KV_F16 ? 2 : 4);
}

inline uint8_t *head_of(uint8_t *pool, const TandemShape &s, int64_t block, int kv_head) {
    return pool + (block * s.kv_heads + kv_head) * head_bytes(s);
}

inline float *scales_of_head(uint8_t *head, const TandemShape &s) {
    return (float *)(head + int64_t(s.block_size) * s.head_dim);
}

// Element i of x goes to index first + i x step.
inline void write_cell(uint8_t *head, const TandemShape &s, int offset, const float *x, int64_t first, int64_t step) {
    const int size = s.head_dim;
    if (s.kv_type == TANDEM_KV_F32) {
        for (int i = 0; i < size; i++) ((float *)head)[first + i * step] = x[i];
    } else if (s.kv_type == TANDEM_KV_F16) {
        alignas(64) uint16_t halves[LANES];
        for (int i = 0; i < size; i += LANES) {
            store_half(halves, load(x + i));
            for (int j = 0; j < LANES; j++) ((uint16_t *)head)[first + (i + j) * step] = halves[j];
        }
    } else {
        F top = zero();
        for (int i = 0; i < size; i += LANES) top = max(top, magnitude(load(x + i)));
        const float most = largest(top);
        const F inverse = all(most > 0 ? 127 / most : 0);
        scales_of_head(head, s)[offset] = most / 127;
        alignas(64) int8_t bytes[LANES];
        for (int i = 0; i < size; i += LANES) {
            store_byte(bytes, to_int(mul(load(x + i), inverse)));
            for (int j = 0; j < LANES; j++) ((int8_t *)head)[first + (i + j) * step] = bytes[j];
        }
    }
}

inline void write_key(const TandemShape &s, uint8_t *head, int offset, const float *x) {
    write_cell(head, s, offset, x, offset, s.block_size);
}
inline void write_value(const TandemShape &s, uint8_t *head, int offset, const float *x) {
    write_cell(head, s, offset, x, int64_t(offset) * s.head_dim, 1);
}

// One token's queries and keys [heads + 2 kv_heads][head_dim], turned in place; its keys and values, stored.
inline void rotate_and_store_row(const TandemShape &s, const float *cos, const float *sin, int64_t cell, float *qkv,
                                 const TandemPools &pools) {
    const int turned = s.heads + s.kv_heads;
    for (int head = 0; head < turned; head++) rotate_head(qkv + head * s.head_dim, cos, sin, s.head_dim);
    const int64_t block = cell / s.block_size;
    const int offset = int(cell % s.block_size);
    for (int head = 0; head < s.kv_heads; head++) {
        write_key(s, head_of(pools.keys, s, block, head), offset, qkv + (s.heads + head) * s.head_dim);
        write_value(s, head_of(pools.values, s, block, head), offset, qkv + (turned + head) * s.head_dim);
    }
}

// LANES values from an index on, as floats.
struct Float32 {
    static F load_at(const uint8_t *head, int64_t i) { return load((const float *)head + i); }
    static constexpr int BYTES = 4;
    static constexpr bool has_scales = false;
};
struct Float16 {
    static F load_at(const uint8_t *head, int64_t i) { return load_half((const uint16_t *)head + i); }
    static constexpr int BYTES = 2;
    static constexpr bool has_scales = false;
};
struct Int8 {
    static F load_at(const uint8_t *head, int64_t i) { return load_byte((const int8_t *)head + i); }
    static constexpr int BYTES = 1;
    static constexpr bool has_scales = true;
};

}  // namespace
