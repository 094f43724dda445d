"""Check in ten minutes what only a GPU can tell about pipelag. Prints PASS, FAIL or SKIP per check; writes a report.

make gpu-check                                   # on this machine's GPUs
python -m benchmarks.gpu_check --device cpu      # the same checks without a GPU, from the repository's root
python -m benchmarks.gpu_check --only graphs     # only checks whose titles contain a word
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import pipelag
from pipelag import data, precision
from pipelag.data.images.batches import Batches
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import METHODS, get
from pipelag.models import build
from pipelag.runs.carry_out import resolve_device
from pipelag.runs.folder import environment
from pipelag.runs.kinds.together import train_together
from pipelag.runs.spec import RunSpec
from pipelag.simulate.training import SimulatedTraining
from pipelag.stage.optimizers import LARS, CaffeSGD
from pipelag.stage.phase import Phase
from pipelag.timing.profile import Clock
from tests.distributed.test_real import all_cases, falling, optimizer_for
from tests.runs.test_runs import LONG, lines
from tests.stage.test_guard import KINDS, gradient, losses
from tests.toy import Noise, Placed, convolutional, equal, parts_of, sgd

CUTS = (1, 2, 4)
SINGLE = [name for name, m in METHODS.items() if m.workers == "stages"]
CHECKS: list[tuple[str, Callable[[torch.device], str]]] = []


class Skip(Exception):
    """Raised by a check that this machine cannot carry out."""


def check(title: str) -> Callable[[Callable[[torch.device], str]], Callable[[torch.device], str]]:
    def add(function: Callable[[torch.device], str]) -> Callable[[torch.device], str]:
        CHECKS.append((title, function))
        return function

    return add


def on_gpu(device: torch.device) -> None:
    if device.type != "cuda":
        raise Skip("needs a GPU")


def gently(params: Any) -> torch.optim.Optimizer:
    """SGD that stays stable with delays of up to 14 updates on the same minibatch again and again."""
    return torch.optim.SGD(params, lr=0.002, momentum=0.9, weight_decay=1e-4)


def simulate(
    device: torch.device,
    phases: Sequence[Phase],
    method: str,
    dtype: torch.dtype = torch.float32,
    dropout: bool = True,
    stop: int | None = None,
    between: Callable[[], object] = lambda: None,
) -> dict[str, torch.Tensor]:
    """The final weights and buffers of a short training.

    stop: save a checkpoint after so many steps, and resume from it. between: called before every step.
    """

    def begin(seed: int) -> SimulatedTraining:
        model = convolutional(seed).to(device, dtype)
        for module in model.modules():
            if isinstance(module, nn.Dropout) and not dropout:
                module.p = 0.0
        return SimulatedTraining(model.train(), phases, optimizer_for(method), F.cross_entropy, seed=5, device=device)

    training, batches = begin(0), Noise()
    for step in range(training.total):
        between()
        training.step(batches.inputs(step).to(device, dtype), batches.targets(step).to(device))
        if step + 1 == stop:
            file = io.BytesIO()
            torch.save(training.state_dict(), file)
            file.seek(0)
            training = begin(99)
            training.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return {name: value.detach().clone() for name, value in training.model.state_dict().items()}


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The greatest relative distance between two trainings' tensors of the same name."""
    pairs = [(a[name].double().cpu(), b[name].double().cpu()) for name in a]
    return max(float((one - other).norm() / (other.norm() + 1e-12)) for one, other in pairs)


@check("every method trains, and twice the same bit for bit")
def _repeats(device: torch.device) -> str:
    for name in SINGLE:
        phases = [Phase(get(name), 8, CUTS, microbatches=parts_of(name))]
        assert equal(simulate(device, phases, name), simulate(device, phases, name)), name
    return f"{len(SINGLE)} methods"


@check("in float64, without dropout, every method is the CPU's to 1e-9")
def _like_the_cpu(device: torch.device) -> str:
    worst = 0.0
    for name in SINGLE:
        phases = [Phase(get(name), 8, CUTS, microbatches=parts_of(name))]
        here, there = (simulate(d, phases, name, torch.float64, dropout=False) for d in (device, torch.device("cpu")))
        worst = max(worst, distance(here, there))
        assert worst < 1e-9, f"{name}: {worst:.1e}"
    return f"worst {worst:.1e}"


@check("a checkpoint read on the CPU goes on bit for bit, over two phases and inside a round of replicas")
def _restarts(device: torch.device) -> str:
    for name in ("stale_weights", "pipedream", "spectrain", "pipeoptim", "pipemare"):
        phases = [Phase(get(name), 8, CUTS), Phase(get("sequential"), 4)]
        whole = simulate(device, phases, name)
        assert all(equal(whole, simulate(device, phases, name, stop=stop)) for stop in (1, 6, 9)), name
    phases = [Phase(get("pipedream"), 12, (3,), replicas=(2, 1))]
    whole = simulate(device, phases, "pipedream")
    assert all(equal(whole, simulate(device, phases, "pipedream", stop=stop)) for stop in (4, 5, 7))
    return "5 methods, replicas 2-1"


@check("dropout depends on seed, minibatch and stage alone; the caller's random numbers are left alone")
def _random(device: torch.device) -> str:
    phases = [Phase(get("stale_weights"), 6, CUTS)]
    noisy = simulate(device, phases, "stale_weights", between=lambda: torch.rand(7, device=device))
    assert equal(simulate(device, phases, "stale_weights"), noisy)
    state = (lambda: torch.cuda.get_rng_state(device)) if device.type == "cuda" else torch.get_rng_state
    model = convolutional()  # seeds the generators itself, so it comes before the comparison
    before = state()
    pipelag.train(model, Noise(), steps=3, cuts=(2,), optimizer=sgd, device=str(device))
    assert torch.equal(before, state()), "the generator has moved"
    return ""


@check("a backward reads the weights of its own time, layer by layer")
def _layers(device: torch.device) -> str:
    far = {}
    for name in KINDS:
        expected = gradient(name, "cpu", swap=True, plain=True)
        far[name] = float((gradient(name, str(device), swap=True) - expected).norm() / expected.norm())
    wrong = [name for name, value in far.items() if not value < 1e-3]
    assert not wrong, f"these read the forward's weights: {wrong}"
    return f"{len(far)} kinds, worst {max(far.values()):.1e}"


@check("guards refuse no layer here that they take on a CPU")
def _taken(device: torch.device) -> str:
    refused = [
        f"{name}{' in bf16' if bf16 else ''}: {why}"
        for name in KINDS
        for bf16 in (False, True)
        if (why := refusal(name, device, bf16)) and not refusal(name, torch.device("cpu"), bf16)
    ]
    assert not refused, "; ".join(refused)
    return f"{len(KINDS)} kinds, in fp32 and bf16"


def refusal(name: str, device: torch.device, bf16: bool) -> str:
    """Why a method whose backward reads other weights than its forward refuses this layer; empty if it does not."""
    try:
        losses(name, device, bf16)
    except PipelagError as error:
        return str(error)
    return ""


@check("steps as two CUDA graphs are the eager ones bit for bit")
def _graphs(device: torch.device) -> str:
    on_gpu(device)
    by_method = []
    for name in ("sequential", "stale_weights", "pipedream", "pipemare", "spectrain"):
        ends, seconds = [], []
        for graphs in (False, True):
            model = build("resnet20", seed=0).to(device, memory_format=torch.channels_last).train()
            phases = [Phase(get(name), 120, (3, 5, 8, 10, 13, 15, 18))]
            training = SimulatedTraining(model, phases, gently, F.cross_entropy, device=device, graphs=graphs)
            images, targets = Noise(128, 32, device=device)[0]
            for step in range(training.total):
                if step == 20:
                    torch.cuda.synchronize()
                    begun = time.perf_counter()
                training.step(images, targets)
            torch.cuda.synchronize()
            seconds.append((time.perf_counter() - begun) / 100)
            ends.append(training.model.state_dict())
        assert not training.without_graphs(0), f"{name}: {training.without_graphs(0)}"
        assert all(bool(value.isfinite().all()) for value in ends[0].values()), f"{name} diverges"
        assert equal(*ends), name
        by_method.append(f"{name} {1e3 * seconds[0]:.2f} to {1e3 * seconds[1]:.2f} ms")
    return "; ".join(by_method)


@check("several runs in one process, on a GPU each on a stream, end as each does alone")
def _together(device: torch.device) -> str:
    names = ("sequential", "stale_weights", "pipedream", "spectrain")
    content: dict[str, Any] = {"model": {"name": "resnet20"}, "batch": 64, "optimizer": {"lr": 0.05, "momentum": 0.9}}
    content["data"] = {"name": "shapes", "augment": True, "options": {"train": 600, "test": 100}}
    steps = 300 if device.type == "cuda" else 6
    specs = [
        RunSpec.model_validate(content | {"phases": [{"method": name, "steps": steps, "cuts": [5, 10, 15]}]})
        for name in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        seconds: dict[str, float] = {}
        for how in ("once", "alone", "together"):  # once: a warm-up, so that what a GPU sets up first is not timed
            asked = [(spec, Path(folder) / how / spec.id) for spec in specs]
            begun = time.perf_counter()
            ends = train_together(asked, device, 1) if how == "together" else []
            for each in asked if how != "together" else ():
                ends += train_together([each], device, 1)
            seconds[how] = time.perf_counter() - begun
            assert not [end for end in ends if isinstance(end, Exception)], ends
        logs = {how: [lines(Path(folder) / how / spec.id) for spec in specs] for how in ("alone", "together")}
    assert logs["alone"] == logs["together"]
    return f"{len(names)} runs, {seconds['alone']:.1f} s one after the other, {seconds['together']:.1f} s together"


@check("no step waits for the device")
def _no_waiting(device: torch.device) -> str:
    on_gpu(device)
    shapes = data.load("shapes", train=600, test=100)
    cases: dict[str, tuple[str, bool, Any]] = {
        name: (name, False, optimizer_for(name)) for name in ("stale_weights", "pipemare", "spectrain", "pipeoptim")
    }
    cases |= {"augmented": ("stale_weights", True, sgd)}
    cases |= {"CaffeSGD": ("stale_weights", False, lambda params: CaffeSGD(params, 0.01, 0.9))}
    cases |= {"LARS": ("stale_weights", False, lambda params: LARS(params, 0.01))}
    counts = {label: waits(device, shapes, *case) for label, case in cases.items()}
    counts["recomputed"] = waits(device, shapes, "pipemare", False, sgd, recompute=True)
    counts["bfloat16"] = waits(device, shapes, "pipemare", True, sgd, bf16=True)
    assert not any(counts.values()), f"synchronisations in ten steps: { {k: v for k, v in counts.items() if v} }"
    return f"{len(counts)} cases"


def waits(
    device: torch.device,
    shapes: Any,
    method: str,
    augment: bool,
    optimizer: Any,
    recompute: bool = False,
    bf16: bool = False,
) -> int:
    """The number of times that the host waits in ten steps; in bfloat16 it looks for changed copies in none of them."""
    batches = Batches(shapes, 32, 0, augment=augment, device=device, channels_last=True)
    model = build("resnet20", seed=0, width=0.25)
    model[0] = nn.Sequential(model[0], Placed())
    model.to(device, memory_format=torch.channels_last)
    phases = [Phase(get(method), 30, (5, 10, 15), recompute=recompute)]
    training = SimulatedTraining(model, phases, optimizer, F.cross_entropy, device=device, bf16=bf16)
    for step in range(17):
        training.step(*batches[step])
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        for step in range(17, 27):
            training.step(*batches[step])
        torch.cuda.set_sync_debug_mode("default")
    # Other warnings do not count, such as the one at the mode's first use in a process.
    return sum("called a synchronizing" in str(warning.message) for warning in warned)


@check("the copies that a policy counts are allocated; the peak")
def _memory(device: torch.device) -> str:
    on_gpu(device)
    by_method = []
    for name in ("sequential", "stale_weights", "pipedream", "pipemare"):
        gc.collect()  # the training before: its memory must not be freed while this one allocates
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        model = build("resnet20", seed=0).to(device, memory_format=torch.channels_last)
        phases = [Phase(get(name), 20, (3, 5, 8, 10, 13, 15, 18))]
        training = SimulatedTraining(model, phases, sgd, F.cross_entropy, device=device)
        held = sum(weights.bytes for weights in training.pipeline.weights)
        assert held <= torch.cuda.memory_allocated(device) - before, name
        images, targets = torch.randn(128, 3, 32, 32, device=device), torch.randint(0, 10, (128,), device=device)
        for _ in range(20):
            training.step(images, targets)
        by_method.append(f"{name} {held / 2**20:.1f} of {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB")
        del training, model
    return "; ".join(by_method)


@check("a profile's forwards add up to the whole forward's time, within a quarter")
def _profile(device: torch.device) -> str:
    on_gpu(device)
    model = build("resnet20", seed=0).to(device, memory_format=torch.channels_last).train()
    images = torch.randn(128, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    of_layers = sum(layer.forward_ms for layer in pipelag.profile(model, images, progress=False).layers)
    clock, times = Clock(events=True), list[float]()
    for _ in range(9):
        with clock.timing(times, "all layers"):
            model(images)
        clock.read()
    whole = median(times)
    assert 0.75 < of_layers / whole < 1.25, f"layers {of_layers:.2f} ms, forward {whole:.2f} ms"
    return f"layers {of_layers:.2f} ms, forward {whole:.2f} ms"


@check("with device auto, more workers than GPUs go to the CPU")
def _auto(device: torch.device) -> str:
    assert resolve_device("auto", 1 + torch.cuda.device_count()) == "cpu"
    return f"{1 + torch.cuda.device_count()} workers"


def real_equals_simulated(device: torch.device, phases: Sequence[Phase], workers: int) -> str:
    shared = device.type == "cuda" and torch.cuda.device_count() < workers
    place = str(device) if shared else device.type
    ends = launch(all_cases, workers, place, 1, cases=[[phase] for phase in phases])
    for phase, end in zip(phases, ends, strict=True):
        name, model = phase.method.name, convolutional()
        alone = replace(phase, method=get("sequential")) if name in ("bsp", "asp") else phase
        how = {"optimizer": optimizer_for(name), "seed": 5, "rate": falling, "device": str(device)}
        pipelag.train(model, Noise(), phases=[alone], **how)
        assert distance(model.state_dict(), end) < 1e-5, f"{name}: {distance(model.state_dict(), end):.1e}"
    return ", ".join(phase.method.name for phase in phases) + (", on one GPU" if shared else "")


@check("one real worker is as the simulated executor")
def _one(device: torch.device) -> str:
    return real_equals_simulated(device, [Phase(get(name), 8) for name in ("sequential", "bsp", "asp")], 1)


for count, cuts in ((2, (3,)), (3, (2, 4)), (4, CUTS)):

    @check(f"{count} real workers start, end, and are as the simulated executor")
    def _several(device: torch.device, count: int = count, cuts: tuple[int, ...] = cuts) -> str:
        parts = {"sequential": 1, "stale_weights": 1, "gpipe": 4, "pipedream": 2, "pipemare": 2, "spectrain": 1}
        phases = [Phase(get(name), 8, cuts, microbatches=micro) for name, micro in parts.items()]
        return real_equals_simulated(device, phases, count)


KILLED = """
import json, sys
from pipelag.__main__ import main
from pipelag.runs.kinds import train_simulated
train_simulated.CHECKPOINT_SECONDS, train_simulated.FLUSH_STEPS = 0.0, 1
sys.exit(main(json.loads(sys.argv[1])))
"""


def finished(command: Sequence[str]) -> None:
    """Run a command to its end; it must succeed."""
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr.strip().splitlines()[-1]


@check("a run killed half way goes on to the log and the model of the unbroken one")
def _killed(device: torch.device) -> str:
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / name for name in ("whole", "broken")]
        words = ["run", "--spec", json.dumps(LONG), "--threads", "1", "--device", str(device), "--out"]
        commands = [[sys.executable, "-c", KILLED, json.dumps([*words, str(out)])] for out in outs]
        finished(commands[0])
        with subprocess.Popen(commands[1], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            seen: set[int] = set()  # the times at which its checkpoints were written, one after every step
            while process.poll() is None and len(seen) < 60:
                with suppress(FileNotFoundError):
                    seen.add((outs[1] / "partial/checkpoint.pt").stat().st_mtime_ns)
                time.sleep(0.001)
            process.kill()
        assert not (outs[1] / "summary.json").exists(), "it was over before it could be killed"
        assert list((outs[1] / "partial").glob("checkpoint*.pt")), "no checkpoint"
        finished(commands[1])
        assert lines(outs[0]) == lines(outs[1])
        assert equal(*(torch.load(out / "model.pt", map_location="cpu") for out in outs))
    return "300 steps, killed after 60 or more"


def timed_phase(job: Job, steps: int) -> tuple[list[dict[str, float]], list[float]]:
    """Train two unequal stages (one, if there is one worker).

    Returns:
        How each worker's time divides; and the seconds of the last three quarters of rank 0's updates, by the GPU's
        events and by the host's clock when it launched them.
    """
    model, batches = convolutional(), Noise(64, 32, device=str(job.device))
    phases = [Phase(get("stale_weights"), steps, (5,)[: job.world - 1])]
    training = RealTraining(job, model.train(), phases, sgd, F.cross_entropy, rate=lambda step: 1.0, seed=5)
    (records,) = training.run(batches.inputs, batches.targets)
    handed = [end for action, _, end in records[0].spans if action.kind == "U"]
    seconds = [times[-1] - times[steps // 4] for times in (records[0].updated, handed)]
    return [records[rank].shares() for rank in sorted(records)], seconds


@check("a worker's computing, sending and waiting are its time, the lighter of two stages waits, events tell the time")
def _divided(device: torch.device) -> str:
    shared = device.type == "cuda" and torch.cuda.device_count() < 2
    shares, _ = launch(timed_phase, 2, str(device) if shared else device.type, 1, steps=40)
    assert all(abs(sum(each.values()) - 1) < 1e-6 and min(each.values()) >= 0 for each in shares), shares
    assert shares[1]["idle"] > max(0.02, shares[0]["idle"]), shares
    _, (events, clock) = launch(timed_phase, 1, str(device), 1, steps=200)
    assert 0.8 < events / clock < 1.25, f"by events {events:.3f} s, by the clock {clock:.3f} s"
    return f"idle {shares[0]['idle']:.2f} and {shares[1]['idle']:.2f}; {events:.3f} s by events, {clock:.3f} by clock"


@check("the tests that take a GPU pass on it")
def _marked(device: torch.device) -> str:
    on_gpu(device)
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu"], capture_output=True, text=True)
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, last
    return last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="cuda:N or cpu")
    parser.add_argument("--only", nargs="+", default=[""], help="those whose title holds such a word")
    parser.add_argument("--minutes", type=float, default=10, help="after which no further check begins")
    parser.add_argument("--out", type=Path, default=Path("gpu-check.md"), help="the report")
    parser.add_argument("--verbose", action="store_true", help="the traceback of what fails")
    args = parser.parse_args()
    chosen = [(title, function) for title, function in CHECKS if any(word in title for word in args.only)]
    if not chosen:
        parser.error(f"no check's title holds {' or '.join(args.only)}; they are: {'; '.join(t for t, _ in CHECKS)}")
    precision.ask()
    device = torch.device(resolve_device(args.device))
    precision.prepare_for(str(device))
    torch.set_num_threads(1)
    began, rows = time.monotonic(), []
    for title, function in chosen:
        start = time.monotonic()
        try:
            if start - began > 60 * args.minutes:
                raise Skip(f"{args.minutes:g} minutes are over")
            verdict, note = "PASS", function(device)
        except Skip as reason:
            verdict, note = "SKIP", str(reason)
        except Exception as error:  # whatever happens, the next check must run
            verdict, note = "FAIL", f"{type(error).__name__}: {error}".splitlines()[0][:200]
            if args.verbose:
                traceback.print_exc()
        rows.append((verdict, title, f"{time.monotonic() - start:.1f}", note))
        print(f"{verdict}  {title} ({rows[-1][2]} s) {note}", flush=True)
    about = environment(str(device), 1)
    lines = [f"# Checked on {about['device']}", "", f"{about['date']}, {about['versions']}, {about['precision']}", ""]
    lines += ["| | check | seconds | |", "|---|---|---:|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    args.out.write_text("\n".join(lines) + "\n")
    print(f"the report is in {args.out}")
    return int(any(verdict == "FAIL" for verdict, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
