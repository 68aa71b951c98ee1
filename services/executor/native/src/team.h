// The threads of one parallel region, and how they share work: whoever is free takes the next item.
//
// One region lasts a whole step, with a barrier after each phase. Items are handed out one by one since this server's
// other processes use the same cores: a thread that is held up must not hold up the phase. Which thread computes an item
// never changes its result. A waiting thread spins for as long as a phase's tail usually lasts, then sleeps.
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

class Team {
  public:
    explicit Team(int threads) : threads_(threads) {}

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
        for (int first; (first = next_.fetch_add(run, std::memory_order_relaxed)) < items;)
            for (int item = first; item < std::min(items, first + run); item++) body(item);
        wait();
    }

    void wait() {
        const uint32_t round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            round_.notify_all();
            return;
        }
        for (int spin = 0; spin < SPINS; spin++) {
            if (round_.load(std::memory_order_acquire) != round) return;
            TANDEM_PAUSE();
        }
        round_.wait(round, std::memory_order_acquire);
    }

    const int threads_;
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
};

// Run body(team) on so many threads at once; the pool is OpenMP's, the one torch uses.
template <class Body>
void together(int threads, const Body &body) {
    if (threads <= 1) {
        Team team(1);
        body(team);
        return;
    }
    Team *team = nullptr;
    alignas(Team) unsigned char place[sizeof(Team)];
#pragma omp parallel num_threads(threads) shared(team, place)
    {
#pragma omp single
        team = new (place) Team(omp_get_num_threads());
        body(*team);
    }
}

}  // namespace
