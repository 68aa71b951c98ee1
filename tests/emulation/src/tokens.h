// The kernels that take one token, or one row of scores, at a time, against double precision.
#pragma once
#include "cells.h"

inline void check_add_normalize(const TandemKernels &kernels, Draw &draw, Report &report) {
    const int tokens = draw.between(1, 9), size = draw.one_of({1, 7, 8, 15, 16, 17, 33, 64, 100, 576});
    const Memory<float> weight = random_values(draw, size), delta = random_values(draw, int64_t(tokens) * size);
    Memory<float> hidden = random_values(draw, int64_t(tokens) * size), out(hidden.size(), NOT_A_NUMBER);
    const Memory<float> before(hidden);
    const bool has_delta = draw.chance(0.5);
    kernels.add_normalize(hidden.data(), has_delta ? delta.data() : nullptr, weight.data(), 1e-5f, tokens, size, out.data(),
                          draw.between(1, 3));
    bool is_right = hidden.has_clean_edges() && out.has_clean_edges();
    for (int t = 0; t < tokens; t++) {
        double squares = 0;
        for (int64_t i = int64_t(t) * size; i < int64_t(t + 1) * size; i++) {
            is_right &= hidden[i] == before[i] + (has_delta ? delta[i] : 0);
            squares += double(hidden[i]) * hidden[i];
        }
        for (int i = 0; i < size; i++) {
            const int64_t at = int64_t(t) * size + i;
            const double wanted = hidden[at] / std::sqrt(squares / size + 1e-5) * weight[i];
            is_right &= is_near(out[at], wanted, 1e-6 + 2e-6 * std::abs(wanted));
        }
    }
    report.expect(is_right, "a norm of %d tokens of %d", tokens, size);
}

inline void check_gate(const TandemKernels &kernels, Draw &draw, Report &report) {
    const int tokens = draw.between(1, 5), size = draw.one_of({1, 8, 16, 31, 32, 96, 1000});
    const Memory<float> given = random_values(draw, int64_t(tokens) * 2 * size, 5);
    for (float extreme : {-200.0f, -88.5f, 0.0f, 88.5f, 200.0f}) given[draw.between(0, size - 1)] = extreme;
    Memory<float> out(int64_t(tokens) * size, NOT_A_NUMBER);
    kernels.gate(given.data(), tokens, size, out.data(), draw.between(1, 3));
    bool is_right = out.has_clean_edges();
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < size; i++) {
            const double gate = given[int64_t(t) * 2 * size + i], up = given[int64_t(t) * 2 * size + size + i];
            const double wanted = gate * up / (1 + std::exp(-gate));
            is_right &= is_near(out[int64_t(t) * size + i], wanted, 1e-6 + 1e-5 * std::abs(wanted));
        }
    report.expect(is_right, "a gate of %d tokens of %d", tokens, size);
}

inline void check_rotate_and_store(const TandemKernels &kernels, Draw &draw, Report &report) {
    const TandemShape shape = random_shape(draw, {16, 32, 48, 64, 96, 128});
    const Step step(draw, shape, random_batch(draw, 60), 1, draw.between(1, 3));
    const int d = shape.head_dim, all_heads = shape.heads + 2 * shape.kv_heads, turned = shape.heads + shape.kv_heads;
    const Pool keys(shape, step.blocks, true), values(shape, step.blocks, false);
    const TandemPools pools{keys.data(), values.data()};
    const Memory<float> cos = random_values(draw, 60 * d / 2, 0.7f), sin = random_values(draw, 60 * d / 2, 0.7f);
    Memory<float> qkv = random_values(draw, int64_t(step.tokens()) * all_heads * d);
    const Memory<float> before(qkv);
    const TandemStep all = step.all();
    kernels.rotate_and_store(&shape, &all, cos.data(), sin.data(), qkv.data(), &pools);
    bool is_right = qkv.has_clean_edges() && keys.has_clean_edges() && values.has_clean_edges();
    for (int t = 0; t < step.tokens(); t++)
        for (int head = 0; head < all_heads; head++) {
            const float *x = &before[(int64_t(t) * all_heads + head) * d], *got = &qkv[(int64_t(t) * all_heads + head) * d];
            double top = 0;
            for (int i = 0; i < d; i++) top = std::fmax(top, std::abs(got[i]));
            for (int i = 0; i < d; i++) {
                const int64_t at = all.positions[t] * (d / 2) + i % (d / 2);
                const double other = i < d / 2 ? -double(x[i + d / 2]) : double(x[i - d / 2]);
                const double wanted = head < turned ? double(x[i]) * cos[at] + other * sin[at] : x[i];
                is_right &= is_near(got[i], wanted, 1e-5);
                if (head < shape.heads) continue;
                const double stored = head < turned ? keys.at(all.slot_mapping[t], head - shape.heads, i)
                                                    : values.at(all.slot_mapping[t], head - turned, i);
                const double step_size = shape.kv_type == TANDEM_KV_F16 ? std::abs(got[i]) * 0x1p-11 + 1e-7 : top / 127 * 0.501;
                is_right &= is_near(stored, got[i], shape.kv_type == TANDEM_KV_F32 ? 0 : step_size);
            }
        }
    report.expect(is_right, "rotation and storing: %d heads over %d of %d, KV %d", shape.heads, shape.kv_heads, d, shape.kv_type);
}

inline void check_ban(const TandemKernels &kernels, Draw &draw, Report &report) {
    const int rows = 7, vocab = draw.between(1, 2000), words = (vocab + 31) / 32;
    Memory<float> scores = random_values(draw, int64_t(rows) * vocab);
    const Memory<float> before(scores);
    const std::vector<int64_t> given{0, 3, 4, 6};
    std::vector<uint32_t> bits;
    for (size_t i = 0; i < given.size() * size_t(words); i++)
        bits.push_back(i / size_t(words) == 1 ? 0 : i / size_t(words) == 2 ? ~0u : uint32_t(draw.bits()));
    kernels.ban(scores.data(), vocab, given.data(), bits.data(), int32_t(given.size()), draw.between(1, 3));
    bool is_right = scores.has_clean_edges();
    for (int row = 0; row < rows; row++) {
        const auto found = std::find(given.begin(), given.end(), row);
        for (int t = 0; t < vocab; t++) {
            const size_t word = size_t(found - given.begin()) * size_t(words) + size_t(t / 32);
            const bool is_banned = found != given.end() && !(bits[word] >> t % 32 & 1);
            const float wanted = is_banned ? -std::numeric_limits<float>::infinity() : before[int64_t(row) * vocab + t];
            is_right &= scores[int64_t(row) * vocab + t] == wanted;
        }
    }
    report.expect(is_right, "banning among %d scores", vocab);
}

// The scores of rows in blocks: are they finite, the best of each block, and the weights of some rows with their sums.
inline void check_scores(const TandemKernels &kernels, Draw &draw, Report &report) {
    const int rows = 6, block = draw.one_of({1, 5, 8, 16, 24, 37, 64}), blocks = draw.between(1, 40), vocab = block * blocks;
    const float infinity = std::numeric_limits<float>::infinity();
    Memory<float> scores = random_values(draw, int64_t(rows) * vocab, 8);
    for (int row = 0; row < 2; row++) scores[int64_t(row) * vocab + draw.between(0, vocab - 1)] = row ? infinity : -infinity;
    Memory<uint8_t> finite(rows, 9);
    Memory<float> peaks(int64_t(rows) * blocks, NOT_A_NUMBER);
    kernels.check(scores.data(), vocab, rows, finite.data(), draw.between(1, 3));
    kernels.peaks(scores.data(), vocab, block, rows, peaks.data(), draw.between(1, 3));
    const std::vector<int64_t> given{4, 2, 5, 0};
    const std::vector<float> best{20, 9, 30, 15}, factors{1, 0.5f, 3, 2};
    Memory<float> weights(4 * int64_t(vocab), NOT_A_NUMBER), sums(4 * int64_t(blocks), NOT_A_NUMBER);
    kernels.weigh(scores.data(), vocab, block, given.data(), best.data(), factors.data(), 4, weights.data(), sums.data(),
                  draw.between(1, 3));
    bool is_right = finite.has_clean_edges() && peaks.has_clean_edges() && weights.has_clean_edges() && sums.has_clean_edges();
    for (int row = 0; row < rows; row++) {
        is_right &= finite[row] == (row >= 2);
        for (int b = 0; b < blocks; b++) {
            const float *at = &scores[int64_t(row) * vocab + b * block];
            is_right &= peaks[int64_t(row) * blocks + b] == *std::max_element(at, at + block);
        }
    }
    for (size_t i = 0; i < given.size(); i++)
        for (int b = 0; b < blocks; b++) {
            double sum = 0;
            for (int t = b * block; t < (b + 1) * block; t++) {
                const double gap = (double(scores[given[i] * vocab + t]) - best[i]) * factors[i];
                const double wanted = gap < -87.3 ? 0 : std::exp(gap), got = weights[int64_t(i) * vocab + t];
                is_right &= is_near(got, wanted, 2e-5 * wanted + 2e-38);
                sum += wanted;
            }
            is_right &= is_near(sums[int64_t(i) * blocks + b], sum, 2e-5 * sum + 1e-36);
        }
    report.expect(is_right, "%d blocks of %d scores", blocks, block);
}

inline void check_tokens(const TandemKernels &kernels, Draw &draw, Report &report, int rounds) {
    for (int round = 0; round < rounds; round++) {
        check_add_normalize(kernels, draw, report);
        check_gate(kernels, draw, report);
        check_rotate_and_store(kernels, draw, report);
        check_ban(kernels, draw, report);
        check_scores(kernels, draw, report);
    }
}
