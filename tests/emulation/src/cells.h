// KV memory as abi.h describes it, filled at random or empty, and read cell by cell; and ragged steps over it.
#pragma once
#include <algorithm>

#include "draw.h"

class Pool {
  public:
    // keys or values of `blocks` blocks; every cell is not a number until it is filled.
    Pool(const TandemShape &shape, int blocks, bool are_keys)
        : shape_(shape), are_keys_(are_keys), bytes_(int64_t(blocks) * shape.kv_heads * head_bytes(), 0xff) {}

    uint8_t *data() const { return bytes_.data(); }
    int64_t num_bytes() const { return bytes_.size(); }
    bool has_clean_edges() const { return bytes_.has_clean_edges(); }

    double at(int64_t cell, int head, int element) const {
        const uint8_t *memory = head_of(cell, head);
        const int64_t index = index_of(cell, element);
        if (shape_.kv_type == TANDEM_KV_F32) return read<float>(memory, index);
        if (shape_.kv_type == TANDEM_KV_F16) return half(read<uint16_t>(memory, index));
        return double(read<int8_t>(memory, index)) * read<float>(scales(memory), cell % shape_.block_size);
    }

    void fill(Draw &draw, int64_t cell) const {
        for (int head = 0; head < shape_.kv_heads; head++) {
            uint8_t *memory = head_of(cell, head);
            for (int i = 0; i < shape_.head_dim; i++) {
                const int64_t index = index_of(cell, i);
                if (shape_.kv_type == TANDEM_KV_F32)
                    write(memory, index, draw.value());
                else if (shape_.kv_type == TANDEM_KV_F16)
                    write(memory, index, uint16_t(draw.bits() % 2 << 15 | uint64_t(draw.between(8, 15)) << 10 | draw.bits() % 1024));
                else
                    write(memory, index, int8_t(draw.between(-127, 127)));
            }
            if (shape_.kv_type == TANDEM_KV_I8) write(scales(memory), cell % shape_.block_size, 0.02f + 0.001f * draw.value());
        }
    }

  private:
    int64_t head_bytes() const {
        const int64_t cells = shape_.block_size;
        if (shape_.kv_type == TANDEM_KV_I8) return cells * (shape_.head_dim + 4);
        return cells * shape_.head_dim * (shape_.kv_type == TANDEM_KV_F16 ? 2 : 4);
    }
    uint8_t *head_of(int64_t cell, int head) const {
        return &bytes_[(cell / shape_.block_size * shape_.kv_heads + head) * head_bytes()];
    }
    uint8_t *scales(uint8_t *memory) const { return memory + int64_t(shape_.block_size) * shape_.head_dim; }
    const uint8_t *scales(const uint8_t *memory) const { return memory + int64_t(shape_.block_size) * shape_.head_dim; }
    int64_t index_of(int64_t cell, int element) const {
        const int64_t offset = cell % shape_.block_size;
        return are_keys_ ? element * int64_t(shape_.block_size) + offset : offset * shape_.head_dim + element;
    }
    template <class T>
    static T read(const uint8_t *memory, int64_t index) {
        T value;
        std::memcpy(&value, memory + index * int64_t(sizeof(T)), sizeof(T));
        return value;
    }
    template <class T>
    static void write(uint8_t *memory, int64_t index, T value) {
        std::memcpy(memory + index * int64_t(sizeof(T)), &value, sizeof(T));
    }

    const TandemShape shape_;
    const bool are_keys_;
    Memory<uint8_t> bytes_;
};

struct Row {
    int queries, positions;  // the last `queries` of so many positions
};

// A step of those rows, each with blocks of its own in random order.
class Step {
  public:
    Step(Draw &draw, const TandemShape &shape, const std::vector<Row> &rows, int vocab, int threads) : rows_(rows) {
        int widest = 1;
        for (const Row &row : rows) {
            const int width = (row.positions + shape.block_size - 1) / shape.block_size;
            widest = std::max(widest, width);
            blocks += width;
        }
        std::vector<int32_t> free;
        for (int i = 0; i <= blocks; i++) free.push_back(i);
        for (int i = blocks; i > 0; i--) std::swap(free[size_t(i)], free[size_t(draw.between(0, i))]);
        table_.assign(rows.size() * size_t(widest), free.back());  // of nobody: no one may read it
        blocks++;
        starts_.push_back(0);
        for (size_t r = 0; r < rows.size(); r++) {
            const int width = (rows[r].positions + shape.block_size - 1) / shape.block_size;
            for (int i = 0; i < width; i++) table_[r * size_t(widest) + size_t(i)] = take(free);
            starts_.push_back(starts_.back() + rows[r].queries);
            lens_.push_back(rows[r].positions);
            for (int i = rows[r].positions - rows[r].queries; i < rows[r].positions; i++) {
                ids_.push_back(draw.between(0, vocab - 1));
                positions_.push_back(i);
                cells_.push_back(cell(shape, int(r), widest, i));
            }
        }
        stride_ = widest;
        threads_ = threads;
    }

    int64_t cell(const TandemShape &shape, int row, int position) const { return cell(shape, row, stride_, position); }
    int tokens() const { return starts_.back(); }
    const std::vector<Row> &rows() const { return rows_; }
    int start(int row) const { return starts_[size_t(row)]; }

    TandemStep all() const {
        return {int32_t(lens_.size()), tokens(),     ids_.data(),   positions_.data(), cells_.data(),
                starts_.data(),        lens_.data(), table_.data(), stride_,           threads_};
    }

    int blocks = 0;

  private:
    int64_t cell(const TandemShape &shape, int row, int stride, int position) const {
        return int64_t(table_[size_t(row * stride + position / shape.block_size)]) * shape.block_size +
               position % shape.block_size;
    }
    static int32_t take(std::vector<int32_t> &free) {
        // The last one is nobody's.
        const int32_t block = free[free.size() - 2];
        free.erase(free.end() - 2);
        return block;
    }

    std::vector<Row> rows_;
    std::vector<int64_t> ids_, positions_, cells_;
    std::vector<int32_t> starts_, lens_, table_;
    int stride_ = 1, threads_ = 1;
};

// Some queries of one row, as a step of their own: `count` of them from `first` on.
struct Part {
    int64_t at;  // of the first token in the whole step
    int32_t starts[2], len;
    TandemStep step;

    Part(const Step &whole, int row, int first, int count, int threads) : at(whole.start(row) + first) {
        const TandemStep all = whole.all();
        const Row &r = whole.rows()[size_t(row)];
        starts[0] = 0, starts[1] = count, len = r.positions - r.queries + first + count;
        step = {1,      count, all.token_ids + at, all.positions + at, all.slot_mapping + at,
                starts, &len,  all.block_table + int64_t(row) * all.table_stride, all.table_stride, threads};
    }
    Part(const Part &) = delete;
    Part &operator=(const Part &) = delete;
};

inline TandemShape random_shape(Draw &draw, std::initializer_list<int> sizes) {
    const int kv_heads = draw.between(1, 4);
    return {kv_heads * draw.between(1, 8), kv_heads, draw.one_of(sizes), draw.one_of({16, 32, 48, 64}), draw.between(0, 2)};
}

inline std::vector<Row> random_batch(Draw &draw, int longest) {
    std::vector<Row> rows;
    for (int i = draw.between(1, 6); i > 0; i--) {
        const int positions = draw.between(1, longest);
        rows.push_back({draw.chance(0.5) ? 1 : draw.between(1, std::min(positions, 70)), positions});
    }
    // Enough rows of one query that each is taken by one thread.
    if (draw.chance(0.3))
        for (int i = 0; i < 9; i++) rows.push_back({1, draw.between(1, longest)});
    return rows;
}
