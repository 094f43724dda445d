"""Seeds made of several numbers: another one for each combination, whatever the order of its parts."""

from __future__ import annotations

import itertools

from pipelag.randomness import mix


def test_every_combination_has_a_seed_of_its_own() -> None:
    """Of seed, minibatch and stage, say: 2 with 1 is not 1 with 2, nor 3 with 0."""
    parts = [
        *itertools.product(range(12), repeat=3),
        *itertools.product(range(40), repeat=2),
        *((n,) for n in range(99)),
    ]
    seeds = {mix(*each) for each in parts}
    assert len(seeds) == len(parts) and all(0 <= seed < 2**63 for seed in seeds)
    assert mix(3, -1) not in seeds  # as a minibatch's own draws have it


def test_seeds_are_the_same_on_every_machine() -> None:
    """Logs are repeated by them."""
    assert (mix(0), mix(1, 2), mix(2, 1)) == (0, 2877418497362709762, 268381947344025288)
