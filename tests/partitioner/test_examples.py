"""The files under config/examples, which users copy: they are read, planned, and are what the suite itself computes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pipelag.__main__ import main
from pipelag.models import build
from pipelag.timing.layers import Profile
from pipelag.timing.roofline import roofline

EXAMPLES = Path("config/examples")
pytestmark = pytest.mark.usefixtures("in_project")


@pytest.mark.parametrize(
    ("cluster", "plan"),
    [
        ("cluster_a", "plan 15-1: 2 stages on 16"),
        ("one_server", "plan 4: "),
        ("racks", "plan 15-1: 2 stages on 16"),
    ],
)
def test_an_example_is_planned(cluster: str, plan: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile, out = EXAMPLES / "vgg16_v100.jsonl", tmp_path / "plan.svg"
    assert main(["partition", str(profile), "--cluster", str(EXAMPLES / f"{cluster}.yaml"), "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(plan)
    assert out.stat().st_size > 1000


def test_the_profile_is_what_its_readme_says() -> None:
    with torch.device("meta"):
        model, batch = build("vgg16_imagenet"), torch.zeros(64, 3, 224, 224)
    computed, stored = roofline(model, batch, "v100"), Profile.load(EXAMPLES / "vgg16_v100.jsonl")
    assert [layer.name for layer in stored.layers] == [layer.name for layer in computed.layers]
    assert [layer.weight_bytes for layer in stored.layers] == [layer.weight_bytes for layer in computed.layers]
    assert [layer.total_ms for layer in stored.layers] == pytest.approx(
        [layer.total_ms for layer in computed.layers], rel=1e-6
    )


def test_every_example_is_listed() -> None:
    listed = set(re.findall(r"^\| `(.+?)` ", (EXAMPLES / "README.md").read_text(), re.M))
    assert listed == {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
