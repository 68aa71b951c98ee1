// What is done to one token at a time: norms, rotation, writing KV, the gate.
#pragma once
#include "linear.h"

namespace {

// out = x / rms(x) x weight.
inline void normalize_row(const float *x, const float *weight, float eps, int size, float *out) {
    F squares = zero();
    int i = 0;
    for (; i + LANES <= size; i += LANES) squares = fma(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (; i < size; i++) total += x[i] * x[i];
    const float scale = 1 / std::sqrt(total / float(size) + eps);
    const F scales = all(scale);
    for (i = 0; i + LANES <= size; i += LANES) store(out + i, mul(mul(load(x + i), scales), load(weight + i)));
    for (; i < size; i++) out[i] = x[i] * scale * weight[i];
}

inline void add_row(float *x, const float *y, int size) {
    int i = 0;
    for (; i + LANES <= size; i += LANES) store(x + i, add(load(x + i), load(y + i)));
    for (; i < size; i++) x[i] += y[i];
}

// silu(gate) x up.
inline F gated(F gate, F up) { return div(mul(gate, up), add(all(1), exponential(sub(zero(), gate)))); }

inline void gate_row(const float *gate, const float *up, int size, float *out) {
    int i = 0;
    for (; i + LANES <= size; i += LANES) store(out + i, gated(load(gate + i), load(up + i)));
    for (; i < size; i++) out[i] = gate[i] * up[i] / (1 + std::exp(-gate[i]));
}

// Element j turns with element j + size / 2.
inline void rotate_head(float *x, const float *cos, const float *sin, int size) {
    const int half = size / 2;
    for (int i = 0; i < half; i += LANES) {
        if (i + LANES <= half) {
            const F a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
            store(x + i, sub(mul(a, c), mul(b, s)));
            store(x + half + i, add(mul(b, c), mul(a, s)));
        } else {
            for (int j = i; j < half; j++) {
                const float a = x[j], b = x[half + j];
                x[j] = a * cos[j] - b * sin[j];
                x[half + j] = b * cos[j] + a * sin[j];
            }
        }
    }
}

}  // namespace
