// The vector of one instruction set: LANES floats, the few operations the kernels need, and the integer dot products.
//
// Included once by each variant, with TANDEM_AVX512 and TANDEM_VNNI saying which. Everything has internal linkage: code
// of one instruction set must never be taken for another's.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

#if TANDEM_AVX512

constexpr int LANES = 16;
using F = __m512;
using I = __m512i;

inline F zero() { return _mm512_setzero_ps(); }
inline F all(float x) { return _mm512_set1_ps(x); }
inline F load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, F x) { _mm512_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F magnitude(F x) { return _mm512_abs_ps(x); }
// y where x >= least, else 0; also where x is not a number.
inline F where_at_least(F x, float least, F y) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, all(least), _CMP_GE_OQ), y);
}
inline F rounded(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline I to_int(F x) { return _mm512_cvtps_epi32(x); }
inline F to_float(I x) { return _mm512_cvtepi32_ps(x); }
inline F power_of_two(F n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(to_int(n), _mm512_set1_epi32(127)), 23));
}
inline float sum(F x) { return _mm512_reduce_add_ps(x); }
inline float largest(F x) { return _mm512_reduce_max_ps(x); }
inline int32_t sum(I x) { return _mm512_reduce_add_epi32(x); }
inline F load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
inline void store_half(uint16_t *p, F x) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, 0)); }
inline F load_byte(const int8_t *p) { return to_float(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
inline void store_byte(int8_t *p, I x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x)); }
// x where first <= index + lane < last, else y.
inline F within(F x, F y, int index, int first, int last) {
    const I at = _mm512_add_epi32(_mm512_set1_epi32(index),
                                  _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __mmask16 is_in = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(first)) &
                            _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32(last));
    return _mm512_mask_blend_ps(is_in, y, x);
}

inline I zero_int() { return _mm512_setzero_si512(); }
inline I all_int(int32_t x) { return _mm512_set1_epi32(x); }
inline I all_words(int16_t x) { return _mm512_set1_epi16(x); }
inline I load_int(const void *p) { return _mm512_loadu_si512(p); }
inline I four(const int8_t *p) { return _mm512_set1_epi32(*(const int32_t *)p); }
inline I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline I high_nibbles(I x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
inline I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
inline I add_words(I a, I b) { return _mm512_add_epi16(a, b); }
inline I pairs(I u8, I s8) { return _mm512_maddubs_epi16(u8, s8); }
inline I pairs_of_words(I a, I b) { return _mm512_madd_epi16(a, b); }
inline I magnitude_bytes(I x) { return _mm512_abs_epi8(x); }
inline I with_sign(I x, I sign) {
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(sign), _mm512_setzero_si512(), x);
}
#if TANDEM_VNNI
inline I dot(I sum, I u8, I s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
#endif

#else

constexpr int LANES = 8;
using F = __m256;
using I = __m256i;

inline F zero() { return _mm256_setzero_ps(); }
inline F all(float x) { return _mm256_set1_ps(x); }
inline F load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, F x) { _mm256_storeu_ps(p, x); }
inline F add(F a, F b) { return _mm256_add_ps(a, b); }
inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F div(F a, F b) { return _mm256_div_ps(a, b); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F magnitude(F x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
inline F where_at_least(F x, float least, F y) { return _mm256_and_ps(_mm256_cmp_ps(x, all(least), _CMP_GE_OQ), y); }
inline F rounded(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline I to_int(F x) { return _mm256_cvtps_epi32(x); }
inline F to_float(I x) { return _mm256_cvtepi32_ps(x); }
inline F power_of_two(F n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(to_int(n), _mm256_set1_epi32(127)), 23));
}
inline float sum(F x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline float largest(F x) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
inline int32_t sum(I x) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
inline F load_half(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
inline void store_half(uint16_t *p, F x) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, 0)); }
inline F load_byte(const int8_t *p) { return to_float(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
inline void store_byte(int8_t *p, I x) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packs_epi16(words, words));
}
// x where first <= index + lane < last, else y.
inline F within(F x, F y, int index, int first, int last) {
    const I at = _mm256_add_epi32(_mm256_set1_epi32(index), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const I is_in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), at),
                                        _mm256_cmpgt_epi32(_mm256_set1_epi32(last), at));
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(is_in));
}

inline I zero_int() { return _mm256_setzero_si256(); }
inline I all_int(int32_t x) { return _mm256_set1_epi32(x); }
inline I all_words(int16_t x) { return _mm256_set1_epi16(x); }
inline I load_int(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline I four(const int8_t *p) { return _mm256_set1_epi32(*(const int32_t *)p); }
inline I low_nibbles(I x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline I high_nibbles(I x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
inline I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
inline I add_words(I a, I b) { return _mm256_add_epi16(a, b); }
inline I pairs(I u8, I s8) { return _mm256_maddubs_epi16(u8, s8); }
inline I pairs_of_words(I a, I b) { return _mm256_madd_epi16(a, b); }
inline I magnitude_bytes(I x) { return _mm256_abs_epi8(x); }
inline I with_sign(I x, I sign) { return _mm256_sign_epi8(x, sign); }
#if TANDEM_VNNI
inline I dot(I sum, I u8, I s8) { return _mm256_dpbusd_avx_epi32(sum, u8, s8); }
#endif

#endif

// x is wanted as it is here: a compiler that reorders long sums of integers runs out of registers.
inline void keep(I &x) { asm("" : "+x"(x)); }

constexpr float LEAST_EXPONENT = -87.3f;  // e to it is the least normal float

// e^x to two units in the last place (Cephes' polynomial); 0 below the range, finite above it.
inline F exponential(F x) {
    x = min(max(x, all(LEAST_EXPONENT)), all(88.3f));
    const F n = rounded(mul(x, all(1.44269504088896341f)));
    F r = fma(n, all(-0.693359375f), x);
    r = fma(n, all(2.12194440e-4f), r);
    F p = fma(all(1.9875691500e-4f), r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = add(fma(mul(p, r), r, r), all(1.0f));
    return mul(p, power_of_two(n));
}

inline float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
inline uint16_t float_to_half(float x) { return _cvtss_sh(x, 0); }

}  // namespace
