// Attention of a ragged batch over paged KV memory, with flash-attention's recurrence.
//
// A tile is some queries of one row times the query heads that share one kv head: its lines read the same keys, which
// are loaded once for all of them. Where many rows have one query each, a tile has all heads of its row, and reads every
// block from end to end: memory gives pieces of 6 KB faster than pieces of 2 KB. Keys are taken SPAN at a time, from multiples of SPAN on: a query's result is the
// same bit for bit whatever else is in its tile. Nothing beyond a row's last position takes part, not even as 0 x NaN.
#pragma once
#include <limits>

#include "kv.h"

namespace {

constexpr int WIDE = 16;               // a tile of products is LINES x WIDE
constexpr int WIDE_VECTORS = WIDE / LANES;
constexpr int FEW = 3;                 // so many lines are multiplied with twice as much at a time
constexpr int LINES = 48;              // most lines of a tile
constexpr int SPAN = 128;              // keys between two corrections of the running maximum
constexpr int MAX_HEAD_DIM = 256;
constexpr int ROWS_A_THREAD = 4;       // from so many on, a row is not divided among threads

struct Tile {
    int row, kv_head, num_kv_heads, first_query, num_queries;
};

// Where a line of a tile belongs: lines are kv head by kv head, query by query, head by head.
struct Line {
    int query, head;

    Line(const TandemShape &s, const Tile &tile, int line) {
        const int group = s.heads / s.kv_heads, lines = tile.num_queries * group;
        query = line % lines / group;
        head = (tile.kv_head + line / lines) * group + line % group;
    }
};

struct AttentionScratch {
    // [lines][head_dim], without gaps: lines a power of two apart would share few places of the cache.
    alignas(64) float queries[LINES * MAX_HEAD_DIM];
    alignas(64) float out[LINES * MAX_HEAD_DIM];
    alignas(64) float scores[LINES][SPAN];
    float most[LINES], total[LINES];
};

// The right-hand side of a product: rows of WIDE values in a head's memory, and where, compared to it, the memory lies that
// is needed two blocks later. It is asked for line by line, as this one is read.
struct Wide {
    uint8_t *head;
    int64_t first;
    int stride, depth;
    int64_t ahead;
};

// c [M][WIDE] (+)= a [M][depth] x b [depth][WIDE]
template <class Kv, int M>
inline void multiply_tile(const float *a, int a_stride, const Wide &b, float *c, int c_stride, bool adds) {
    F sums[M][WIDE_VECTORS];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < WIDE_VECTORS; v++) sums[m][v] = adds ? load(c + m * c_stride + v * LANES) : zero();
    for (int k = 0; k < b.depth; k++) {
        F row[WIDE_VECTORS];
        const int64_t at = b.first + int64_t(k) * b.stride;
        for (int v = 0; v < WIDE_VECTORS; v++) row[v] = Kv::load_at(b.head, at + v * LANES);
        __builtin_prefetch(b.head + b.ahead + at * Kv::BYTES);
        for (int m = 0; m < M; m++) {
            const F x = all(a[m * a_stride + k]);
            for (int v = 0; v < WIDE_VECTORS; v++) sums[m][v] = fma(x, row[v], sums[m][v]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < WIDE_VECTORS; v++) store(c + m * c_stride + v * LANES, sums[m][v]);
}

// Two such products with the same a: few lines alone would wait for their own sums. c and its twin lie WIDE apart.
template <class Kv, int M>
inline void multiply_pair(const float *a, int a_stride, const Wide &b, const Wide &other, float *c, int c_stride, bool adds) {
    constexpr int V = 2 * WIDE_VECTORS;
    F sums[M][V];
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) sums[m][v] = adds ? load(c + m * c_stride + v * LANES) : zero();
    for (int k = 0; k < b.depth; k++) {
        F x[M];
        for (int m = 0; m < M; m++) x[m] = all(a[m * a_stride + k]);
        for (int half = 0; half < 2; half++) {
            const Wide &from = half ? other : b;
            const int64_t at = from.first + int64_t(k) * from.stride;
            for (int v = 0; v < WIDE_VECTORS; v++) {
                const F row = Kv::load_at(from.head, at + v * LANES);
                const int to = half * WIDE_VECTORS + v;
                for (int m = 0; m < M; m++) sums[m][to] = fma(x[m], row, sums[m][to]);
            }
            __builtin_prefetch(from.head + from.ahead + at * Kv::BYTES);
        }
    }
    for (int m = 0; m < M; m++)
        for (int v = 0; v < V; v++) store(c + m * c_stride + v * LANES, sums[m][v]);
}

template <class Kv>
inline void multiply_few(int lines, const float *a, int a_stride, const Wide &b, const Wide &other, float *c, int c_stride,
                         bool adds) {
    switch (lines) {
        case 1: return multiply_pair<Kv, 1>(a, a_stride, b, other, c, c_stride, adds);
        case 2: return multiply_pair<Kv, 2>(a, a_stride, b, other, c, c_stride, adds);
        default: return multiply_pair<Kv, FEW>(a, a_stride, b, other, c, c_stride, adds);
    }
}

template <class Kv>
inline void multiply_lines(int lines, const float *a, int a_stride, const Wide &b, float *c, int c_stride, bool adds) {
    int at = 0;
    const auto step = [&](auto count) {
        constexpr int M = decltype(count)::value;
        multiply_tile<Kv, M>(a + at * a_stride, a_stride, b, c + at * c_stride, c_stride, adds);
        at += M;
    };
    while (lines - at >= 6) step(std::integral_constant<int, 6>{});
    switch (lines - at) {
        case 5: return step(std::integral_constant<int, 5>{});
        case 4: return step(std::integral_constant<int, 4>{});
        case 3: return step(std::integral_constant<int, 3>{});
        case 2: return step(std::integral_constant<int, 2>{});
        case 1: return step(std::integral_constant<int, 1>{});
    }
}

// One span's scores of a line become weights; what was summed before is scaled to the new maximum.
inline void soften(AttentionScratch &s, int line, int start, int first, int last, int width, int head_dim) {
    float *scores = s.scores[line];
    const F hidden = all(-std::numeric_limits<float>::infinity());
    F top = hidden;
    for (int i = 0; i < width; i += LANES) {
        const F x = within(load(scores + i), hidden, start + i, first, last);
        store(scores + i, x);
        top = max(x, top);
    }
    const float most = std::max(s.most[line], largest(top));
    if (most == -std::numeric_limits<float>::infinity()) {
        for (int i = 0; i < width; i += LANES) store(scores + i, zero());
        return;
    }
    F total = zero();
    for (int i = 0; i < width; i += LANES) {
        // What is hidden must weigh exactly nothing, and e^x has a floor.
        const F weight = within(exponential(sub(load(scores + i), all(most))), zero(), start + i, first, last);
        store(scores + i, weight);
        total = add(total, weight);
    }
    float kept = 1;
    if (most > s.most[line]) {
        alignas(64) float scale[LANES];
        store(scale, exponential(all(s.most[line] - most)));
        kept = s.most[line] == -std::numeric_limits<float>::infinity() ? 0 : scale[0];
        float *out = s.out + line * head_dim;
        for (int i = 0; i < head_dim; i += LANES) store(out + i, mul(load(out + i), all(kept)));
        s.most[line] = most;
    }
    s.total[line] = s.total[line] * kept + sum(total);
}

inline void scale_scores(AttentionScratch &s, int first, int lines, int i, const float *scales) {
    for (int line = first; line < first + lines; line++)
        for (int j = 0; j < WIDE; j += LANES)
            store(&s.scores[line][i + j], mul(load(&s.scores[line][i + j]), load(scales + j)));
}

// lines: of each kv head; heads: kv heads, from kv_head on.
template <class Kv>
void attend_span(const TandemShape &shape, const TandemPools &pools, const int32_t *table, int kv_head, int heads, int lines,
                 int start, int stop, const int *firsts, const int *lasts, AttentionScratch &s) {
    const int d = shape.head_dim, bs = shape.block_size;
    const int width = (stop - start + WIDE - 1) / WIDE * WIDE, last_block = (lasts[lines - 1] - 1) / bs;
    const auto memory_of = [&](uint8_t *pool, int position, int head) {
        return head_of(pool, shape, table[position / bs], kv_head + head);
    };
    const auto later = [&](uint8_t *pool, int position, int head) {
        return head_of(pool, shape, table[std::min(position / bs + 2, last_block)], kv_head + head);
    };
    const auto keys_at = [&](int position, int head) {
        uint8_t *memory = memory_of(pools.keys, position, head);
        return Wide{memory, position % bs, bs, d, later(pools.keys, position, head) - memory};
    };
    for (int i = 0; i < width;) {
        const bool is_pair = lines <= FEW && i + WIDE < width;
        for (int head = 0; head < heads; head++) {
            const Wide keys = keys_at(start + i, head);
            const float *queries = s.queries + head * lines * d;
            float *scores = &s.scores[head * lines][i];
            if (is_pair)
                multiply_few<Kv>(lines, queries, d, keys, keys_at(start + i + WIDE, head), scores, SPAN, false);
            else
                multiply_lines<Kv>(lines, queries, d, keys, scores, SPAN, false);
        }
        i += is_pair ? 2 * WIDE : WIDE;
    }
    if (Kv::has_scales)
        for (int i = 0; i < width; i += WIDE)
            for (int head = 0; head < heads; head++)
                scale_scores(s, head * lines, lines, i,
                             scales_of_head(memory_of(pools.keys, start + i, head), shape) + (start + i) % bs);
    for (int line = 0; line < heads * lines; line++) soften(s, line, start, firsts[line], lasts[line], width, d);
    for (int i = 0; i < stop - start; i += WIDE) {
        const int position = start + i, depth = std::min(WIDE, stop - position);
        for (int head = 0; head < heads; head++) {
            uint8_t *memory = memory_of(pools.values, position, head);
            const int first = head * lines;
            if (Kv::has_scales)
                for (int line = first; line < first + lines; line++)
                    for (int j = 0; j < depth; j++)
                        s.scores[line][i + j] *= scales_of_head(memory, shape)[position % bs + j];
            const int64_t ahead = later(pools.values, position, head) - memory;
            const auto values_at = [&](int e) { return Wide{memory, int64_t(position % bs) * d + e, d, depth, ahead}; };
            float *out = s.out + first * d;
            for (int e = 0; e < d;) {
                if (lines <= FEW && e + WIDE < d) {
                    multiply_few<Kv>(lines, &s.scores[first][i], SPAN, values_at(e), values_at(e + WIDE), out + e, d, true);
                    e += 2 * WIDE;
                } else {
                    multiply_lines<Kv>(lines, &s.scores[first][i], SPAN, values_at(e), out + e, d, true);
                    e += WIDE;
                }
            }
        }
    }
}

// Fill s.out with the attention of one tile, line by line; returns how many there are.
template <class Kv>
int attend_tile(const TandemShape &shape, const TandemStep &step, const Tile &tile, const float *qkv, int qkv_stride,
                const TandemPools &pools, int window, AttentionScratch &s) {
    const int d = shape.head_dim, lines = tile.num_queries * (shape.heads / shape.kv_heads);
    const int all_lines = lines * tile.num_kv_heads;
    const int begin = step.cu_seqlens_q[tile.row], count = step.cu_seqlens_q[tile.row + 1] - begin;
    const int first_seen = step.kv_lens[tile.row] - count + tile.first_query;  // the position of the first query
    const float scale = 1 / std::sqrt(float(d));
    int firsts[LINES], lasts[LINES];
    for (int line = 0; line < all_lines; line++) {
        const Line at(shape, tile, line);
        const float *q = qkv + int64_t(begin + tile.first_query + at.query) * qkv_stride + at.head * d;
        for (int i = 0; i < d; i += LANES) {
            store(s.queries + line * d + i, mul(load(q + i), all(scale)));
            store(s.out + line * d + i, zero());
        }
        lasts[line] = first_seen + at.query + 1;
        firsts[line] = window > 0 ? std::max(0, lasts[line] - window) : 0;
        s.most[line] = -std::numeric_limits<float>::infinity();
        s.total[line] = 0;
    }
    const int32_t *table = step.block_table + int64_t(tile.row) * step.table_stride;
    const int stop = lasts[lines - 1];
    for (int start = firsts[0] / SPAN * SPAN; start < stop; start += SPAN)
        attend_span<Kv>(shape, pools, table, tile.kv_head, tile.num_kv_heads, lines, start, std::min(start + SPAN, stop),
                        firsts, lasts, s);
    for (int line = 0; line < all_lines; line++) {
        const F inverse = all(1 / s.total[line]);
        for (float *out = s.out + line * d, *end = out + d; out < end; out += LANES) store(out, mul(load(out), inverse));
    }
    return all_lines;
}

inline int attend_any(const TandemShape &shape, const TandemStep &step, const Tile &tile, const float *qkv,
                      int qkv_stride, const TandemPools &pools, int window, AttentionScratch &s) {
    switch (shape.kv_type) {
        case TANDEM_KV_F32: return attend_tile<Float32>(shape, step, tile, qkv, qkv_stride, pools, window, s);
        case TANDEM_KV_F16: return attend_tile<Float16>(shape, step, tile, qkv, qkv_stride, pools, window, s);
        default: return attend_tile<Int8>(shape, step, tile, qkv, qkv_stride, pools, window, s);
    }
}

// The tiles of a step, at most one for each token and kv head; returns how many.
inline int make_tiles(const TandemShape &shape, const TandemStep &step, Tile *tiles) {
    const int most = std::max(1, LINES / (shape.heads / shape.kv_heads));
    const bool are_many = shape.heads <= LINES && step.rows >= ROWS_A_THREAD * step.threads;
    int count = 0;
    for (int row = 0; row < step.rows; row++) {
        const int queries = step.cu_seqlens_q[row + 1] - step.cu_seqlens_q[row];
        const int heads = are_many && queries == 1 ? shape.kv_heads : 1;
        for (int first = 0; first < queries; first += most)
            for (int kv_head = 0; kv_head < shape.kv_heads; kv_head += heads)
                tiles[count++] = Tile{row, kv_head, heads, first, std::min(most, queries - first)};
    }
    return count;
}

}  // namespace
