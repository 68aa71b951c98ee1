// The table of one variant: each entry opens a parallel region around the kernels. Included last.
#pragma once
#include "forward.h"
#include "scores.h"

namespace {

void pack_entry(const TandemWeight *weight, const void *const *sources, int32_t threads) {
    together(threads, [&](Team &team) {
        team.each(num_strips(weight->rows), [&](int strip) {
            for (int g = 0; g < STRIP_GROUPS; g++) pack_group(*weight, sources, strip * STRIP_GROUPS + g);
        });
    });
}

void embed_entry(const TandemWeight *weight, const int64_t *ids, int32_t tokens, float *out) {
    for (int t = 0; t < tokens; t++) unpack_row(*weight, int(ids[t]), out + int64_t(t) * weight->columns);
}

void linear_entry(const TandemWeight *weight, const float *x, int32_t tokens, float *out, int32_t threads) {
    const int blocks = weight->columns / BLOCK;
    std::vector<Activations> activations(size_t(blocks) * size_t(tokens));
    together(threads, [&](Team &team) {
        team.each(tokens, [&](int t) {
            quantize_row(x + int64_t(t) * weight->columns, weight->columns, activations.data() + t, tokens);
        });
        team.each_in_runs(num_strips(weight->rows), [&](int strip) {
            linear_item(*weight, strip, activations.data(), tokens, [&](int t, int first, int count, const float *values) {
                memcpy(out + int64_t(t) * weight->rows + first, values, size_t(count) * 4);
            });
        });
    });
}

void add_normalize_entry(float *hidden, const float *delta, const float *weight, float eps, int32_t tokens,
                         int32_t size, float *out, int32_t threads) {
    together(threads, [&](Team &team) {
        team.each(tokens, [&](int t) {
            const int64_t at = int64_t(t) * size;
            if (delta) add_row(hidden + at, delta + at, size);
            normalize_row(hidden + at, weight, eps, size, out + at);
        });
    });
}

void rotate_and_store_entry(const TandemShape *shape, const TandemStep *step, const float *cos, const float *sin,
                            float *qkv, const TandemPools *pools) {
    together(step->threads, [&](Team &team) {
        team.each(step->tokens, [&](int t) {
            const int64_t at = step->positions[t] * (shape->head_dim / 2);
            rotate_and_store_row(*shape, cos + at, sin + at, step->slot_mapping[t], qkv + int64_t(t) * qkv_size(*shape),
                                 *pools);
        });
    });
}

void attend_entry(const TandemShape *shape, const TandemStep *step, const float *qkv, const TandemPools *pools,
                  int32_t window, float *out) {
    std::vector<Tile> tiles(size_t(step->tokens) * size_t(shape->kv_heads));
    const int count = make_tiles(*shape, *step, tiles.data());
    const std::unique_ptr<AttentionScratch[]> scratch(new AttentionScratch[size_t(step->threads)]);
    together(step->threads, [&](Team &team) {
        AttentionScratch &own = scratch[size_t(omp_get_thread_num())];
        team.each(count, [&](int index) {
            const Tile &tile = tiles[size_t(index)];
            const int lines = attend_any(*shape, *step, tile, qkv, qkv_size(*shape), *pools, window, own);
            for (int line = 0; line < lines; line++) {
                const Line at(*shape, tile, line);
                const int64_t t = step->cu_seqlens_q[tile.row] + tile.first_query + at.query;
                memcpy(out + (t * shape->heads + at.head) * shape->head_dim, own.out + line * shape->head_dim,
                       size_t(shape->head_dim) * 4);
            }
        });
    });
}

void gate_entry(const float *gate_up, int32_t tokens, int32_t ffn, float *out, int32_t threads) {
    together(threads, [&](Team &team) {
        team.each(tokens, [&](int t) {
            const float *row = gate_up + int64_t(t) * 2 * ffn;
            gate_row(row, row + ffn, ffn, out + int64_t(t) * ffn);
        });
    });
}

void check_entry(const float *scores, int32_t vocab, int32_t rows, uint8_t *finite, int32_t threads) {
    together(threads, [&](Team &team) {
        team.each(rows, [&](int row) { finite[row] = are_finite(scores + int64_t(row) * vocab, vocab); });
    });
}

void peaks_entry(const float *scores, int32_t vocab, int32_t block, int32_t rows, float *peaks, int32_t threads) {
    const int blocks = rows * (vocab / block), at_once = std::max(1, SCORES_AT_ONCE / block);
    together(threads, [&](Team &team) {
        team.each((blocks + at_once - 1) / at_once, [&](int part) {
            for (int at = part * at_once; at < std::min(blocks, (part + 1) * at_once); at++)
                peaks[at] = peak_of_block(scores + int64_t(at) * block, block);
        });
    });
}

void weigh_entry(const float *scores, int32_t vocab, int32_t block, const int64_t *rows, const float *best,
                 const float *factors, int32_t count, float *weights, float *sums, int32_t threads) {
    const int blocks = vocab / block, at_once = std::max(1, SCORES_AT_ONCE / block);
    const int parts = (blocks + at_once - 1) / at_once;
    together(threads, [&](Team &team) {
        team.each(count * parts, [&](int item) {
            const int64_t row = item / parts;
            const float *const own = scores + rows[row] * vocab;
            for (int at = item % parts * at_once; at < std::min(blocks, (item % parts + 1) * at_once); at++) {
                const int64_t first = int64_t(at) * block;
                sums[row * blocks + at] =
                    weigh_block(own + first, best[row], factors[row], block, weights + row * vocab + first);
            }
        });
    });
}

void ban_entry(float *scores, int32_t vocab, const int64_t *rows, const uint32_t *bits, int32_t count, int32_t threads) {
    const int words = (vocab + 31) / 32;
    together(threads, [&](Team &team) {
        team.each(count, [&](int index) {
            ban_in_row(scores + rows[index] * vocab, bits + int64_t(index) * words, vocab);
        });
    });
}

int64_t forward_bytes_entry(const TandemModel *model, int32_t tokens, int32_t threads) {
    return Workspace(*model, tokens, threads, nullptr).bytes;
}

void forward_entry(const TandemModel *model, const TandemStep *step, const TandemPools *pools, uint8_t *scratch,
                   float *out) {
    Forward forward(*model, *step, pools, scratch);
    together(step->threads, [&](Team &team) { forward.run(team, out); });
}

constexpr TandemKernels make_table(const char *name) {
    return {name,           LANES,    packed_bytes,          pack_entry,         embed_entry,
            linear_entry,   add_normalize_entry, rotate_and_store_entry, attend_entry, gate_entry,
            check_entry,    peaks_entry,         weigh_entry,            ban_entry,    forward_bytes_entry,
            forward_entry};
}

}  // namespace
