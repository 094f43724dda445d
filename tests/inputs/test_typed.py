"""Values from outside are exactly of the types that are stated; a refusal says where, what is there and what should be.

The models here are made up, so that every kind of mistake can be had alone.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from pipelag.errors import PipelagError
from pipelag.typed import MOST_PASSES, Seed, Stage, Typed, check_keywords, check_passes, checked


class Part(Typed):
    size: int = Field(default=1, ge=1, le=2000)
    share: float = Field(default=0.5, gt=0, lt=1)
    kind: Literal["ring", "tree"] = "ring"


class Whole(Typed):
    name: str
    seed: Seed = 0
    parts: list[Part] = []
    rates: dict[Stage, float] = {}
    either: int | Part = 1
    few: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({}, "the thing 'name' of a test is missing"),
        ([], "the things of a test are []; they should be a mapping of names to values"),
        ({"name": 5}, "the thing 'name' of a test is 5; it should be a string"),
        ({"nama": "a"}, "unknown thing 'nama' of a test; did you mean 'name'?"),  # and not that the name is missing
        ({"name": "a", "seed": 2**32}, "the thing 'seed' of a test is 4294967296; it should be below 4.29497e+09"),
        ({"name": "a", "seed": True}, "the thing 'seed' of a test is True; it should be a whole number"),
        ({"name": "a", "seed": 3.0}, "the thing 'seed' of a test is 3.0; it should be a whole number"),
        ({"name": "a", "few": []}, "the thing 'few' of a test is []; it should be at least 1 long"),
        ({"name": "a", "parts": [{}, {"size": 0}]}, "the thing 'parts.1.size' of a test is 0; it should be 1 or more"),
        (
            {"name": "a", "parts": [{"size": 2001}]},
            "the thing 'parts.0.size' of a test is 2001; it should be 2,000 or less",
        ),
        ({"name": "a", "parts": [{"share": 1}]}, "the thing 'parts.0.share' of a test is 1; it should be below 1"),
        ({"name": "a", "parts": [{"share": 0.0}]}, "the thing 'parts.0.share' of a test is 0.0; it should be above 0"),
        (
            {"name": "a", "parts": [{"share": float("nan")}]},
            "'parts.0.share' of a test is nan; it should be a finite number",
        ),
        (
            {"name": "a", "parts": [{"kind": "rng"}]},
            "'parts.0.kind' of a test is 'rng', which is not known; did you mean 'ring'?",
        ),
        (
            {"name": "a", "parts": [{"kind": 5}]},
            "the thing 'parts.0.kind' of a test is 5; it should be 'ring' or 'tree'",
        ),
        ({"name": "a", "parts": [{"sizes": 5}]}, "unknown thing 'parts.0.sizes' of a test; did you mean 'size'?"),
        (
            {"name": "a", "either": {"size": "b"}},
            "the thing 'either.size' of a test is 'b'; it should be a whole number",
        ),
        (
            {"name": "a", "rates": {"0": 0.1}},
            "the thing 'rates.0' of a test is '0'; it should be under another key: 1 or more",
        ),
        ({"name": "a", "rates": {"2": "b"}}, "the thing 'rates.2' of a test is 'b'; it should be a number"),
    ],
)
def test_the_first_mistake_is_told_with_its_place(content: Any, sentence: str) -> None:
    with pytest.raises(PipelagError) as refused:
        checked(Whole, content, "thing of a test")
    assert sentence in str(refused.value)


def test_a_name_in_the_refusal_stays_as_it_is() -> None:
    with pytest.raises(PipelagError, match="^the settings of arm .*g<9>' are None; they should be a mapping"):
        checked(Whole, None, "setting of arm '\\g<9>'")


def test_what_fits_is_taken_as_it_is() -> None:
    content = {"name": "a", "seed": 2**32 - 1, "parts": [{"size": 2000, "share": 0.25}], "rates": {"10000": 1}}
    whole = checked(Whole, content, "thing")
    assert whole.seed == 2**32 - 1 and whole.parts == [Part(size=2000, share=0.25)] and whole.rates == {10_000: 1.0}


def test_a_minibatch_may_have_so_many_passes_and_no_more() -> None:
    check_passes(MOST_PASSES // 2, 2)
    with pytest.raises(PipelagError, match="^2 microbatches on 100,001 stages are too many"):
        check_passes(MOST_PASSES // 2 + 1, 2)


def option(first: Any, needed: int, rate: float = 0.1, near=0.5, free=None, flag=False, *, way: Literal["a", 2] = "a"):  # type: ignore[no-untyped-def]  # noqa: E501
    """Some of its parameters have types, and of the others the defaults tell."""


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "the option 'needed' of a test is missing"),
        ({"needed": 1, "raet": 2}, "unknown option 'raet' of a test; did you mean 'rate'?"),
        (
            {"needed": 1, "first": 2},
            "unknown option 'first' of a test; it should be flag, free, near, needed, rate or way",
        ),
        ({"needed": 1.0}, "the option 'needed' of a test is 1.0; it should be a whole number"),
        ({"needed": True}, "the option 'needed' of a test is True; it should be a whole number"),
        ({"needed": 2**63}, f"the option 'needed' of a test is {2**63}; it should be a whole number"),
        ({"needed": 1, "rate": float("inf")}, "the option 'rate' of a test is inf; it should be a finite number"),
        ({"needed": 1, "rate": "a"}, "the option 'rate' of a test is 'a'; it should be a finite number"),
        (
            {"needed": 1, "near": True},
            "the option 'near' of a test is True; it should be a whole number or a finite number",
        ),
        ({"needed": 1, "free": "a"}, "'free' of a test is 'a'; it should be a whole number or a finite number or null"),
        ({"needed": 1, "flag": 1}, "the option 'flag' of a test is 1; it should be true or false"),
        ({"needed": 1, "way": 2.0}, "the option 'way' of a test is 2.0; it should be 'a' or '2'"),
    ],
)
def test_a_keyword_that_a_function_does_not_take_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PipelagError) as refused:
        check_keywords(option, 1, given, "option of a test:")
    assert sentence in str(refused.value)


def test_a_whole_number_is_a_number_and_null_stands_where_it_is_the_default() -> None:
    for more in (
        {"rate": 1},
        {"near": 1},
        {"free": None},
        {"free": 2},
        {"free": 0.5},
        {"way": 2},
        {"needed": 2**63 - 1},
    ):
        check_keywords(option, 1, {"needed": 1} | more, "option of a test:")
