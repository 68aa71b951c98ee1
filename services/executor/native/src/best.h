// The largest few of each row, and where they are: the greedy token, or the candidates of top-k.
#pragma once
#include <algorithm>
#include <vector>

#include "simd.h"

namespace {

struct Candidate {
    float value;
    int64_t id;
};

inline bool goes_before(const Candidate &a, const Candidate &b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

// kept: the count best so far, the worst of them first (a heap).
inline void best_of_row(const float *logits, int vocab, int count, float *values, int64_t *ids) {
    std::vector<Candidate> kept;
    kept.reserve(size_t(count) + 1);
    const auto offer = [&](int id) {
        const Candidate candidate{logits[id], id};
        if (int(kept.size()) == count) {
            if (!goes_before(candidate, kept.front())) return;
            std::pop_heap(kept.begin(), kept.end(), goes_before);
            kept.pop_back();
        }
        kept.push_back(candidate);
        std::push_heap(kept.begin(), kept.end(), goes_before);
    };
    const int head = std::min(count, vocab);
    int id = 0;
    for (; id < head; id++) offer(id);
    // A later one of equal value never goes before, so only what is above the worst kept one is looked at.
    for (; id + LANES <= vocab; id += LANES)
        if (any_above(load(logits + id), all(kept.front().value)))
            for (int i = id; i < id + LANES; i++) offer(i);
    for (; id < vocab; id++) offer(id);
    std::sort(kept.begin(), kept.end(), goes_before);
    for (int i = 0; i < count; i++) {
        values[i] = kept[size_t(i)].value;
        ids[i] = kept[size_t(i)].id;
    }
}

}  // namespace
