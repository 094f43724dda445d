"""How runs fall short of the paper's: what is said of each setting, of several runs at once, and where."""

from typing import Any

import pytest

from pipelag.results.shortfall import shortfall_of
from pipelag.runs.spec import RunSpec


def a_run(**changes: Any) -> RunSpec:
    """A training of a Transformer; `changes` of its settings, of `model`, `data`, `optimizer` and so on within them."""
    settings: dict[str, Any] = {
        "model": {"name": "transformer", "options": {"dropout": 0.3}},
        "data": {"name": "multi30k"},
        "batch": 64,
        "optimizer": {"name": "adamw", "lr": 0.0005, "weight_decay": 0.0001},
        "lr_schedule": {"name": "inverse_sqrt", "warmup": 100},
        "phases": [{"method": "pipemare", "steps": 1000, "cuts": [1, 2]}],
        "options": {"beam": 5},
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    return RunSpec.model_validate(settings)


def phases(**changes: Any) -> list[dict[str, Any]]:
    return [{"method": "pipemare", "steps": 1000, "cuts": [1, 2], **changes}]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, ""),
        ({"phases": phases(steps=500), "lr_schedule": {"warmup": 50}}, "Transformer for 500 of 1,000 steps"),
        ({"model": {"options": {"dropout": 0.3, "width": 0.5}}}, "smaller models"),
        ({"model": {"options": {"dropout": 0.0}}}, "no dropout"),
        ({"model": {"options": {"dropout": 0.1}}}, "another dropout"),
        ({"model": {"options": {}}}, "another dropout"),
        ({"optimizer": {"betas": [0.8, 0.9]}}, "other settings of the optimizer"),
        ({"lr_schedule": {"horizon": 100}}, "another learning-rate schedule"),
        ({"phases": phases(stage_lr={1: 0.1})}, "other learning rates by stage"),
        ({"options": {"label_smoothing": 0.1}}, "a label smoothing of 0.1 instead of 0"),
        ({"options": {"length": 70}}, "sequences of another length"),
        ({"optimizer": {"lr": 0.002}}, "a learning rate of 0.002 instead of 0.0005"),
        ({"optimizer": {"weight_decay": 0.0}}, "a weight decay of 0 instead of 0.0001"),
        ({"lr_schedule": {"name": "cosine"}}, "another learning-rate schedule"),
        ({"lr_schedule": {"warmup": 0}}, "a warm-up over 0.0% of the steps instead of 10.0%"),
        ({"batch": 32}, "minibatches of 32 instead of 64"),
        ({"data": {"options": {"test": 300}}}, "Transformer tested with 300 samples"),
        ({"options": {"beam": 1}}, "beams of 1 instead of 5"),
        ({"phases": phases(options={"annealing": 400})}, "annealing over 40% of the steps instead of 0%"),
        (
            {"phases": [*phases(method="gpipe", steps=200), *phases(steps=800)]},
            "a synchronous start over 20% of the steps instead of 0%; other learning rates by stage",
        ),
        ({"phases": phases(microbatches=4)}, "4 microbatches instead of 1"),
        ({"phases": phases(cuts=[1])}, "2 stages instead of 3"),
        ({"options": {"precision": "bf16"}}, "passes in bfloat16"),
    ],
)
def test_each_setting_that_differs_is_said(changes: dict[str, Any], sentence: str) -> None:
    assert shortfall_of([(a_run(**changes), a_run())], most=None) == sentence


def test_minibatches_of_sentences_stand_beside_those_of_tokens() -> None:
    """19 is then in how many equal pieces the tokens come, and no number of sentences."""
    theirs = a_run(batch=19, options={"tokens": 4655})
    assert shortfall_of([(a_run(), theirs)]) == "minibatches of 64 sentences instead of 4,655 tokens"
    ours = a_run(batch=19, options={"tokens": 1000})
    assert shortfall_of([(ours, theirs)]) == "minibatches of 1,000 tokens instead of 4,655 tokens"
    shorter = a_run(phases=phases(steps=500), lr_schedule={"warmup": 50})
    steps = "Transformer for 500 steps of 64 sentences instead of 1,000 of 4,655 tokens"
    assert shortfall_of([(shorter, theirs)]) == steps


def test_what_runs_differ_in_alike_is_said_once() -> None:
    """Two values in the order of the runs, so that they stand beside the paper's own; of more, the ends."""

    def shorter(steps: int, rate: float) -> tuple[RunSpec, RunSpec]:
        here = {"phases": phases(steps=steps // 10), "lr_schedule": {"warmup": 0}, "optimizer": {"lr": rate}}
        there = {"phases": phases(steps=steps), "lr_schedule": {"warmup": 0}}
        return a_run(**here), a_run(**there)

    two = shortfall_of([shorter(4000, 0.002), shorter(1000, 0.001)])
    assert (
        two
        == "Transformer for 400 and 100 of 4,000 and 1,000 steps; learning rates of 0.002 and 0.001 instead of 0.0005"
    )
    three = shortfall_of([shorter(4000, 0.002), shorter(1000, 0.001), shorter(2000, 0.004)])
    assert (
        three
        == "Transformer for 100 to 400 of 1,000 to 4,000 steps; learning rates of 0.001 to 0.004 instead of 0.0005"
    )


def test_what_does_not_belong_one_to_one_is_not_set_side_by_side() -> None:
    """Of names the paper's are told by ours; of numbers the ranges."""

    def on(data: str, theirs: str) -> tuple[RunSpec, RunSpec]:
        return a_run(data={"name": data}), a_run(data={"name": theirs})

    three = [on("multi30k", "iwslt14"), on("multi30k", "wmt16"), on("iwslt14", "wmt17")]
    assert shortfall_of(three) == "Multi30k instead of IWSLT14 and WMT16; IWSLT14 instead of WMT17"

    def at(rate: float, theirs: float) -> tuple[RunSpec, RunSpec]:
        return a_run(optimizer={"lr": rate}), a_run(optimizer={"lr": theirs})

    assert shortfall_of([at(0.1, 0.01), at(0.2, 0.02)]) == "learning rates of 0.1 and 0.2 instead of 0.01 and 0.02"
    crossed = [at(0.1, 0.01), at(0.2, 0.01), at(0.1, 0.05)]
    assert shortfall_of(crossed) == "learning rates of 0.1 to 0.2 instead of 0.01 to 0.05"


def test_a_network_of_our_own_is_told_from_anothers_form_of_it() -> None:
    pair = a_run(model={"name": "alexnet"}), a_run(model={"name": "alexnet_imagenet"})
    assert shortfall_of([pair]) == "network AlexNet (our own) instead of AlexNet (torchvision's)"


def test_networks_that_fall_short_alike_are_named_together() -> None:
    few = {"phases": phases(steps=500), "lr_schedule": {"warmup": 50}, "data": {"options": {"test": 300}}}
    networks = ({"model": {"name": name}} for name in ("transformer", "gnmt", "bert"))
    three = [(a_run(**few, **network), a_run(**network)) for network in networks]
    assert shortfall_of(three, shown=True) == (
        "Transformer, GNMT and BERT for 500 of 1,000 steps; Transformer, GNMT and BERT tested with 300 samples"
    )


def test_a_figure_names_the_four_that_matter_most_and_a_page_all() -> None:
    changes = {
        "options": {"beam": 1},
        "model": {"options": {"dropout": 0.0, "width": 0.5}},
        "batch": 32,
        "optimizer": {"lr": 0.002},
        "phases": phases(steps=500),
        "lr_schedule": {"warmup": 50},
    }
    pairs = [(a_run(**changes), a_run())]
    most = "smaller models; Transformer for 500 steps of 32 instead of 1,000 of 64; "
    most += "a learning rate of 0.002 instead of 0.0005"
    assert shortfall_of(pairs) == f"{most}; no dropout; and other differences"
    assert shortfall_of(pairs, most=None) == f"{most}; no dropout; beams of 1 instead of 5"


def test_another_data_set_comes_before_how_long_runs_are() -> None:
    shorter = {"phases": phases(steps=500), "lr_schedule": {"warmup": 50}}
    pair = (a_run(data={"name": "multi30k"}, **shorter), a_run(data={"name": "iwslt14"}))
    assert shortfall_of([pair]) == "Multi30k instead of IWSLT14; Transformer for 500 of 1,000 steps"


def test_what_scores_are_tested_with_and_how_a_method_is_set_is_named_however_much_else_there_is() -> None:
    changes = {
        "options": {"beam": 1},
        "data": {"options": {"test": 300}},
        "model": {"options": {"dropout": 0.0, "width": 0.5}},
        "batch": 32,
        "optimizer": {"lr": 0.002},
        "phases": phases(steps=500, options={"annealing": 50}),
        "lr_schedule": {"warmup": 50},
    }
    pairs = [(a_run(**changes), a_run())]
    parts = [
        "smaller models",
        "Transformer for 500 steps of 32 instead of 1,000 of 64",
        "Transformer tested with 300 samples",
        "beams of 1 instead of 5",
        "annealing over 10% of the steps instead of 0%; and other differences",
    ]
    assert shortfall_of(pairs, most=2, shown=True) == "; ".join(parts)
    assert "tested" not in shortfall_of(pairs)
