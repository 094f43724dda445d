"""`make headline`: draw the committed figures, which can be seen before anything has run.

They are a few figures of each paper with logs under results/published, drawn as the workflow draws them, and a page
with each caption, the verdicts on its claims, and the command that makes it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

from pipelag.experiments import load_paper, load_scale
from pipelag.files import write_whole
from pipelag.report.gather import title_of
from pipelag.report.style import save
from pipelag.results.context import Context
from pipelag.results.drawing import draw
from pipelag.results.loading import load_results
from pipelag.results.verdict import verdicts

DEVICE = "cpu"
# Figures of trainings on real data where a paper has some, and else of its schedules and plans.
HEADLINES = {
    "leaderboard": ("figure_1", "figure_2", "figure_3"),
    "stale_weights": ("figure_5a", "figure_5c", "control_curves", "figure_6", "figure_7"),
    "pipedream": ("links", "figure_10", "figure_15"),
    "pipemare": ("figure_2", "figure_3", "figure_7", "figure_6b"),
    "pipeoptim": ("figure_3a",),
    "spectrain": ("figure_9", "figure_12"),
}
HEAD = """# Headline figures

`make headline` draws these figures from the logs under `results/published/{device}` and writes this page; `make show`
draws all the others. Below each figure are its claims, each with its verdict and the numbers behind it, and the command
that draws the figure again. [docs/judging.md](../../docs/judging.md) explains how claims are judged, and
[docs/results.md](../../docs/results.md) lists all that fail.
"""


def name_of(paper: str, result: str) -> str:
    """A figure's file here, without its ending."""
    return f"{paper}_{result}"


def main(out: Path) -> None:
    """Draw the figures into a folder, and write its page."""
    page = [HEAD.format(device=DEVICE)]
    scale = load_scale("published", DEVICE)
    for name, results in HEADLINES.items():
        paper = load_paper(name)
        load_results(paper)
        for result in results:
            context = Context.load(paper, result, scale)
            drawn, base = draw(context), out / name_of(name, result)
            save(drawn.figure, base, (".svg", ".png"), drawn.footer(context))
            in_few_colours(base.with_suffix(".png"))
            page.append(section(context, base.name))
    write_whole(out / "README.md", "\n".join(page))


def in_few_colours(png: Path) -> None:
    """Reduce a picture to 256 colours, more than a chart has, which halves its size in the repository."""
    with Image.open(png) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(png, optimize=True)


def section(context: Context, file: str) -> str:
    """The page's section on a figure: picture, caption, verdicts, command."""
    title = f"{context.paper.short}, {title_of(context.paper, context.name)}"
    command = f"snakemake --cores all --config scale=published published={DEVICE} -- {file}"
    judged = [f"* “{one.text}” **{one.verdict}**: {' '.join(one.why.split())}" for one in verdicts(context)]
    return "\n".join(
        [f"## {title}", "", f"![{title}]({file}.svg)", "", context.result.caption, "", *judged, "", f"`{command}`", ""]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
