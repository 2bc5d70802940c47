"""Random numbers from keys."""

from __future__ import annotations

import numpy as np
import pytest

from packio.batches import draws


def test_numbers_are_frozen() -> None:
    """The same key gives these numbers for ever: they decide what an experiment has seen."""
    assert draws.mix(1, 2, 3) == 15020427595393229491
    assert draws.digest([5, 3, 3]) == 680657758045456180
    got = draws.uniforms(12345, np.array([0, 7]), 1, 3)
    expected = [
        [0.010355361998749979, 0.2619384821456956, 0.6195387452861972],
        [0.6036972998196918, 0.8113322240351599, 0.05550036094722122],
    ]
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-15)


def test_numbers_are_splitmix64s() -> None:
    """Against the algorithm as published, counter by counter, in Python integers."""
    gamma, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    key, view, lanes = 0xFEDCBA9876543210, 3, [0, 1, 1000, 2**40]
    got = draws.uniforms(key, np.array(lanes), view, 8)
    for row, lane in enumerate(lanes):
        for i in range(8):
            counter = lane * draws.LANE * draws.VIEWS + view * draws.LANE + i + 1
            z = (key + counter * gamma) & mask
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
            assert got[row, i] == ((z ^ (z >> 31)) >> 11) / 2**53


def test_a_lane_does_not_depend_on_the_others() -> None:
    whole = draws.uniforms(99, np.arange(50), 0, 24)
    for lane in (0, 13, 49):
        alone = draws.uniforms(99, np.array([lane]), 0, 24)
        np.testing.assert_array_equal(alone[0], whole[lane])
    np.testing.assert_array_equal(draws.uniforms(99, np.arange(50), 0, 5), whole[:, :5])


def test_a_lane_drawn_when_asked_for_is_the_same() -> None:
    whole = draws.uniforms(99, np.arange(50), 3, 24)
    for lane in (0, 13, 49):
        lazily, later = draws.Lane(99, lane, 3), draws.Lane(99, lane, 3, skip=5)
        assert [lazily[i] for i in range(24)] == whole[lane].tolist()
        assert later[2] == whole[lane, 7]


def test_lanes_views_and_keys_differ_everywhere() -> None:
    lanes = np.arange(2000)
    drawn = [draws.uniforms(key, lanes, view, 24) for key in (1, 2) for view in (0, 1, 15)]
    values = np.concatenate([d.reshape(-1) for d in drawn])
    assert len(np.unique(values)) == len(values)


def test_numbers_are_uniform_and_uncorrelated() -> None:
    u = draws.uniforms(7, np.arange(20_000), 0, 24)
    assert 0 <= u.min() < u.max() < 1
    # mean of 20,000 uniforms: standard deviation 0.002; six of them
    np.testing.assert_allclose(u.mean(axis=0), 0.5, atol=0.0125)
    np.testing.assert_allclose(u.var(axis=0), 1 / 12, atol=0.004)
    correlation = np.corrcoef(u.T) - np.eye(24)
    assert np.abs(correlation).max() < 0.045  # six standard deviations of 1 / sqrt(20,000)


def test_digest_tells_order_and_repetition() -> None:
    batches = [[1, 2, 3], [3, 2, 1], [1, 2], [1, 2, 2], [1, 2, 3, 3], []]
    assert len({draws.digest(b) for b in batches}) == len(batches)
    assert draws.digest(np.array([1, 2, 3])) == draws.digest([1, 2, 3])


@pytest.mark.parametrize("values", [(0,), (1 << 64,), (-1, 5)])
def test_mix_takes_any_int(values: tuple[int, ...]) -> None:
    assert 0 <= draws.mix(*values) < 1 << 64
