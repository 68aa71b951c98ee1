// Products of many rows with AMX: tiles of 16 rows, 32 columns and 16 outputs, whose sums are the integers that columns.h
// finds, scaled and added in the order in which it does so. So the two agree to the last bit, and the number of rows may
// choose between them.
//
// Weights are unpacked to bytes a panel of columns at a time, which stays in the nearest cache while all rows meet it.
// Activations are read where they lie. A tile's sums go through memory to the vectors that scale them: those of the next
// block are under way meanwhile. The processor's tiles are configured and given back within a call, so nobody else who
// uses them in this thread is disturbed.
#pragma once
#include "columns.h"

namespace {

constexpr int TILE_ROWS = 16;
constexpr int FEWEST_ROWS = 8;  // with fewer, unpacking to memory costs more than it saves
constexpr int PANEL = 16;       // blocks of columns: 20 KB unpacked

// Numbers of the processor's tiles. Sums alternate between two; the last rows, fewer than 16, have tiles of their own.
constexpr int SUMS = 0, ROWS = 2, LAST_SUMS = 3, LAST_ROWS = 5, WEIGHTS = 6;

struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    explicit TileShapes(int last_rows) {
        const auto set = [&](int tile, int num_rows, int bytes) {
            rows[tile] = uint8_t(num_rows);
            row_bytes[tile] = uint16_t(num_rows ? bytes : 0);
        };
        for (int i = 0; i < 2; i++) {
            set(SUMS + i, TILE_ROWS, LANES * 4);
            set(LAST_SUMS + i, last_rows, LANES * 4);
        }
        set(ROWS, TILE_ROWS, BLOCK);
        set(LAST_ROWS, last_rows, BLOCK);
        set(WEIGHTS, VECTORS, VECTOR_BYTES);
    }
};

inline void configure(const TileShapes &shapes) { asm volatile("ldtilecfg %0" ::"m"(shapes)); }
inline void release_tiles() { asm volatile("tilerelease"); }
// memory: all that is read or written, so that the compiler knows; whatever else is in registers may stay there.
template <int TILE, class Memory>
inline void load_tile(const Memory &memory, const void *from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(TILE), "m"(memory));
}
template <int TILE, class Memory>
inline void store_tile(Memory &memory, int64_t stride) {
    asm volatile("tilestored %%tmm%c3, (%1,%2,1)" : "=m"(memory) : "r"(&memory), "r"(stride), "i"(TILE));
}
// sums = rows times weights; both are bytes with a sign.
template <int SUM, int ROW>
inline void multiply_tile_of_bytes() {
    asm volatile("tilezero %%tmm%c0\n\ttdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(SUM), "i"(ROW), "i"(WEIGHTS));
}

// Some blocks of a group, as bytes with a sign.
struct Panel {
    alignas(64) int8_t values[PANEL][SIDES][VECTORS][VECTOR_BYTES];
    F scale[PANEL][SIDES], offset[PANEL][SIDES];

    template <class Columns>
    void unpack(const uint8_t *block, int bytes, int count) {
        // Bytes are kept without a sign: weights.h.
        const I flipped = _mm512_set1_epi8(Columns::HAS_OFFSETS ? 0 : char(0x80));
        for (int b = 0; b < count; b++, block += bytes) {
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(block + PANEL * bytes + line);
            const Columns columns(block);
            for (int side = 0; side < SIDES; side++) {
                for (int i = 0; i < VECTORS; i++)
                    _mm512_store_si512(values[b][side][i], _mm512_xor_si512(columns.w[i][side], flipped));
                scale[b][side] = columns.scale[side];
                if constexpr (Columns::HAS_OFFSETS) offset[b][side] = columns.offset[side];
            }
        }
    }
};

// The sums of two blocks: one is computed while the other is scaled.
struct alignas(64) Dots {
    int32_t of[2][TILE_ROWS][LANES];
};

template <int COUNT, int TURN>
inline void find_dots(const Panel &panel, int side, int block, const Activations *x, int stride, Dots &dots) {
    constexpr bool is_whole = COUNT == TILE_ROWS;
    constexpr int sum = (is_whole ? SUMS : LAST_SUMS) + TURN, row = is_whole ? ROWS : LAST_ROWS;
    const auto &rows = *reinterpret_cast<const Activations(*)[COUNT]>(x + int64_t(block) * stride);
    load_tile<row>(rows, rows[0].q, sizeof(Activations));
    load_tile<WEIGHTS>(panel.values[block][side], panel.values[block][side], VECTOR_BYTES);
    multiply_tile_of_bytes<sum, row>();
    store_tile<sum>(dots.of[TURN], LANES * 4);
}

template <bool HAS_OFFSETS>
inline void scale_row(F scale, F offset, const Activations &x, const int32_t *dots, F &sum) {
    const F moved = HAS_OFFSETS ? fma(offset, all(x.total), sum) : sum;
    sum = fma(to_float(load_int(dots)), mul(scale, all(x.scale)), moved);
}

// sums [rows]: one side of a panel is added. Rows are written out, not looped over, so that their sums stay in registers.
template <bool HAS_OFFSETS, int... ROW>
void multiply_panel(std::integer_sequence<int, ROW...>, const Panel &panel, int side, int blocks, const Activations *x,
                    int stride, F (*sums)[SIDES]) {
    constexpr int COUNT = sizeof...(ROW);
    F held[COUNT] = {sums[ROW][side]...};
    Dots dots;
    const auto scale = [&](int block, int turn) __attribute__((always_inline)) {
        const Activations *at = x + int64_t(block) * stride;
        (scale_row<HAS_OFFSETS>(panel.scale[block][side], panel.offset[block][side], at[ROW], dots.of[turn][ROW], held[ROW]), ...);
    };
    find_dots<COUNT, 0>(panel, side, 0, x, stride, dots);
    for (int block = 0; block < blocks; block += 2) {
        if (block + 1 < blocks) find_dots<COUNT, 1>(panel, side, block + 1, x, stride, dots);
        scale(block, 0);
        if (block + 1 == blocks) break;
        if (block + 2 < blocks) find_dots<COUNT, 0>(panel, side, block + 2, x, stride, dots);
        scale(block + 1, 1);
    }
    ((sums[ROW][side] = held[ROW]), ...);
}

// The same for `rows` of them, which are known at run time: one of 1 .. TILE_ROWS.
template <bool HAS_OFFSETS, int... BEFORE>
inline void multiply_panel_rows(std::integer_sequence<int, BEFORE...>, int rows, const Panel &panel, int side, int blocks,
                                const Activations *x, int stride, F (*sums)[SIDES]) {
    ((rows == BEFORE + 1 ? multiply_panel<HAS_OFFSETS>(std::make_integer_sequence<int, BEFORE + 1>(), panel, side, blocks, x,
                                                       stride, sums)
                         : void()),
     ...);
}

template <class Columns>
void multiply_group_tiles(const TandemWeight &w, const uint8_t *block, const Activations *x, int stride, int rows,
                          F (*sums)[SIDES]) {
    constexpr std::make_integer_sequence<int, TILE_ROWS> every_count;
    const int all_blocks = w.columns / BLOCK, bytes = block_bytes(w.format);
    Panel panel;
    for (int row = 0; row < rows; row++)
        for (int side = 0; side < SIDES; side++) sums[row][side] = zero();
    for (int first = 0; first < all_blocks; first += PANEL, block += PANEL * bytes, x += int64_t(PANEL) * stride) {
        const int blocks = std::min(PANEL, all_blocks - first);
        panel.template unpack<Columns>(block, bytes, blocks);
        for (int row = 0; row < rows; row += TILE_ROWS)
            for (int side = 0; side < SIDES; side++)
                multiply_panel_rows<Columns::HAS_OFFSETS>(every_count, std::min(TILE_ROWS, rows - row), panel, side, blocks,
                                                          x + row, stride, sums + row);
    }
}

// sums [rows][SIDES] = activations times one group. x: block b of row r at x[b x stride + r].
inline void multiply_tiles(const TandemWeight &w, const uint8_t *group, const Activations *x, int stride, int rows,
                           F (*sums)[SIDES]) {
    const TileShapes shapes(rows % TILE_ROWS);
    configure(shapes);
    if (has_nibbles(w.format))
        multiply_group_tiles<Nibbles>(w, group, x, stride, rows, sums);
    else
        multiply_group_tiles<Bytes>(w, group, x, stride, rows, sums);
    release_tiles();
}

}  // namespace
