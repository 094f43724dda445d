# Shared by the rules: the plan (papers x scale -> results -> runs) and the places of files. It names no paper's arm.
import difflib
import functools
import getpass
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil  # which Snakemake itself needs
import snakemake_logger_plugin_pipelag as progress

from pipelag import experiments
from pipelag import job as client
from pipelag.data.files import manifest
from pipelag.errors import PipelagError
from pipelag.plugins import use_plugins
from pipelag.results.logs import Item
from pipelag.results.named import check_results, drawing_code, report_code
from pipelag.runs.folder import check_places
from pipelag.runs.kinds import KINDS
from pipelag.warm import WarmProcess
from snakemake.cli import get_argument_parser

AHEAD = 60.0  # seconds that a file's date may be ahead of the clock, as clocks of two machines differ a little
TABLES = ("table", "config", "text-claim")  # kinds of results that are tables; the others are figures


def refuse(message):
    """End with one sentence. Snakemake would report an exception with a line of this file, where nothing is wrong."""
    sys.exit(f"pipelag: {message}")


def check_config(config):
    """Refuse unknown keys of --config, with the nearest known key, and impossible values."""
    # Snakemake turns `--config retrain=true` into a string; only `True` becomes a boolean.
    config["retrain"] = {"true": True, "false": False}.get(str(config.get("retrain")).lower(), config.get("retrain"))
    try:
        experiments.check_workflow(dict(config))
    except PipelagError as error:
        refuse(str(error))


def check_room(folder):
    """Refuse a folder in which Snakemake cannot work or keep its records, as it would fail with a traceback."""
    if {"{", "}"} & {*str(Path(folder).resolve())}:
        refuse(f"the path {Path(folder).resolve()} has braces, which Snakemake takes for its own; rename that folder")
    if shutil.disk_usage(folder).free < progress.LEAST:
        refuse(f"{progress.FULL} of {Path(folder).resolve()}; free some space and start again")
    check_writable(Path(folder, ".snakemake"), "Snakemake keeps its records")


def check_writable(folder, what):
    """Refuse a folder that this user cannot write to or create. what: the clause that says what goes there."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        mend = "make that possible, or work in a clone of your own"
        refuse(f"{folder.resolve()}, where {what}, cannot be written to; {mend}")


def plan_of(config, scale):
    """{(paper, result): arms} for the papers asked for."""
    plan = {}
    for name in config["papers"]:
        paper = experiments.load_paper(name)
        check_results(paper)  # a missing drawing or a misspelt claim is reported now, not hours later
        plan |= {(paper.id, result): arms for result, arms in experiments.all_arms(paper, scale).items()}
    return plan


def check_names(scale, plan):
    """Refuse names with special characters: they become parts of paths, patterns and commands."""
    names = {f"the scale '{scale.name}'": scale.name}
    for paper, result in plan:
        names |= {f"the paper '{paper}'": paper, f"the result '{result}' of {paper}": result}
    for what, name in names.items():
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            refuse(f"{what} has a name that cannot be used: use only A-Z, a-z, 0-9, _, . and -, the last two not first")


def is_done(run_id):
    """Whether a run's log is there."""
    folder = experiments.run_dir(scale, run_id)
    return (folder / "summary.json").exists() and (folder / "metrics.jsonl").exists()


def only_looks(words):
    """Whether a command line asks only for what Snakemake would do, as a list or a picture, and carries nothing out."""
    asked, _ = get_argument_parser().parse_known_args(words)
    pictures = ("dag", "rulegraph", "filegraph", "d3dag", "report")
    return any(getattr(asked, name) for name in ("dryrun", "lint", "summary", "detailed_summary", "list_rules", *pictures))


def run_folders():
    """The existing folders of the runs asked for; refuses anything else that is in the place of one."""
    folders = {experiments.run_dir(scale, arm.spec.id) for arms in plan.values() for arm in arms if not arm.left_out}
    there = sorted(folder for folder in folders if os.path.lexists(folder))
    try:
        for folder in there:
            check_places(folder)
    except PipelagError as error:
        refuse(str(error))
    return there


def set_damaged_aside():
    """Set aside the summary of a finished run whose log is not what the run wrote, so that the run is repeated.

    Snakemake goes by dates alone, and would draw the results without that log. A published log is refused instead. A
    call that carries nothing out changes nothing, and prints what would happen.
    """
    for arm in {arm.spec.id: arm for arms in plan.values() for arm in arms if not arm.left_out}.values():
        damaged, folder = Item.of(arm, scale).damaged, experiments.run_dir(scale, arm.spec.id)
        if damaged and trains_nothing:
            refuse(f"{damaged}, or restore the published log (git restore {folder})")
        if damaged and only_looks(sys.argv[1:]):
            print(f"pipelag: {damaged.split(';')[0]}; a run would set its summary aside and repeat it", file=sys.stderr)
        elif damaged:
            summary = folder / "summary.json"
            try:
                os.replace(summary, summary.with_suffix(".damaged"))
            except OSError as error:
                refuse(f"{damaged}: its summary cannot be set aside ({error.strerror})")
            print(f"pipelag: {damaged.split(';')[0]}; its summary is now {summary.stem}.damaged, so that "
                  "the run is repeated when a result needs it", file=sys.stderr)


def check_dates():
    """Set dates ahead of this machine's clock (it was set back, or logs are from another machine) to now, in order.

    Snakemake would take everything made from such files for out of date, however often it is made. A call that carries
    nothing out changes nothing, and prints what would happen.
    """
    now = time.time()
    logs = [folder / name for folder in run_folders() for name in ("metrics.jsonl", "summary.json")]
    drawn = [path for path in Path(scale.figures).rglob("*") if path.is_file()]
    dates = {path: path.stat().st_mtime for path in [*logs, *drawn] if path.exists()}
    ahead = sorted((path for path, date in dates.items() if date > now + AHEAD), key=dates.get)
    if not ahead:
        return
    said = f"{len(ahead)} files are dated ahead of this machine's clock, the furthest of them {ahead[-1]}"
    if only_looks(sys.argv[1:]):
        print(f"pipelag: {said}; a run would set their dates to now", file=sys.stderr)
        return
    try:
        for number, path in enumerate(ahead, start=1):
            date = now - 0.001 * (len(ahead) - number)
            os.utime(path, (date, date))
    except OSError as error:
        refuse(f"{said}, and {path} cannot be dated back ({error.strerror}); set the clock right, or touch the files")
    print(f"pipelag: {said}; their dates are set to now", file=sys.stderr)


def log_files(paper, result):
    """The log files of a result's runs; at a frozen scale, and for runs left out, only those that exist."""
    files = []
    for arm in plan[paper, result]:
        folder = experiments.run_dir(scale, arm.spec.id)
        if is_done(arm.spec.id) or not (trains_nothing or arm.left_out):
            files += [str(folder / "metrics.jsonl"), str(folder / "summary.json")]
    return sorted(set(files))


def products(paper, result):
    """The files that drawing a result writes."""
    kind = experiments.load_paper(paper).results[result].kind
    ends = ["csv", "md", "tex"] if kind in TABLES else ["pdf", "svg", "png", "csv"]
    return [f"{scale.figures}/{paper}/{result}.{end}" for end in [*ends, "json"]]


def drawn_as(wanted):
    """A pattern for papers with a result of a wanted kind next in the path; one that matches nothing if there is none.

    The same result's name may be a table in one paper and a figure in another.
    """
    results = {}
    for paper, result in plan:
        if wanted(experiments.load_paper(paper).results[result].kind):
            results.setdefault(paper, []).append(result)
    return "|".join(f"{paper}(?=/(?:{'|'.join(names)})\\.)" for paper, names in results.items()) or "(?!)"


def asked_for(paper, result):
    """Whether a call for everything makes this result.

    An optional result is made by its name first, unless all of its runs are there or other results need them.
    """
    runs = runs_of(paper, result)
    return (paper, result) not in optional or (bool(runs) and all(run in needed or is_done(run) for run in runs))


def runs_of(paper, result):
    """The ids of the runs of a result that the scale does not leave out."""
    return {arm.spec.id for arm in plan[paper, result] if not arm.left_out}


def digest_of(paper, result):
    """A hash that changes, so that the result is drawn again, with all that it shows beside its logs.

    That is: its entry in the config, its runs at this scale, the code that draws and judges it, the paper's other
    printed numbers, and its runs at the paper's scale, with which its runs are compared.
    """
    of = experiments.load_paper(paper)
    content = [of.results[result].model_dump_json(exclude={"optional"})]
    content += [repr((arm.spec.id, arm.left_out, arm.note)) for arm in plan[paper, result]]
    content += [repr([(name, each.reported) for name, each in of.results.items()])]
    content += [arm.spec.id for arm in at_paper_scale(paper)[result]]
    content += [repr(scale.least_seeds.get(paper)), code_of(paper)]
    return hashlib.sha256("".join(content).encode()).hexdigest()[:12]


code_of = functools.cache(drawing_code)  # computed once per paper, for all its results


@functools.cache
def at_paper_scale(paper):
    """The runs of each of a paper's results at the paper's scale."""
    return experiments.all_arms(experiments.load_paper(paper), paper_scale)


def head_digest():
    """A hash that changes with what the site shows beside the records: names and citations of papers, the scale's title
    and note, docs/ambiguities.md, and the code that makes the site."""
    said = {"title", "short", "year", "citation"}
    heads = [experiments.load_paper(name).model_dump_json(include=said) for name in config["papers"]]
    heads += [scale.title, scale.note]
    sheet = Path("docs/ambiguities.md")
    heads += [sheet.read_text() if sheet.exists() else "", report_code()]
    return hashlib.sha256("".join(heads).encode()).hexdigest()[:12]


def data_of(wildcards):
    """The stamp of the data set that a run reads, if the set has to be fetched.

    A finished run does not ask for a missing stamp: a fetch for another run must not repeat it.
    """
    name = runs[wildcards.id].data_set
    if name not in fetched:
        return []
    stamp = f"results/data/{name}.txt"
    return [stamp] if Path(stamp).exists() or not is_done(wildcards.id) else []


def threads_of(wildcards):
    """All cores for a run that measures times; `threads_per_run` of the config for others."""
    return workflow.cores or 1 if KINDS[runs[wildcards.id].kind].times else config["threads_per_run"]


def gpus_of(wildcards):
    """GPUs to ask a cluster for: one per worker, or none for a run that uses none."""
    spec = runs[wildcards.id]
    return spec.workers if has_gpu and KINDS[spec.kind].on_gpu else 0


def gpu_share_of(wildcards):
    """Percent of a GPU: training runs share one, runs that measure times have it alone; 0 without a GPU."""
    kind = KINDS[runs[wildcards.id].kind]
    if not has_gpu or not kind.on_gpu:
        return 0
    return 100 if kind.times else 100 // config["runs_per_gpu"]


def is_file(word):
    """Whether a word of the command line names a file, or an existing folder."""
    return "." in word or "/" in word or Path(word).exists()


def check_targets(words):
    """Refuse a word of the command line that looks like a paper's result and is not one, and name the nearest result.

    Refuse a paper, too, that has a file in config/papers and is not asked for: Snakemake has no rule for it.

    Files are left alone: `--report stale_weights_report.zip`, `--directory pipedream_copy`.
    """
    names = [f"{paper}_{result}" for paper, result in plan]
    asleep = [paper for paper in experiments.papers() if paper not in config["papers"]]
    for word in words:
        of = next((paper for paper in asleep if word == paper or word.startswith(f"{paper}_")), None)
        if of is not None and word not in [*config["papers"], *names] and not is_file(word):
            refuse(f"'{word}' needs '{of}' among the papers in config/config.yaml (or --config); add it there")
        if word.startswith(tuple(f"{paper}_" for paper in config["papers"])) and word not in names and not is_file(word):
            near = difflib.get_close_matches(word, names, n=1)
            refuse(f"unknown result '{word}'" + (f"; did you mean '{near[0]}'?" if near else ""))


def hang_up(number, frame):
    """End the jobs, and then as after Ctrl-C: Snakemake itself would leave its lock, and refuse the next call."""
    for process in psutil.Process().children(recursive=True):
        if warm.process is None or process.pid != warm.process.pid:  # which ends last
            with suppress(psutil.Error):
                process.send_signal(number)
    raise KeyboardInterrupt


def heed_hang_up():
    """Have the signal of a terminal that is closed call `hang_up`, if nobody (such as nohup) handles or ignores it."""
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, hang_up)


def name_user():
    """Name a user who is only a number to the system, as in many containers: Snakemake asks for a name."""
    try:
        getpass.getuser()
    except (KeyError, OSError):  # the latter from Python 3.13 on
        os.environ |= {"LOGNAME": str(os.getuid())}


def name_runs():
    """Give the logger a name for each run: the first result that shows it, with labels and seed."""
    for (paper, result), its_arms in plan.items():
        for arm in its_arms:
            words = dict.fromkeys([f"{paper} {result}", *arm.labels.values(), f"seed {arm.seed}"])
            progress.NAMES.setdefault(arm.spec.id, ", ".join(words))


check_room(".")
check_config(config)
try:
    use_plugins(config["plugins"])
    scale = experiments.load_scale(config["scale"], config["published"])
    paper_scale = experiments.load_scale("paper")
    plan = plan_of(config, scale)
    check_names(scale, plan)
except PipelagError as error:
    refuse(str(error))

has_gpu = config["device"] == "cuda" or (config["device"] == "auto" and shutil.which("nvidia-smi") is not None)
check_targets(sys.argv[1:])
trains_nothing = scale.frozen and not config["retrain"]
check_dates()
set_damaged_aside()
if not only_looks(sys.argv[1:]):
    check_writable(Path("results", scale.name, "logs"), "jobs write their logs")
    check_writable(Path(scale.figures), "results are drawn")
runs = {arm.spec.id: arm.spec for arms in plan.values() for arm in arms if not arm.left_out}
heed_hang_up()
name_user()
name_runs()
runs_folder = str(experiments.run_dir(scale, "x").parent)
# Data sets that come with pipelag or are generated are not fetched.
fetched = sorted({*manifest.names()} & {s.data_set for s in runs.values()})
# A paper whose results are all optional has no page until one of them is made.
optional = {key for key in plan if experiments.load_paper(key[0]).results[key[1]].optional}
needed = {run for key in plan if key not in optional for run in runs_of(*key)}
asked = [key for key in plan if asked_for(*key)]
shown = [name for name in config["papers"] if any(paper == name for paper, _ in asked)]
drawings = [file for paper, result in asked for file in products(paper, result)]
pages = [f"{scale.figures}/{page}.html" for page in ("index", *(f"{name}/index" for name in shown), *map("/".join, asked))]
reports = [f"{scale.figures}/{name}.pdf" for name in shown]
reports += [f"{scale.figures}/pipelag.pdf"] if len(shown) > 1 else []
tables, figures = drawn_as(lambda kind: kind in TABLES), drawn_as(lambda kind: kind not in TABLES)


# `pipelag` in the rules belongs to the interpreter that runs snakemake, whether or not its environment is activated. It
# is a fork of the warm process that the Snakefile starts or, on another machine, a process of its own.
job = f"{shlex.quote(sys.executable)} -S -I {shlex.quote(client.__file__)}"
shell.prefix(f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH; pipelag() {{{{ {job} \"$@\"; }}}}; ")


wildcard_constraints:
    id="[0-9a-f]{12}",
    paper="|".join(config["papers"]),
