"""Runs of kind `theory`: studies that compute a theory's results, such as PipeMare's quadratic model, and log them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from pipelag.data.files.fetch import Release, fetch
from pipelag.errors import PipelagError
from pipelag.runs.folder import RunFolder, environment
from pipelag.runs.spec import RunSpec
from pipelag.theory import at_scale, foreseen, quadratic
from pipelag.theory.caching import asynchronous, segment_of, synchronous
from pipelag.theory.pipelines import pipeline
from pipelag.theory.quadratic import Characteristic
from pipelag.typed import Typed

Row = dict[str, Any]
Study = Callable[[dict[str, Any], int], Iterator[Row]]


def study(spec: RunSpec, out: Path, device: str, threads: int) -> dict[str, Any]:
    """Log the rows of the study that `options.study` names. The other options are the study's: see each function."""
    name = spec.options["study"]
    options = spec.asked(Typed).model_dump(exclude_unset=True, exclude_none=True)
    folder = RunFolder(out, spec)
    folder.rewind(0)
    source = regression_set(options["data"]) if options.get("data") else None
    if source is not None:
        options["file"] = str(source.paths[0])
    with threadpool_limits(1):  # threads cost more than they bring on matrices of some forty rows
        rows = list(STUDIES[name](options, spec.seed))
    for row in rows:
        folder.log(row)
    summary: dict[str, Any] = {"status": "finished", "study": name, "rows": len(rows)}
    if source is not None:
        about = {"title": source.title, "release": str(source), "official": source.official, "note": source.note}
        summary["data"] = {"name": source.dataset} | about
    folder.finish(summary, environment("cpu", 1))
    return summary


def model_of(options: dict[str, Any]) -> Characteristic:
    """The variant of the quadratic model that the options describe (`pipelag.runs.kinds.options.Variant`)."""
    forward, backward = options["forward"], options.get("backward", options["forward"])
    delta, phi, recompute = options.get("delta", 0.0), options.get("phi", 0.0), options.get("recompute", backward)
    curvature = options.get("curvature", 1.0)
    if "momentum" in options:
        return quadratic.with_momentum(forward, options["momentum"], curvature)
    if options.get("D") is not None:
        gap = forward - backward
        gamma = quadratic.theory_decay(gap) if options["D"] == "theory" else quadratic.decay(float(options["D"]), gap)
        return quadratic.recomputed(forward, backward, recompute, delta, phi, gamma, curvature)
    return quadratic.recomputed_plainly(forward, backward, recompute, delta, phi, curvature)


def trajectories(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The mean loss over `runs` runs, a row for every `every` steps.

    Options: {forward, backward, delta, alpha, steps, runs, every}.
    """
    forward, steps = options["forward"], options["steps"]
    losses = quadratic.trajectories(
        forward,
        options.get("backward", forward),
        options.get("delta", 0.0),
        options["alpha"],
        steps,
        seed,
        runs=options.get("runs", 1),
    )
    with np.errstate(over="ignore"):
        mean = losses.mean(1)
    for step in range(0, steps + 1, options.get("every", 1)):
        yield {"step": step, "loss": float(mean[step])}


def radius(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The largest absolute eigenvalue at each of {alphas: [first, last, how many]}, and the largest stable alpha."""
    model = model_of(options)
    stable = quadratic.largest_stable(model)
    first, last, count = options["alphas"]
    for alpha in np.linspace(first, last, count):
        yield {"alpha": float(alpha), "radius": model.radius(float(alpha)), "largest_stable": stable}


def stable_over_delta(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The largest stable alpha at each of {deltas: [first, last, how many]}."""
    first, last, count = options["deltas"]
    for delta in np.linspace(first, last, count):
        model = model_of({**options, "delta": float(delta)})
        yield {"delta": float(delta), "largest_stable": quadratic.largest_stable(model)}


def stable_over_pairs(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The largest stable alpha with and without T2 for all tau_bkwd < tau_fwd <= {most} and each of {deltas} (B.4)."""
    for forward in range(1, options["most"] + 1):
        for backward in range(forward):
            gamma = quadratic.theory_decay(forward - backward)
            for delta in options["deltas"]:
                plain = quadratic.with_discrepancy(forward, backward, delta)
                mended = quadratic.corrected(forward, backward, delta, gamma)
                stable = {key: quadratic.largest_stable(m, 4000) for key, m in (("original", plain), ("T2", mended))}
                yield {"forward": forward, "backward": backward, "delta": delta} | stable


def lemmas(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """Each lemma's bound on the step size beside the largest stable one by the eigenvalues, for {taus, deltas, betas}.

    Rows of lemma 1 also have the largest absolute eigenvalue at step sizes around its bound: `below`, the greatest at
    sizes below it, and `above`, the least at sizes above it.
    """
    for tau in options["taus"]:
        model = quadratic.delayed(tau)
        crossings, bound = quadratic.crossings(model), quadratic.lemma_1(tau)
        yield {
            "lemma": 1,
            "tau": tau,
            "bound": bound,
            "stable": quadratic.largest_stable(model),
            "omega": crossings[0][1] if crossings else None,
            "below": max(model.radius(times * bound) for times in (0.01, 0.1, 0.5, 0.9, 0.999)),
            "above": min(model.radius(times * bound) for times in (1.001, 1.1, 1.5, 2.0, 5.0, 20.0)),
        }
        for delta in options["deltas"]:
            for backward in sorted({0, tau // 2} - {tau}):
                stable = quadratic.largest_stable(quadratic.with_discrepancy(tau, backward, delta))
                bound = quadratic.lemma_2(tau, backward, delta)
                yield {"lemma": 2, "tau": tau, "backward": backward, "delta": delta, "bound": bound, "stable": stable}
        for beta in options["betas"]:
            if tau:
                stable = quadratic.largest_stable(quadratic.with_momentum(tau, beta))
                yield {"lemma": 3, "tau": tau, "beta": beta, "bound": quadratic.lemma_3(tau), "stable": stable}


def decays(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """T2's gamma at which the expansion at omega = 1 is free of Delta, over {gaps, backward} of delays (B.4).

    `value` and `first`: what Delta multiplies in the polynomial's value and first derivative there.
    """
    for gap in options["gaps"]:
        for backward in options["backward"]:
            gamma = quadratic.free_of_delta(backward + gap, backward)
            value, first, _ = quadratic.depends_on_delta(backward + gap, backward, gamma)
            yield {"gap": gap, "backward": backward, "gamma": gamma, "D": gamma**gap, "value": value, "first": first}


def generated(seed: int, samples: int = 2048, features: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """A regression set like cpusmall: correlated inputs, whose spectrum falls by a factor of 1,000, and noisy targets.

    Returns:
        Inputs (samples, features) and targets (samples,), linear in the inputs but for the noise.
    """
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((features, features)))[0]
    inputs = rng.standard_normal((samples, features)) * np.logspace(0, -1.5, features) @ basis.T
    return inputs, inputs @ rng.standard_normal(features) + 0.1 * rng.standard_normal(samples)


def read_libsvm(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a regression set in LIBSVM's format, such as cpusmall.

    Returns:
        Inputs (samples, features) and targets (samples,), every column and the targets scaled to mean 0 and standard
        deviation 1.

    Raises:
        PipelagError: the file has another format, or nothing that a regression could learn.
    """
    from sklearn.datasets import load_svmlight_file

    try:
        inputs, targets = load_svmlight_file(path)
    except (OSError, ValueError) as error:
        raise PipelagError(f"'{path}' is not a regression set in LIBSVM's format: {error}") from error
    dense = np.asarray(inputs.todense())
    if len(targets) < 2 or not (np.isfinite(dense).all() and np.isfinite(targets).all()) or not targets.std():
        raise PipelagError(
            f"'{path}' is not a regression set: it should have at least two samples of finite numbers, and targets "
            "that differ"
        )
    dense = (dense - dense.mean(0)) / np.maximum(dense.std(0), 1e-12)
    return dense, (targets - targets.mean()) / targets.std()


def regression_set(name: str) -> Release:
    """The files of a regression set with a manifest, such as cpusmall (from LIBSVM's site).

    Raises:
        PipelagError: there is no such set, it is of another kind, or its files are missing or wrong.
    """
    release = fetch(name)
    if release.layout != "libsvm":
        raise PipelagError(
            f"'{name}' has the layout {release.layout}; a regression needs the layout libsvm, such as cpusmall's"
        )
    return release


def regression(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The final loss of a regression at each step size and delay, null if it diverged.

    Options: {alphas: [first, last, how many] (spaced logarithmically), taus, steps, batch, data, file}. `data` is a set
    with a manifest, such as cpusmall (PipeMare, figure 5b); `file` is one in LIBSVM's format; without either the set is
    generated. A row's `curvature` is the largest eigenvalue of the Hessian, lemma 1's lambda.
    """
    inputs, targets = read_libsvm(options["file"]) if options.get("file") else generated(seed)
    curvature = float(np.linalg.eigvalsh(inputs.T @ inputs / len(inputs)).max())
    first, last, count = options["alphas"]
    alphas = np.geomspace(first, last, count)
    for tau in options["taus"]:
        losses = quadratic.regression_losses(
            inputs, targets, alphas.tolist(), tau, options["steps"], seed, options.get("batch", 64)
        )
        for alpha, loss in zip(alphas, losses, strict=True):
            yield {
                "tau": tau,
                "alpha": float(alpha),
                "loss": None if np.isnan(loss) else float(loss),
                "curvature": curvature,
                "bound": quadratic.lemma_1(tau, curvature),
            }


def caching(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The activations that each stage caches, with and without recomputation.

    Options: {stages: [...], segment: a number or "root", microbatches: [...]}. With `microbatches` the schedule is
    GPipe's, and "root" is derived from the number of microbatches N instead of the number of stages P.
    """
    for stages in options["stages"]:
        for micro in options.get("microbatches", [None]):
            segment = segment_of(options["segment"], micro or stages)
            if micro is None:
                pair = asynchronous(stages), asynchronous(stages, segment)
            else:
                pair = synchronous(stages, micro), synchronous(stages, micro, segment)
            yield {"stages": stages, "microbatches": micro, "segment": segment, "without": pair[0], "with": pair[1]}


def segments(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """{pipelines: [[P, N], ...]}: activations that all stages cache, by the number of stages of a segment (A.3).

    Of PipeMare, and of GPipe with N microbatches; `without`: where nothing is computed again.
    """
    for stages, micro in options["pipelines"]:
        without = {"PipeMare": sum(asynchronous(stages)), "GPipe": sum(synchronous(stages, micro))}
        for segment in range(1, stages + 1):
            cached = {"PipeMare": asynchronous(stages, segment), "GPipe": synchronous(stages, micro, segment)}
            for name, held in cached.items():
                row = {"pipeline": name, "stages": stages, "microbatches": micro, "segment": segment}
                yield row | {"with": sum(held), "without": without[name]}


def pipelines(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """What GPipe's, PipeDream's and PipeMare's schedules cost with P stages and N microbatches (table 1).

    A row has the utilisation once the pipeline is full, the delays and the copies of the weights. Options:
    {pipelines: [[P, N], ...]}.
    """
    methods = {"GPipe": "gpipe", "PipeDream": "pipedream_cycle", "PipeMare": "pipemare_naive"}
    for stages, micro in options["pipelines"]:
        for name, method in methods.items():
            yield {"method": name} | asdict(pipeline(method, stages, micro))


def compute(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The floating-point operations of a forward and of a backward (A.3).

    Convolutions and matrix products are counted, without being computed. Options: {model, sample: a shape}, or {model,
    words: of a sentence}.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from pipelag.models import build
    from pipelag.models.taking import taking
    from pipelag.tensors import as_tuple

    with torch.device("meta"):
        model = build(options["model"])
        if "words" in options:
            sentence = torch.zeros(1, options["words"], dtype=torch.int64)
            value: Any = (sentence, sentence)
        else:
            value = torch.empty(2, *options["sample"])
    shape = f"{options['words']} words" if "words" in options else f"a sample of {options['sample']}"
    with taking(options["model"], shape), FlopCounterMode(display=False) as forward:
        out = model(value)
    with FlopCounterMode(display=False) as backward:
        torch.stack([tensor.sum() for tensor in as_tuple(out) if tensor.requires_grad]).sum().backward()
    yield {"forward": forward.get_total_flops(), "backward": backward.get_total_flops()}


def copies(options: dict[str, Any], seed: int) -> Iterator[Row]:
    """The elements that a training step of PipeMare holds for stage 1, without and with T2.

    Options: {optimizer: sgd or adam}.
    """
    import torch

    from pipelag.methods import get
    from pipelag.simulate.training import SimulatedTraining
    from pipelag.stage.phase import Phase
    from pipelag.stage.policy import StageWeights

    size = 64
    kinds: dict[str, Any] = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
        "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    }
    for method in ("pipemare_t1", "pipemare"):
        model = torch.nn.Sequential(torch.nn.Linear(size, size, bias=False), torch.nn.Linear(size, size, bias=False))
        phase = Phase(get(method), 2, (1,))
        training = SimulatedTraining(
            model,
            [phase],
            kinds[options["optimizer"]],
            torch.nn.functional.mse_loss,
            lambda step: 1.0,
            seed,
            torch.device("cpu"),
        )
        for _ in range(2):
            training.step(torch.zeros(4, size), torch.zeros(4, size))
        weights = sum(p.numel() for p in model[0].parameters())
        optimizer = training.pipeline.optimizer
        assert optimizer is not None
        state = [
            v for p in model[0].parameters() for v in optimizer.state[p].values() if torch.is_tensor(v) and v.dim()
        ]
        counts = {"weights": weights, "gradients": weights, "optimizer": sum(t.numel() for t in state)}
        policy = training.pipeline.weights[0]
        assert isinstance(policy, StageWeights)
        average = sum(buffer.numel() for memory in policy.memories.values() for buffer in memory.buffers)
        yield {"method": method, "elements": weights, **counts, "average": average}


STUDIES: dict[str, Study] = {
    "at_scale": at_scale.study,
    "trajectories": trajectories,
    "radius": radius,
    "stable_over_delta": stable_over_delta,
    "stable_over_pairs": stable_over_pairs,
    "lemmas": lemmas,
    "decays": decays,
    "regression": regression,
    "caching": caching,
    "segments": segments,
    "compute": compute,
    "copies": copies,
    "predictions": foreseen.study,
    "pipelines": pipelines,
}
