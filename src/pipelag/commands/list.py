"""`pipelag list`: the runs that a paper or a result asks for at a scale, and which of them are done."""

from __future__ import annotations

import argparse

from pipelag.experiments import arms, load_paper, load_scale, papers, result_of, run_dir


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paper", nargs="?", help="a paper (default: all)")
    parser.add_argument("result", nargs="?", help="one of its results (default: all)")
    parser.add_argument("--scale", default="quick", help="quick, standard, paper or published (default: quick)")
    parser.add_argument("--published", default="cpu", help="the device folder of the published scale")


def main(args: argparse.Namespace) -> int:
    """Print a line per run."""
    scale = load_scale(args.scale, args.published)
    seen: set[str] = set()
    for name in [args.paper] if args.paper else papers():
        paper = load_paper(name)
        if args.result:
            result_of(paper, args.result)
        for result in [args.result] if args.result else paper.results:
            for arm in arms(paper, result, scale):
                done = (run_dir(scale, arm.spec.id) / "summary.json").exists()
                state = (
                    arm.left_out and "left out" or (done and "done" or ("shared" if arm.spec.id in seen else "to do"))
                )
                if not arm.left_out:
                    seen.add(arm.spec.id)
                label = ", ".join(arm.labels.values())
                how = " + ".join(phase.method for phase in arm.spec.phases) or arm.spec.kind
                steps = f"{arm.spec.steps:>7} steps  seed {arm.seed}"
                print(f"{arm.spec.id}  {state:8}  {steps}  {how:26}  {name} {result}: {label}")
    print(f"{len(seen)} different runs")
    return 0
