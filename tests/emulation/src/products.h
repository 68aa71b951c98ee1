// Products with packed weights, and single rows of them, against sums in double precision.
#pragma once
#include "draw.h"

constexpr int BLOCK = 32;

inline int stored_bytes(int32_t format) {
    switch (format) {
        case TANDEM_Q4_0: return 18;
        case TANDEM_Q4_1: return 20;
        case TANDEM_Q8_0: return 34;
        default: return 4 * BLOCK;
    }
}

// A normal half of moderate size.
inline uint16_t random_half(Draw &draw, bool is_signed) {
    return uint16_t((is_signed ? draw.bits() % 2 << 15 : 0) | uint64_t(draw.between(5, 12)) << 10 | draw.bits() % 1024);
}

// A weight as a file holds it.
class Stored {
  public:
    Stored(Draw &draw, int32_t format, int rows, int columns)
        : format(format), rows(rows), columns(columns), bytes_(int64_t(rows) * columns / BLOCK * stored_bytes(format)) {
        for (int64_t at = 0; at < bytes_.size(); at += stored_bytes(format)) fill(draw, &bytes_[at]);
    }

    const uint8_t *row(int index) const { return &bytes_[int64_t(index) * columns / BLOCK * stored_bytes(format)]; }

    // value = scale x q + offset
    struct Values {
        double scale, offset;
        int q[BLOCK];
    };
    Values values(int index, int block) const {
        const uint8_t *at = row(index) + block * stored_bytes(format);
        Values v{};
        if (format == TANDEM_F32) return rounded(reinterpret_cast<const float *>(at));
        v.scale = half(word(at));
        if (format == TANDEM_Q8_0) {
            for (int i = 0; i < BLOCK; i++) v.q[i] = int8_t(at[2 + i]);
            return v;
        }
        v.offset = format == TANDEM_Q4_1 ? half(word(at + 2)) : -8 * v.scale;
        at += format == TANDEM_Q4_1 ? 4 : 2;
        for (int i = 0; i < BLOCK; i++) v.q[i] = i < BLOCK / 2 ? at[i] & 15 : at[i - BLOCK / 2] >> 4;
        return v;
    }

    const int32_t format;
    const int rows, columns;

  private:
    static uint16_t word(const uint8_t *at) { return uint16_t(at[0] | at[1] << 8); }

    // Floats are multiples of a power of two that 8 bits hold: what they are rounded to is known.
    static Values rounded(const float *x) {
        Values v{};
        v.scale = 0x1p-6;
        for (int i = 0; i < BLOCK; i++) v.q[i] = int(x[i] * 0x1p6f);
        return v;
    }

    void fill(Draw &draw, uint8_t *block) const {
        if (format == TANDEM_F32) {
            for (int i = 0; i < BLOCK; i++)
                reinterpret_cast<float *>(block)[i] = float(i ? draw.between(-127, 127) : 127) * 0x1p-6f;
            return;
        }
        for (int i = 0; i < stored_bytes(format); i++) block[i] = uint8_t(draw.bits());
        const uint16_t scale = random_half(draw, format != TANDEM_Q4_1), offset = random_half(draw, true);
        std::memcpy(block, &scale, 2);
        if (format == TANDEM_Q4_1) std::memcpy(block + 2, &offset, 2);
    }

    Memory<uint8_t> bytes_;
};

// The same weight as one variant holds it.
class Packed {
  public:
    Packed(const TandemKernels &kernels, const Stored &stored, const float *bias = nullptr, int threads = 1)
        : bytes_(kernels.packed_bytes(stored.format, stored.rows, stored.columns), 0xff),
          weight{stored.format, stored.rows, stored.columns, bytes_.data(), bias} {
        std::vector<const void *> sources;
        for (int row = 0; row < stored.rows; row++) sources.push_back(stored.row(row));
        kernels.pack(&weight, sources.data(), threads);
    }
    bool has_clean_edges() const { return bytes_.has_clean_edges(); }

  private:
    Memory<uint8_t> bytes_;

  public:
    TandemWeight weight;
};

// Activations, rounded in blocks to 8 bits as the kernels do it.
struct Rounded {
    double scale;
    int q[BLOCK];
    explicit Rounded(const float *x) {
        float most = 0;
        for (int i = 0; i < BLOCK; i++) most = std::fmax(most, std::fabs(x[i]));
        scale = most / 127;
        const float inverse = most > 0 ? 127 / most : 0;
        for (int i = 0; i < BLOCK; i++) q[i] = int(std::nearbyint(x[i] * inverse));
    }
};

struct Sum {
    double value = 0, size = 0;  // size: of the terms, what an error is compared to
};

inline Sum product(const Stored &weight, int output, const std::vector<Rounded> &row) {
    Sum sum;
    for (size_t block = 0; block < row.size(); block++) {
        const Stored::Values w = weight.values(output, int(block));
        int64_t dot = 0, total = 0;
        for (int i = 0; i < BLOCK; i++) {
            dot += int64_t(w.q[i]) * row[block].q[i];
            total += row[block].q[i];
        }
        const double one = row[block].scale * w.scale * double(dot), other = row[block].scale * w.offset * double(total);
        sum.value += one + other;
        sum.size += std::abs(one) + std::abs(other);
    }
    return sum;
}

// Rows of ordinary values among rows of zeros, of the largest values and of very small ones.
inline Memory<float> random_rows(Draw &draw, int rows, int columns) {
    Memory<float> x = random_values(draw, int64_t(rows) * columns);
    for (int row = 0; row < rows; row++) {
        const int kind = draw.between(0, 9);
        for (int i = 0; i < columns; i++) {
            float &value = x[int64_t(row) * columns + i];
            if (kind == 0) value = 0;
            if (kind == 1) value = value > 0 ? 3 : -3;
            if (kind == 2) value *= 1e-6f;
            if (kind == 3) value = 100;
        }
    }
    return x;
}

inline void check_embed(const TandemKernels &kernels, Report &report, const Stored &stored, const Packed &packed) {
    std::vector<int64_t> ids;
    for (int row = stored.rows - 1; row >= 0; row--) ids.push_back(row);
    Memory<float> out(int64_t(stored.rows) * stored.columns, NOT_A_NUMBER);
    kernels.embed(&packed.weight, ids.data(), stored.rows, out.data());
    bool is_right = out.has_clean_edges();
    for (int row = 0; row < stored.rows; row++)
        for (int i = 0; i < stored.columns; i++) {
            const Stored::Values v = stored.values(int(ids[size_t(row)]), i / BLOCK);
            const double one = v.scale * v.q[i % BLOCK];
            is_right &= is_near(out[int64_t(row) * stored.columns + i], one + v.offset,
                                1e-6 * (std::abs(one) + std::abs(v.offset)));
        }
    report.expect(is_right, "rows of a weight of format %d, %d x %d", stored.format, stored.rows, stored.columns);
}

inline void check_rows_alone(const TandemKernels &kernels, Draw &draw, Report &report, const Packed &packed,
                             const Memory<float> &x, const Memory<float> &together, int rows) {
    const TandemWeight &w = packed.weight;
    for (int first = 0; first < rows;) {
        const int count = std::min(rows - first, draw.chance(0.7) ? 1 : draw.between(2, 40));
        Memory<float> alone(int64_t(count) * w.rows, NOT_A_NUMBER);
        kernels.linear(&w, &x[int64_t(first) * w.columns], count, alone.data(), 1);
        report.expect(same_bits(alone.data(), &together[int64_t(first) * w.rows], alone.size()),
                      "rows %d to %d of %d differ in company: format %d, %d x %d", first, first + count, rows, w.format,
                      w.rows, w.columns);
        first += count;
    }
}

inline void check_spoiled_row(const TandemKernels &kernels, Draw &draw, Report &report, const Packed &packed,
                              const Memory<float> &x, const Memory<float> &clean, int rows) {
    const TandemWeight &w = packed.weight;
    Memory<float> given(x), out(int64_t(rows) * w.rows);
    const int spoiled = draw.between(0, rows - 1);
    const float infinity = std::numeric_limits<float>::infinity();
    given[int64_t(spoiled) * w.columns + draw.between(0, w.columns - 1)] = draw.one_of({NOT_A_NUMBER, infinity, -infinity});
    kernels.linear(&w, given.data(), rows, out.data(), 1);
    bool is_right = true;
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < w.rows; i++) {
            const float value = out[int64_t(row) * w.rows + i];
            is_right &= row == spoiled ? !std::isfinite(value) : same_bits(&value, &clean[int64_t(row) * w.rows + i], 1);
        }
    report.expect(is_right, "a row that is not finite, number %d of %d: format %d, %d x %d", spoiled, rows, w.format, w.rows,
                  w.columns);
}

inline void check_product(const TandemKernels &kernels, Draw &draw, Report &report, int rows) {
    const int outputs = draw.chance(0.5) ? 16 * draw.between(1, 10) : draw.between(1, 150);
    const Stored stored(draw, draw.between(TANDEM_Q4_0, TANDEM_F32), outputs, BLOCK * draw.between(1, 20));
    const Memory<float> bias = random_values(draw, outputs);
    const bool has_bias = draw.chance(0.3);
    const Packed packed(kernels, stored, has_bias ? bias.data() : nullptr, draw.between(1, 3));
    report.expect(packed.has_clean_edges(), "packing writes elsewhere: format %d", stored.format);
    if (draw.chance(0.2)) check_embed(kernels, report, stored, packed);
    const Memory<float> x = random_rows(draw, rows, stored.columns);
    Memory<float> out(int64_t(rows) * outputs, NOT_A_NUMBER);
    kernels.linear(&packed.weight, x.data(), rows, out.data(), draw.between(1, 3));
    report.expect(out.has_clean_edges(), "a product writes elsewhere: format %d, %d rows", stored.format, rows);
    for (int row = 0; row < rows; row++) {
        if (rows > 8 && draw.chance(0.5)) continue;  // those left out are still compared to themselves, alone
        std::vector<Rounded> rounded;
        for (int i = 0; i < stored.columns; i += BLOCK) rounded.emplace_back(&x[int64_t(row) * stored.columns + i]);
        for (int i = 0; i < outputs; i++) {
            const Sum sum = product(stored, i, rounded);
            const double wanted = sum.value + (has_bias ? bias[i] : 0);
            const float got = out[int64_t(row) * outputs + i];
            report.expect(is_near(got, wanted, 2e-6 * (sum.size + std::abs(wanted)) + 1e-30),
                          "row %d of %d, output %d: %g, not %g; format %d, %d x %d", row, rows, i, double(got), wanted,
                          stored.format, outputs, stored.columns);
        }
    }
    check_rows_alone(kernels, draw, report, packed, x, out, rows);
    if (rows && draw.chance(0.3)) check_spoiled_row(kernels, draw, report, packed, x, out, rows);
}

inline void check_products(const TandemKernels &kernels, Draw &draw, Report &report, int rounds) {
    // The edges of the tiles and runs of linear.h.
    for (int rows : {0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 36, 47, 48, 49, 63, 64, 65, 80, 97})
        check_product(kernels, draw, report, rows);
    for (int round = 0; round < rounds; round++) check_product(kernels, draw, report, draw.between(1, 140));
}
