// A whole step: every layer of a Llama over the packed batch, in one parallel region.
//
// Phases of a layer, each begun when the one before is done: the norm of each token and its quantization; q, k and v; rotation and the
// writing of KV; attention, quantized as it leaves; its projection, added to the hidden states; the second norm; gate
// and up, silu x up, quantized as it leaves; down, added to the hidden states.
#pragma once
#include "attention.h"
#include "team.h"

namespace {

inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline int qkv_size(const TandemShape &s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

// Where the intermediate results of a step lie.
struct Workspace {
    float *hidden;         // [T][hidden]
    float *qkv;            // [T][(heads + 2 kv_heads) x head_dim]
    Activations *narrow;   // [max(hidden, heads x head_dim) / BLOCK][T]
    Activations *wide;     // [ffn / BLOCK][T]
    float *normed;         // [threads][hidden]
    Tile *tiles;           // [T x kv_heads]
    AttentionScratch *attention;  // [threads]
    int64_t bytes;

    Workspace(const TandemModel &m, int tokens, int threads, uint8_t *at) {
        uint8_t *const start = at;
        const auto take = [&](int64_t bytes) {
            uint8_t *const here = at;
            at += aligned(bytes);
            return here;
        };
        const int64_t t = tokens, narrow_size = std::max(m.hidden, m.shape.heads * m.shape.head_dim);
        hidden = (float *)take(t * m.hidden * 4);
        qkv = (float *)take(t * qkv_size(m.shape) * 4);
        narrow = (Activations *)take(t * (narrow_size / BLOCK) * int64_t(sizeof(Activations)));
        wide = (Activations *)take(t * (m.ffn / BLOCK) * int64_t(sizeof(Activations)));
        normed = (float *)take(threads * int64_t(m.hidden) * 4);
        tiles = (Tile *)take(t * m.shape.kv_heads * int64_t(sizeof(Tile)));
        attention = (AttentionScratch *)take(threads * int64_t(sizeof(AttentionScratch)));
        bytes = at - start;
    }
};

class Forward {
  public:
    Forward(const TandemModel &m, const TandemStep &step, const TandemPools *pools, uint8_t *scratch)
        : m_(m), step_(step), pools_(pools), w_(m, step.tokens, step.threads, scratch) {
        num_tiles_ = make_tiles(m.shape, step, w_.tiles);
    }

    void run(Team &team, float *out) {
        AttentionScratch &scratch = w_.attention[omp_get_thread_num()];
        each_token(team, [&](int t) {
            unpack_row(m_.embedding, int(step_.token_ids[t]), hidden(t));
            normalize(t, m_.layer[0].attention_norm);
        });
        for (int index = 0; index < m_.layers; index++) {
            const TandemLayer &layer = m_.layer[index];
            linear(team, layer.qkv, w_.narrow, [&](int t, int first, int count, const float *values) {
                memcpy(qkv(t) + first, values, size_t(count) * 4);
            });
            each_token(team, [&](int t) { store_kv(layer, pools_[index], t); });
            team.each(num_tiles_, [&](int tile) { attend(layer, pools_[index], w_.tiles[tile], scratch); });
            linear(team, layer.attention_out, w_.narrow, [&](int t, int first, int count, const float *values) {
                add_row(hidden(t) + first, values, count);
            });
            each_token(team, [&](int t) { normalize(t, layer.ffn_norm); });
            team.each_in_runs(m_.ffn / STRIP, [&](int strip) { gate_up(layer, strip); });
            linear(team, layer.down, w_.wide, [&](int t, int first, int count, const float *values) {
                add_row(hidden(t) + first, values, count);
            });
            if (index + 1 < m_.layers) each_token(team, [&](int t) { normalize(t, m_.layer[index + 1].attention_norm); });
        }
        each_token(team, [&](int t) {
            normalize_row(hidden(t), m_.norm, m_.eps, m_.hidden, out + int64_t(t) * m_.hidden);
        });
    }

  private:
    static constexpr int TOKENS = 4;  // taken at once

    float *hidden(int t) const { return w_.hidden + int64_t(t) * m_.hidden; }
    float *qkv(int t) const { return w_.qkv + int64_t(t) * qkv_size(m_.shape); }

    template <class Body>
    void each_token(Team &team, const Body &body) {
        const int tokens = step_.tokens;
        team.each((tokens + TOKENS - 1) / TOKENS, [&](int item) {
            for (int t = item * TOKENS; t < std::min(tokens, (item + 1) * TOKENS); t++) body(t);
        });
    }

    template <class Take>
    void linear(Team &team, const TandemWeight &w, const Activations *x, const Take &take) {
        team.each_in_runs(num_strips(w.rows), [&](int strip) { linear_item(w, strip, x, step_.tokens, take); });
    }

    void normalize(int t, const float *weight) {
        float *normed = w_.normed + int64_t(omp_get_thread_num()) * m_.hidden;
        normalize_row(hidden(t), weight, m_.eps, m_.hidden, normed);
        quantize_row(normed, m_.hidden, w_.narrow + t, step_.tokens);
    }

    void store_kv(const TandemLayer &layer, const TandemPools &pools, int t) {
        const TandemShape &s = m_.shape;
        float *heads = qkv(t);
        for (int head = 0; head < s.heads + s.kv_heads; head++) {
            const float *norm = head < s.heads ? layer.q_norm : layer.k_norm;
            float *x = heads + head * s.head_dim;
            if (norm) normalize_row(x, norm, m_.eps, s.head_dim, x);
        }
        const int64_t at = step_.positions[t] * (s.head_dim / 2);
        rotate_and_store_row(s, m_.cos + at, m_.sin + at, step_.slot_mapping[t], heads, pools);
    }

    void attend(const TandemLayer &layer, const TandemPools &pools, const Tile &tile, AttentionScratch &scratch) {
        const TandemShape &s = m_.shape;
        const int lines = attend_any(s, step_, tile, w_.qkv, qkv_size(s), pools, layer.window, scratch);
        const int blocks = s.head_dim / BLOCK;
        for (int line = 0; line < lines; line++) {
            const Line at(s, tile, line);
            const int t = step_.cu_seqlens_q[tile.row] + tile.first_query + at.query;
            quantize_row(scratch.out + line * s.head_dim, s.head_dim,
                         w_.narrow + int64_t(at.head) * blocks * step_.tokens + t, step_.tokens);
        }
    }

    // Rows of gate and up lie in turns of STRIP, so two strips give one block of activations.
    void gate_up(const TandemLayer &layer, int strip) {
        Strip gate, up;
        alignas(64) float gated[STRIP];
        for (int start = 0; start < step_.tokens; start += RUN) {
            const int rows = std::min(RUN, step_.tokens - start);
            multiply_strip(layer.gate_up, 2 * strip, w_.narrow + start, step_.tokens, rows, gate);
            multiply_strip(layer.gate_up, 2 * strip + 1, w_.narrow + start, step_.tokens, rows, up);
            for (int row = 0; row < rows; row++) {
                gate_row(gate.values[row], up.values[row], STRIP, gated);
                quantize_block(gated, w_.wide[int64_t(strip) * step_.tokens + start + row]);
            }
        }
    }

    const TandemModel &m_;
    const TandemStep &step_;
    const TandemPools *pools_;
    const Workspace w_;
    int num_tiles_;
};

}  // namespace
