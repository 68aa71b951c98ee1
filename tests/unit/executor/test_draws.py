"""Counter-based draws: every (seed, position) has one, near neighbours have nothing in common, all are uniform."""

import numpy as np

from services.executor.draws import draw_bits, mix, uniforms


def seeds(*values: int) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return np.array(values, np.uint64)


def test_the_mixer_is_the_finalizer_of_splitmix64() -> None:
    # The first outputs of SplitMix64 seeded with 1234567, as published with the algorithm.
    golden = np.uint64(0x9E3779B97F4A7C15)
    states = seeds(1234567) + np.arange(1, 6, dtype=np.uint64) * golden
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert mix(states).tolist() == published


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    many = draw_bits(seeds(*range(100)), np.arange(100))
    assert many[42] == draw_bits(seeds(42), np.array([42]))[0]


def test_every_seed_of_64_bits_is_its_own() -> None:
    edge = seeds(0, 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
    assert len(set(draw_bits(edge, np.zeros(7, np.int64)).tolist())) == 7


def test_neighbouring_seeds_do_not_share_a_sequence() -> None:
    golden = 0x9E3779B97F4A7C15
    positions = np.arange(1000)
    first = draw_bits(np.full(1000, 5, np.uint64), positions)
    second = draw_bits(np.full(1000, 5 + golden, np.uint64), positions)
    assert not np.intersect1d(first, second).size


def test_uniforms_are_uniform_over_positions_and_over_seeds() -> None:
    count, buckets = 50_000, 50
    over_positions = uniforms(np.full(count, 42, np.uint64), np.arange(count))
    over_seeds = uniforms(np.arange(count).astype(np.uint64), np.full(count, 3))
    for values in (over_positions, over_seeds):
        assert values.min() >= 0.0 and values.max() < 1.0
        observed = np.histogram(values, buckets, (0.0, 1.0))[0]
        chi_square = ((observed - count / buckets) ** 2 / (count / buckets)).sum()
        assert chi_square < 85.4  # one in a thousand at 49 degrees of freedom; the seeds are fixed
