// Attention over paged memory against softmax in double precision, and against itself in other company.
#pragma once
#include "cells.h"

struct Attended {
    const TandemShape &shape;
    const Step &step;
    const Pool &keys, &values;
    const float *qkv;
    int window;

    std::vector<double> head(int row, int query, int head) const {
        const int d = shape.head_dim, kv_head = head / (shape.heads / shape.kv_heads);
        const Row &r = step.rows()[size_t(row)];
        const int last = r.positions - r.queries + query + 1, first = window ? std::max(0, last - window) : 0;
        const float *q = qkv + (int64_t(step.start(row) + query) * (shape.heads + 2 * shape.kv_heads) + head) * d;
        std::vector<double> weights, out(size_t(d), 0.0);
        double most = -INFINITY, total = 0;
        for (int i = first; i < last; i++) {
            const int64_t cell = step.cell(shape, row, i);
            double score = 0;
            for (int e = 0; e < d; e++) score += q[e] * keys.at(cell, kv_head, e);
            weights.push_back(score / std::sqrt(double(d)));
            most = std::max(most, weights.back());
        }
        for (double &weight : weights) total += weight = std::exp(weight - most);
        for (int i = first; i < last; i++) {
            const int64_t cell = step.cell(shape, row, i);
            for (int e = 0; e < d; e++) out[size_t(e)] += weights[size_t(i - first)] / total * values.at(cell, kv_head, e);
        }
        return out;
    }
};

// One query and head out of this many is compared to the reference; all are compared to themselves alone.
constexpr int SAMPLED = 12;

inline void check_attention(const TandemKernels &kernels, Draw &draw, Report &report, int longest) {
    const TandemShape shape = random_shape(draw, {64, 128, 64, 128, 32, 96, 16, 256});
    const Step step(draw, shape, random_batch(draw, longest), 1, draw.between(1, 3));
    const int d = shape.head_dim, width = shape.heads * d, stride = width + 2 * shape.kv_heads * d;
    const int window = draw.chance(0.4) ? draw.between(1, longest) : 0;
    const Pool keys(shape, step.blocks, true), values(shape, step.blocks, false);
    for (int row = 0; row < int(step.rows().size()); row++)
        for (int i = 0; i < step.rows()[size_t(row)].positions; i++) {
            keys.fill(draw, step.cell(shape, row, i));
            values.fill(draw, step.cell(shape, row, i));
        }
    const TandemPools pools{keys.data(), values.data()};
    const Memory<float> qkv = random_values(draw, int64_t(step.tokens()) * stride);
    Memory<float> out(int64_t(step.tokens()) * width, NOT_A_NUMBER);
    const TandemStep all = step.all();
    kernels.attend(&shape, &all, qkv.data(), &pools, window, out.data());
    report.expect(out.has_clean_edges(), "attention writes elsewhere");
    const Attended reference{shape, step, keys, values, qkv.data(), window};
    for (int row = 0; row < int(step.rows().size()); row++) {
        const Row &r = step.rows()[size_t(row)];
        for (int first = 0; first < r.queries;) {
            const int count = std::min(r.queries - first, draw.chance(0.7) ? 1 : draw.between(2, 50));
            const Part part(step, row, first, count, draw.between(1, 2));
            Memory<float> alone(int64_t(count) * width, NOT_A_NUMBER);
            kernels.attend(&shape, &part.step, &qkv[part.at * stride], &pools, window, alone.data());
            report.expect(same_bits(alone.data(), &out[part.at * width], alone.size()),
                          "queries %d to %d of %d, %d positions, window %d, differ in company: %d heads over %d of %d, KV %d",
                          first, first + count, r.queries, r.positions, window, shape.heads, shape.kv_heads, d, shape.kv_type);
            first += count;
        }
        for (int query = 0; query < r.queries; query++)
            for (int head = 0; head < shape.heads; head++) {
                if (r.queries * shape.heads > SAMPLED && draw.between(1, SAMPLED) > 1) continue;
                const std::vector<double> wanted = reference.head(row, query, head);
                const float *got = &out[(step.start(row) + query) * int64_t(width) + head * d];
                double worst = 0;
                for (int e = 0; e < d; e++) worst = std::fmax(worst, std::abs(got[e] - wanted[size_t(e)]) / (1e-5 + 5e-5 * std::abs(wanted[size_t(e)])));
                bool is_finite = true;
                for (int e = 0; e < d; e++) is_finite &= std::isfinite(got[e]);
                report.expect(is_finite && worst <= 1,
                              "query %d of %d, head %d: %g times too far; %d positions, window %d, %d heads over %d of %d, "
                              "blocks of %d, KV %d", query, r.queries, head, worst, r.positions, window, shape.heads,
                              shape.kv_heads, d, shape.block_size, shape.kv_type);
            }
    }
}

inline void check_attentions(const TandemKernels &kernels, Draw &draw, Report &report, int rounds) {
    for (int round = 0; round < rounds; round++) check_attention(kernels, draw, report, draw.one_of({20, 150, 400}));
}
