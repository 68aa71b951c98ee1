// A whole step of a random model: against the same step put together from AVX2's kernels, and against itself in parts.
#pragma once
#include <memory>

#include "cells.h"
#include "products.h"

constexpr int VOCAB = 40;
constexpr int POSITIONS = 200;
constexpr float EPS = 1e-5f;

// Packed by one variant; `stored` is the same for all of them.
struct StoredModel {
    TandemShape shape;
    int hidden, ffn, window;
    bool has_head_norms;
    std::vector<Stored> weights;  // the embedding, then four for each layer
    std::vector<Memory<float>> norms;
    Memory<float> cos, sin, bias;

    StoredModel(Draw &draw, int layers)
        : shape(random_shape(draw, {32, 64, 128})), hidden(32 * draw.between(1, 8)), ffn(32 * draw.between(1, 10)),
          window(draw.chance(0.3) ? draw.between(1, 60) : 0), has_head_norms(draw.chance(0.3)),
          cos(random_values(draw, POSITIONS * shape.head_dim / 2, 0.7f)),
          sin(random_values(draw, POSITIONS * shape.head_dim / 2, 0.7f)), bias(random_values(draw, qkv_size())) {
        const auto add = [&](int rows, int columns) { weights.emplace_back(draw, draw.between(0, 3), rows, columns); };
        add(VOCAB, hidden);
        for (int i = 0; i < layers; i++) {
            add(qkv_size(), hidden);
            add(hidden, shape.heads * shape.head_dim);
            add(2 * ffn, hidden);
            add(hidden, ffn);
        }
        for (int size : {hidden, hidden, hidden, shape.head_dim, shape.head_dim})
            norms.push_back(random_values(draw, size));
    }

    int qkv_size() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
    int layers() const { return int(weights.size()) / 4; }
};

struct PackedModel {
    std::vector<std::unique_ptr<Packed>> weights;
    std::vector<TandemLayer> layers;
    TandemModel model;

    PackedModel(const TandemKernels &kernels, const StoredModel &m) {
        for (size_t i = 0; i < m.weights.size(); i++)
            weights.push_back(std::make_unique<Packed>(kernels, m.weights[i], i % 4 == 1 ? m.bias.data() : nullptr));
        for (int i = 0; i < m.layers(); i++) {
            const auto weight = [&](int which) { return weights[size_t(1 + 4 * i + which)]->weight; };
            const float *q_norm = m.has_head_norms ? m.norms[3].data() : nullptr;
            const float *k_norm = m.has_head_norms ? m.norms[4].data() : nullptr;
            layers.push_back({m.norms[0].data(), m.norms[1].data(), q_norm, k_norm, weight(0), weight(1), weight(2), weight(3),
                              i % 2 ? 0 : m.window});
        }
        model = {m.shape, m.layers(), m.hidden, m.ffn, EPS, m.cos.data(), m.sin.data(), m.norms[2].data(),
                 weights[0]->weight, layers.data()};
    }
};

// The KV memory of every layer.
struct Memories {
    std::vector<Pool> pools;
    std::vector<TandemPools> structs;

    Memories(const Memories &) = delete;
    Memories &operator=(const Memories &) = delete;
    Memories(const TandemShape &shape, int blocks, int layers) {
        for (int i = 0; i < 2 * layers; i++) pools.emplace_back(shape, blocks, i % 2 == 0);
        for (int i = 0; i < layers; i++) structs.push_back({pools[size_t(2 * i)].data(), pools[size_t(2 * i + 1)].data()});
    }
    // The history of every row, as bytes, layer by layer.
    void fill(Draw &draw, const TandemShape &shape, const Step &step) const {
        for (int row = 0; row < int(step.rows().size()); row++)
            for (int i = 0; i < step.rows()[size_t(row)].positions - step.rows()[size_t(row)].queries; i++)
                for (const Pool &pool : pools) pool.fill(draw, step.cell(shape, row, i));
    }
    void copy_from(const Memories &other) const {
        for (size_t i = 0; i < pools.size(); i++) std::memcpy(pools[i].data(), other.pools[i].data(), size_t(pools[i].num_bytes()));
    }
    bool equals(const Memories &other) const {
        for (size_t i = 0; i < pools.size(); i++)
            if (std::memcmp(pools[i].data(), other.pools[i].data(), size_t(pools[i].num_bytes()))) return false;
        return true;
    }
};

inline Memory<float> forward(const TandemKernels &kernels, const TandemModel &model, const TandemStep &step,
                             const Memories &memories, Report &report) {
    Memory<uint8_t> scratch(kernels.forward_bytes(&model, step.tokens, step.threads), 0xff);
    Memory<float> out(int64_t(step.tokens) * model.hidden, NOT_A_NUMBER);
    kernels.forward(&model, &step, memories.structs.data(), scratch.data(), out.data());
    report.expect(out.has_clean_edges() && scratch.has_clean_edges(), "a step writes elsewhere");
    for (const Pool &pool : memories.pools) report.expect(pool.has_clean_edges(), "a step writes beyond its KV memory");
    return out;
}

// Rows of gate and up lie in turns of 32 in a model; the gate takes one after the other.
inline void put_in_order(const Memory<float> &turns, const Memory<float> &halves, int ffn) {
    for (int64_t i = 0; i < turns.size(); i++) {
        const int64_t token = i / (2 * ffn), at = i % (2 * ffn);
        halves[token * 2 * ffn + at / 32 % 2 * ffn + at / 64 * 32 + at % 32] = turns[i];
    }
}

// The same step from the kernels of a table, one after the other.
inline Memory<float> composed(const TandemKernels &k, const TandemModel &m, const TandemStep &step, const Memories &memories) {
    const TandemShape &s = m.shape;
    const int64_t tokens = step.tokens;
    const int d = s.head_dim, heads = s.heads + 2 * s.kv_heads;
    Memory<float> hidden(tokens * m.hidden), normed(hidden.size()), delta(hidden.size()), qkv(tokens * heads * d);
    Memory<float> attended(tokens * s.heads * d), turns(tokens * 2 * m.ffn), halves(turns.size()), gated(tokens * m.ffn);
    const auto normalize = [&](const float *added, const float *weight) {
        k.add_normalize(hidden.data(), added, weight, m.eps, step.tokens, m.hidden, normed.data(), 1);
    };
    k.embed(&m.embedding, step.token_ids, step.tokens, hidden.data());
    for (int index = 0; index < m.layers; index++) {
        const TandemLayer &layer = m.layer[index];
        normalize(index ? delta.data() : nullptr, layer.attention_norm);
        k.linear(&layer.qkv, normed.data(), step.tokens, qkv.data(), 1);
        for (int64_t head = 0; head < tokens * heads && layer.q_norm; head++) {
            const int which = int(head % heads);
            if (which >= s.heads + s.kv_heads) continue;
            Memory<float> one(d);
            std::memcpy(one.data(), &qkv[head * d], size_t(d) * 4);
            k.add_normalize(one.data(), nullptr, which < s.heads ? layer.q_norm : layer.k_norm, m.eps, 1, d, &qkv[head * d], 1);
        }
        k.rotate_and_store(&s, &step, m.cos, m.sin, qkv.data(), &memories.structs[size_t(index)]);
        k.attend(&s, &step, qkv.data(), &memories.structs[size_t(index)], layer.window, attended.data());
        k.linear(&layer.attention_out, attended.data(), step.tokens, delta.data(), 1);
        normalize(delta.data(), layer.ffn_norm);
        k.linear(&layer.gate_up, normed.data(), step.tokens, turns.data(), 1);
        put_in_order(turns, halves, m.ffn);
        k.gate(halves.data(), step.tokens, m.ffn, gated.data(), 1);
        k.linear(&layer.down, gated.data(), step.tokens, delta.data(), 1);
    }
    normalize(delta.data(), m.norm);
    return normed;
}

// How far rows are from the wanted ones, compared to their size.
inline double distance(const Memory<float> &got, const Memory<float> &wanted) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < got.size(); i++) {
        apart += std::pow(double(got[i]) - wanted[i], 2);
        size += std::pow(double(wanted[i]), 2);
    }
    return std::sqrt(apart / (size + 1e-30));
}

// Every row once more, in chunks of its own: the same bits, and the same KV memory.
inline void check_parts(const TandemKernels &kernels, const TandemModel &model, const Step &step, const Memories &memories,
                        const Memory<float> &whole, Draw &draw, Report &report) {
    for (int row = 0; row < int(step.rows().size()); row++) {
        const int queries = step.rows()[size_t(row)].queries;
        for (int first = 0; first < queries;) {
            const int count = std::min(queries - first, draw.chance(0.3) ? 1 : draw.between(2, 60));
            const Part part(step, row, first, count, draw.between(1, 2));
            const Memory<float> alone = forward(kernels, model, part.step, memories, report);
            report.expect(same_bits(alone.data(), &whole[part.at * model.hidden], alone.size()),
                          "tokens %d to %d of %d of a row differ in company", first, first + count, queries);
            first += count;
        }
    }
}

inline void check_steps(const TandemKernels &kernels, const TandemKernels &proven, Draw &draw, Report &report, int rounds) {
    for (int round = 0; round < rounds; round++) {
        const StoredModel stored(draw, draw.between(1, 2));
        const PackedModel own(kernels, stored), other(proven, stored);
        const Step step(draw, stored.shape, random_batch(draw, draw.one_of({20, 190})), VOCAB, draw.between(1, 3));
        const Memories mine(stored.shape, step.blocks, stored.layers()), again(stored.shape, step.blocks, stored.layers()),
            theirs(stored.shape, step.blocks, stored.layers());
        mine.fill(draw, stored.shape, step);
        for (const Memories *memories : {&again, &theirs}) memories->copy_from(mine);
        const TandemStep all = step.all();
        const Memory<float> got = forward(kernels, own.model, all, mine, report);
        const double apart = distance(got, composed(proven, other.model, all, theirs));
        // Rounding to 8 bits makes steps of what are last bits elsewhere.
        report.expect(apart < 2e-2, "a step of %d tokens is %g off: hidden %d, ffn %d, %d heads over %d of %d, KV %d",
                      step.tokens(), apart, stored.hidden, stored.ffn, stored.shape.heads, stored.shape.kv_heads,
                      stored.shape.head_dim, stored.shape.kv_type);
        check_parts(kernels, own.model, step, again, got, draw, report);
        report.expect(mine.equals(again), "the KV memory of a step differs in parts");
    }
}
