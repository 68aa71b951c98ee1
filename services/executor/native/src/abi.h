// The C interface of the kernels: plain structs and a table of functions for each instruction set.
//
// Python mirrors these structs in binding.py, field by field; ABI_VERSION rises with every change of any of them.
// Every pointer is the caller's; nothing is kept beyond a call. Sizes are in elements unless they say bytes.
#pragma once
#include <cstdint>

#define TANDEM_ABI_VERSION 4

extern "C" {

// How a weight was stored: 32 values share a block. F32 rows are quantized to Q8_0 blocks when they are packed.
enum TandemFormat : int32_t { TANDEM_Q4_0 = 0, TANDEM_Q4_1 = 1, TANDEM_Q8_0 = 2, TANDEM_F32 = 3 };
enum TandemKv : int32_t { TANDEM_KV_F32 = 0, TANDEM_KV_F16 = 1, TANDEM_KV_I8 = 2 };

struct TandemWeight {
    int32_t format;     // as it was stored
    int32_t rows;       // outputs
    int32_t columns;    // inputs, a multiple of 32
    uint8_t *packed;    // packed_bytes(...) bytes, aligned to 64
    const float *bias;  // [rows] or null
};

// The KV memory of one layer, seen by the attention of one variant or another: all use the same layout.
// keys [block][kv head][head_dim][block_size], values [block][kv head][block_size][head_dim]; with I8 each head of a
// block is followed by block_size float scales. block_size is a multiple of 16, head_dim of 16.
struct TandemPools {
    uint8_t *keys;
    uint8_t *values;
};

struct TandemShape {
    int32_t heads, kv_heads, head_dim, block_size, kv_type;
};

// One step: R rows, T tokens.
struct TandemStep {
    int32_t rows, tokens;
    const int64_t *token_ids;     // [T]
    const int64_t *positions;     // [T]
    const int64_t *slot_mapping;  // [T]
    const int32_t *cu_seqlens_q;  // [R + 1]
    const int32_t *kv_lens;       // [R]
    const int32_t *block_table;   // [R][table_stride]
    int32_t table_stride;
    int32_t threads;
};

struct TandemLayer {
    const float *attention_norm, *ffn_norm;
    const float *q_norm, *k_norm;  // [head_dim] or null
    TandemWeight qkv, attention_out, gate_up, down;
    int32_t window;  // positions a query sees, its own included; 0: all
};

struct TandemModel {
    TandemShape shape;
    int32_t layers, hidden, ffn;
    float eps;
    const float *cos, *sin;  // [positions][head_dim / 2]
    const float *norm;
    TandemWeight embedding;
    const TandemLayer *layer;  // [layers]
};

struct TandemKernels {
    const char *name;
    int32_t lanes;
    int64_t (*packed_bytes)(int32_t format, int32_t rows, int32_t columns);
    // sources: the stored blocks of each row, wherever they lie.
    void (*pack)(const TandemWeight *weight, const void *const *sources, int32_t threads);
    void (*embed)(const TandemWeight *weight, const int64_t *ids, int32_t tokens, float *out);
    // out [tokens][rows] = x [tokens][columns] times the weight, plus the bias.
    void (*linear)(const TandemWeight *weight, const float *x, int32_t tokens, float *out, int32_t threads);
    // hidden += delta unless that is null; out = hidden / rms(hidden) * weight.
    void (*add_normalize)(float *hidden, const float *delta, const float *weight, float eps, int32_t tokens,
                          int32_t size, float *out, int32_t threads);
    // qkv [T][heads + 2 kv_heads][head_dim]: queries and keys are turned in place, keys and values stored.
    void (*rotate_and_store)(const TandemShape *shape, const TandemStep *step, const float *cos, const float *sin,
                             float *qkv, const TandemPools *pools);
    // queries: those of qkv; out [T][heads][head_dim].
    void (*attend)(const TandemShape *shape, const TandemStep *step, const float *qkv, const TandemPools *pools,
                   int32_t window, float *out);
    void (*gate)(const float *gate_up, int32_t tokens, int32_t ffn, float *out, int32_t threads);
    // finite [rows]: 1 where every score of a row is a finite number, else 0.
    void (*check)(const float *scores, int32_t vocab, int32_t rows, uint8_t *finite, int32_t threads);
    // peaks [rows][vocab / block]: the best score of each block of neighbours. No score is NaN.
    void (*peaks)(const float *scores, int32_t vocab, int32_t block, int32_t rows, float *peaks, int32_t threads);
    // Of count rows: weights [count][vocab] = exp((scores - best) * factor), with a best and a factor for each, and
    // sums [count][vocab / block] of them.
    void (*weigh)(const float *scores, int32_t vocab, int32_t block, const int64_t *rows, const float *best,
                  const float *factors, int32_t count, float *weights, float *sums, int32_t threads);
    // In each of count rows of scores: minus infinity where bit t % 32 of word t / 32 is not set; bits [count][words].
    void (*ban)(float *scores, int32_t vocab, const int64_t *rows, const uint32_t *bits, int32_t count,
                int32_t threads);
    // out [T][hidden], normalized for the head. scratch: forward_bytes(...) bytes, aligned to 64.
    int64_t (*forward_bytes)(const TandemModel *model, int32_t tokens, int32_t threads);
    void (*forward)(const TandemModel *model, const TandemStep *step, const TandemPools *pools, uint8_t *scratch,
                    float *out);
};

int32_t tandem_abi_version(void);
// The table of a variant by name, null when this build or this processor has none of that name.
const TandemKernels *tandem_kernels(const char *name);
// Names of the variants that this processor can run and that are offered, the fastest first, separated by spaces.
const char *tandem_variants(void);
}
