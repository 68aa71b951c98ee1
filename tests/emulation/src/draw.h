// What every check needs: seeded random draws, memory whose edges are watched, and a record of what was not as expected.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "abi.h"

constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

// Counts what failed, and prints the first of it.
class Report {
  public:
    explicit Report(const char *variant) : variant_(variant) {}

    void expect(bool is_so, const char *format, ...) __attribute__((format(printf, 3, 4))) {
        checks_++;
        if (is_so) return;
        if (failures_++ >= SHOWN) return;
        va_list arguments;
        va_start(arguments, format);
        std::printf("FAILED %s: ", variant_);
        std::vprintf(format, arguments);
        std::printf("\n");
        va_end(arguments);
        std::fflush(stdout);
    }

    int64_t checks() const { return checks_; }
    int64_t failures() const { return failures_; }

  private:
    static constexpr int64_t SHOWN = 40;
    const char *variant_;
    int64_t checks_ = 0, failures_ = 0;
};

// The standard's distributions differ from library to library; these do not.
class Draw {
  public:
    explicit Draw(uint64_t seed) : bits_(seed) {}

    int between(int first, int last) { return first + int(bits_() % uint64_t(last - first + 1)); }
    bool chance(double of) { return unit() < of; }
    uint64_t bits() { return bits_(); }
    template <class T>
    T one_of(std::initializer_list<T> choices) {
        return choices.begin()[between(0, int(choices.size()) - 1)];
    }
    // Bell-shaped, of variance 1.
    float value() {
        double sum = 0;
        for (int i = 0; i < 12; i++) sum += unit();
        return float(sum - 6);
    }

  private:
    double unit() { return double(bits_() >> 11) * 0x1p-53; }

    std::mt19937_64 bits_;
};

// size elements, aligned to 64 bytes, with a margin on both sides that nobody may write to.
template <class T>
class Memory {
  public:
    explicit Memory(int64_t size, T filled = T{}) : size_(size) {
        const size_t bytes = (size_t(size) * sizeof(T) + 2 * MARGIN + 63) / 64 * 64;
        start_ = static_cast<uint8_t *>(std::aligned_alloc(64, bytes));
        std::memset(start_, PATTERN, bytes);
        for (int64_t i = 0; i < size; i++) data()[i] = filled;
    }
    Memory(const Memory &other) : Memory(other.size_) { std::memcpy(data(), other.data(), size_t(size_) * sizeof(T)); }
    Memory &operator=(const Memory &) = delete;
    ~Memory() { std::free(start_); }

    T *data() const { return reinterpret_cast<T *>(start_ + MARGIN); }
    int64_t size() const { return size_; }
    T &operator[](int64_t i) const { return data()[i]; }

    bool has_clean_edges() const {
        const uint8_t *after = start_ + MARGIN + size_t(size_) * sizeof(T);
        for (size_t i = 0; i < MARGIN; i++)
            if (start_[i] != PATTERN || after[i] != PATTERN) return false;
        return true;
    }

  private:
    static constexpr size_t MARGIN = 256;
    static constexpr uint8_t PATTERN = 0xa5;
    int64_t size_;
    uint8_t *start_;
};

inline Memory<float> random_values(Draw &draw, int64_t size, float scale = 1) {
    Memory<float> values(size);
    for (int64_t i = 0; i < size; i++) values[i] = scale * draw.value();
    return values;
}

inline bool same_bits(const float *a, const float *b, int64_t count) { return !std::memcmp(a, b, size_t(count) * 4); }

// Both finite and no further apart than that.
inline bool is_near(double a, double b, double tolerance) { return std::abs(a - b) <= tolerance; }

inline double half(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
    if (exponent == 31) return NOT_A_NUMBER;
    return bits >> 15 ? -size : size;
}
