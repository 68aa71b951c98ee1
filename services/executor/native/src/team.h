// The threads of one parallel region, and how they share work: whoever is free takes the next item.
//
// One region lasts a whole step and is a row of phases; a phase is over when all of its items are done. Nobody waits for
// a thread, only for items: this server's other processes use the same cores, and a thread that has no core yet, or has
// none any more, holds up no phase unless it is within an item. It skips the phases that were done without it. Which
// thread computes an item never changes its result. A waiting thread spins for as long as a phase's tail usually lasts,
// then sleeps.
#pragma once
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#define TANDEM_PAUSE() __builtin_ia32_pause()
#else
#define TANDEM_PAUSE()
#endif

namespace {

// What the threads of a region share. turn: the phase at hand in its upper half, its next item in the lower one.
struct Phases {
    alignas(64) std::atomic<uint64_t> turn{0};
    alignas(64) std::atomic<int> done{0};       // items of the phase at hand
    alignas(64) std::atomic<uint32_t> ends{0};  // rises after each change of phase: what a thread sleeps on
};

// One thread's view of them: every thread of a region has its own, and goes through the same phases.
class Team {
  public:
    Team(Phases &phases, int threads) : phases_(phases), threads_(threads) {}

    // Run body(item) for each of 0 .. items - 1, and return when all are done. Every thread of the team calls it.
    template <class Body>
    inline void each(int items, const Body &body) {
        share(items, 1, body);
    }

    // The same, for items that lie side by side in memory: a thread takes a run of them, which it reads faster.
    template <class Body>
    inline void each_in_runs(int items, const Body &body) {
        share(items, std::max(1, items / (RUNS * threads_)), body);
    }

  private:
    static constexpr int SPINS = 2000;
    static constexpr int RUNS = 4;  // a thread takes about so many runs: the last of them is what others wait for

    template <class Body>
    inline void share(int items, int run, const Body &body) {
        if (items <= 0) return;
        uint64_t turn = phases_.turn.load(std::memory_order_acquire);
        while (uint32_t(turn >> 32) == phase_ && uint32_t(turn) < uint32_t(items)) {
            if (!phases_.turn.compare_exchange_weak(turn, turn + uint64_t(run), std::memory_order_acq_rel)) continue;
            const int first = int(uint32_t(turn)), last = std::min(items, first + run);
            for (int item = first; item < last; item++) body(item);
            if (phases_.done.fetch_add(last - first, std::memory_order_acq_rel) + last - first == items) end();
            turn = phases_.turn.load(std::memory_order_acquire);
        }
        wait();
        phase_++;
    }

    void end() {
        phases_.done.store(0, std::memory_order_relaxed);
        phases_.turn.store(uint64_t(phase_ + 1) << 32, std::memory_order_release);
        // Counted, not set: others may end later phases before this thread gets here.
        phases_.ends.fetch_add(1, std::memory_order_release);
        phases_.ends.notify_all();
    }

    bool is_over() const { return uint32_t(phases_.turn.load(std::memory_order_acquire) >> 32) > phase_; }

    void wait() {
        for (int spin = 0; spin < SPINS; spin++) {
            if (is_over()) return;
            TANDEM_PAUSE();
        }
        for (;;) {
            const uint32_t ends = phases_.ends.load(std::memory_order_acquire);
            if (is_over()) return;
            phases_.ends.wait(ends, std::memory_order_acquire);
        }
    }

    Phases &phases_;
    const int threads_;
    uint32_t phase_ = 0;
};

// Run body(team) on so many threads at once, or on as many as there are; the pool is OpenMP's, the one torch uses.
template <class Body>
void together(int threads, const Body &body) {
    Phases phases;
    if (threads <= 1) {
        Team team(phases, 1);
        body(team);
        return;
    }
#pragma omp parallel num_threads(threads) shared(phases)
    {
        Team team(phases, threads);
        body(team);
    }
}

}  // namespace
