"""The task of a run: classify images, translate, predict the next word, or classify text.

All that a run does differently for these kinds of data is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from pipelag import data, models
from pipelag.catalogue import GIVEN, HOMES, check_told, options_model
from pipelag.data.images.batches import Batches, Evaluation
from pipelag.data.images.dataset import Dataset
from pipelag.data.images.imagenet import FolderBatches, FolderEvaluation, ImageFolders
from pipelag.data.minibatches import Minibatches
from pipelag.data.text.labelled import LabelledBatches, LabelledEvaluation, LabelledText
from pipelag.data.text.language import LanguageBatches, RunningText
from pipelag.data.text.parallel import Corpus, TextBatches
from pipelag.data.text.tokens import TokenBatches
from pipelag.errors import PipelagError, kind_of, shown
from pipelag.models.cut import name_of
from pipelag.models.taking import FAILURES
from pipelag.runs.kinds.options import TaskOptions
from pipelag.runs.objectives import LOSSES, MEASURED, METRICS, Means
from pipelag.runs.spec import DataSpec, RunSpec
from pipelag.runs.text_metrics import LanguageTest, TranslationTest, Writer, shared_token_loss, token_loss, word_loss
from pipelag.runs.translations import Translations


@dataclass(frozen=True)
class Task:
    """A run's data on a device, with the loss and the metrics that go with their kind.

    data: the data set. batches: its minibatches by number. loss: (output, targets) -> scalar. measure: a model's
    metrics on the test set, `accuracy` and `test_loss` among them. shape: the model's options that follow from the
    data, such as the number of classes. translations: of parallel text, what models wrote for it.
    """

    data: Dataset | ImageFolders | Corpus | RunningText | LabelledText
    batches: Minibatches
    loss: Callable[[Any, Any], torch.Tensor]
    measure: Callable[[nn.Module], dict[str, float]]
    shape: dict[str, Any]
    translations: Translations | None = None

    def evaluate(self, model: nn.Module, step: int) -> dict[str, float]:
        """`measure` a model after `step` steps, and keep what it wrote."""
        measured = self.measure(model)
        if self.translations is not None:
            self.translations.keep(step)
        return measured

    def summary(self) -> dict[str, Any]:
        """The entry of a run's summary about its data."""
        return self.data.summary() | self.batches.summary()

    def model(self, spec: RunSpec, device: torch.device) -> nn.Sequential:
        """The spec's model for these data, initialised from the run's seed; convolutions are in channels_last."""
        assert spec.model is not None and spec.data is not None
        check_told(spec.model.name, self.shape, spec.data.name)
        model = models.build(spec.model.name, seed=spec.seed, **(self.shape | spec.model.options))
        if isinstance(self.data, Dataset | ImageFolders):
            check_size(model, spec.model.name, self.data)
        return model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.no_grad()
def check_size(model: nn.Sequential, name: str, images: Dataset | ImageFolders) -> None:
    """Refuse, before training, images of a size that a model of pipelag's cannot take. The model is left unchanged."""
    if name not in HOMES:  # an error in a user's own model keeps its traceback
        return
    value: Any = torch.zeros(1, *images.shape)
    mode = model.training
    model.eval()
    for number, layer in enumerate(model, start=1):
        try:
            value = layer(value)
        except FAILURES as error:
            sized = "size" in options_model(f"models.{HOMES[name]}", GIVEN.get(HOMES[name], ())).model_fields
            remedy = (
                "set its option size to that of the images" if sized else "take a model or a data set of another size"
            )
            raise PipelagError(
                f"model '{name}' cannot take the images of '{images.name}', of {'x'.join(map(str, images.shape))}: "
                f"layer {number} ({name_of(layer)}) says '{' '.join(str(error).split())}'; {remedy}"
            ) from error
    model.train(mode)


def open_task(spec: RunSpec, device: torch.device) -> Task:
    """The spec's data set with its minibatches and its test set on `device`; images are in channels_last.

    The spec's `options`, with their defaults, by kind of data:
        images: standardise (true): inputs have mean 0 and standard deviation 1; otherwise they lie between 0 and 1.
        parallel text: label_smoothing (0); beam (1): hypotheses kept when translating; lenpen (1): the power of the
            length by which their scores are divided; generator (pipelag): whose search translates, pipelag's or
            fairseq's; tokens (none): the most tokens of a minibatch, whose number of sentences is then a multiple of
            the spec's `batch` instead of equal to it.
        running text: length (35): words in a stretch.
        all: loss and metrics (`pipelag.runs.objectives`).
    """
    assert spec.data is not None
    options, opened = spec.asked(TaskOptions), data.load(spec.data.name, **spec.data.options)
    _check_read(spec.data, options, opened)
    task = _task_of(spec, opened, device)
    return task if options.loss is None else replace(task, loss=LOSSES[options.loss])


class Read(NamedTuple):
    """What runs on one kind of data read: options beside loss and metrics, and the values that `augment` may have."""

    kind: str  # its name in messages
    options: tuple[str, ...] = ()
    augment: tuple[bool | str, ...] = (False,)


READ: dict[type, Read] = {
    Dataset: Read("images", ("standardise",), (False, True, "crop")),
    ImageFolders: Read("folders of images", (), (False, True)),
    Corpus: Read("parallel text", ("label_smoothing", "tokens", "beam", "lenpen", "generator")),
    RunningText: Read("running text", ("length",)),
    LabelledText: Read("labelled text"),
}


def _check_read(given: DataSpec, options: TaskOptions, opened: Any) -> None:
    """Refuse settings that a run on these data would not read: they would change the run's id and nothing else."""
    if (here := READ.get(type(opened))) is None:
        return
    gives = f"but '{given.name}' holds {here.kind}"
    for of in READ.values():
        for name in of.options:
            if name not in here.options and getattr(options, name) != TaskOptions.model_fields[name].default:
                raise PipelagError(f"option '{name}' is for {of.kind}, {gives}; leave it out")
    if given.augment not in here.augment:
        remedy = "augment: true crops them at random" if here.augment[1:] else "leave it out"
        raise PipelagError(f"augment: {str(given.augment).lower()} is for images, {gives}; {remedy}")


def _task_of(spec: RunSpec, opened: Any, device: torch.device) -> Task:
    if isinstance(opened, Corpus):
        return _translation(spec, opened, device)
    if isinstance(opened, LabelledText):
        return _labelled(spec, opened, device)
    if isinstance(opened, ImageFolders):
        return _folders(spec, opened, device)
    if isinstance(opened, RunningText):
        return _language(spec, opened, device)
    if not isinstance(opened, Dataset):
        kinds = ", ".join(kind.__name__ for kind in (ImageFolders, Corpus, RunningText, LabelledText))
        name = spec.data.name if spec.data is not None else ""
        raise PipelagError(
            f"the data set '{name}' returns {kind_of(opened)}; it should return a Dataset or one of {kinds}"
        )
    return _images(spec, opened, device)


Examples = Evaluation | FolderEvaluation | LabelledEvaluation


def _classified(spec: RunSpec, test: Examples) -> Callable[[nn.Module], dict[str, float]]:
    return partial(classify, test=test, metrics=spec.asked(TaskOptions).metrics)


def _images(spec: RunSpec, images: Dataset, device: torch.device) -> Task:
    assert spec.data is not None
    standardise = spec.asked(TaskOptions).standardise
    test = Evaluation(images, device=device, channels_last=True, standardise=standardise)
    return Task(
        images,
        Batches(images, spec.batch, spec.seed, spec.data.augment, device, True, standardise),
        nn.functional.cross_entropy,
        _classified(spec, test),
        {"classes": len(images.classes), "in_channels": int(images.train_images.shape[1])},
    )


def _folders(spec: RunSpec, folders: ImageFolders, device: torch.device) -> Task:
    assert spec.data is not None
    return Task(
        folders,
        FolderBatches(folders, spec.batch, spec.seed, bool(spec.data.augment), device, True),
        nn.functional.cross_entropy,
        _classified(spec, FolderEvaluation(folders, device=device, channels_last=True)),
        {"classes": len(folders.classes), "in_channels": 3},
    )


def _translation(spec: RunSpec, corpus: Corpus, device: torch.device) -> Task:
    options = spec.asked(TaskOptions)
    smoothing, tokens = options.label_smoothing, options.tokens
    batches: Minibatches
    loss: Callable[[Any, Any], torch.Tensor]
    if tokens is None:
        batches, loss = TextBatches(corpus, spec.batch, spec.seed, device), token_loss(smoothing)
    else:
        batches, loss = TokenBatches(corpus, tokens, spec.seed, spec.batch, device), shared_token_loss(smoothing)
    test = TranslationTest(corpus, device, options.beam, 100, options.lenpen, _writer(spec), options.metrics)
    shape = {"source_words": len(corpus.source_words), "target_words": len(corpus.target_words)}
    return Task(corpus, batches, loss, test.measure, shape, Translations(test))


def _writer(spec: RunSpec) -> Writer | None:
    """The function that translates, as `options.generator` names it; None: `pipelag.runs.text_metrics.search`."""
    assert spec.model is not None
    if spec.asked(TaskOptions).generator == "pipelag":
        return None
    from pipelag.compat.fairseq import imported
    from pipelag.models import fairseq_generator

    if spec.model.name not in fairseq_generator.MODELS:
        known = " and ".join(fairseq_generator.MODELS)
        raise PipelagError(f"fairseq's generator works only with the models {known}, not with '{spec.model.name}'")
    imported()
    return fairseq_generator.Generator()


def _language(spec: RunSpec, text: RunningText, device: torch.device) -> Task:
    options = spec.asked(TaskOptions)
    length = options.length
    return Task(
        text,
        LanguageBatches(text, spec.batch, length, spec.seed, device),
        word_loss,
        LanguageTest(text, device, length, metrics=options.metrics).measure,
        {"words": len(text.words)},
    )


def _labelled(spec: RunSpec, texts: LabelledText, device: torch.device) -> Task:
    return Task(
        texts,
        LabelledBatches(texts, spec.batch, spec.seed, device),
        nn.functional.cross_entropy,
        _classified(spec, LabelledEvaluation(texts, device)),
        {"classes": len(texts.classes), "words": len(texts.words)},
    )


def told_of_data(task: Task) -> str:
    """A checkpoint's description of the run's data, as JSON: the data's files are not part of the run's id."""
    return json.dumps(task.summary(), sort_keys=True, default=str)


def check_data(was: str | None, task: Task, where: Path) -> None:
    """Refuse to resume with other data than the checkpoint's, say from another mirror. Older checkpoints do not tell.

    was: the checkpoint's `told_of_data`, None if it has none. where: the checkpoint.
    """
    before, here = json.loads(was or "{}"), json.loads(told_of_data(task))
    for name in sorted(before.keys() & here.keys()):
        if before[name] != here[name]:
            raise PipelagError(
                f"{where} was written with data whose {name} is {shown(before[name])}, but here it is "
                f"{shown(here[name])}; restore the earlier data, or remove the run's folder `partial`"
            )


@torch.no_grad()
def classify(model: nn.Module, test: Examples, metrics: Sequence[str] = ()) -> dict[str, float]:
    """Top-1 accuracy (%), mean cross-entropy and `metrics` over the test set, with the model's live weights.

    With more than five classes also the top-5 accuracy (%).
    """
    model.eval()
    right = torch.zeros(2, dtype=torch.int64, device=test.device)
    loss = torch.zeros((), dtype=torch.float64, device=test.device)
    classes, means = 0, Means(metrics)
    for inputs, targets in test:
        logits = model(inputs)
        means.add(logits, targets)
        classes = logits.shape[1]
        right[0] += (logits.argmax(1) == targets).sum()
        if classes > 5:
            right[1] += (logits.topk(5, 1).indices == targets[:, None]).sum()
        loss += nn.functional.cross_entropy(logits, targets, reduction="sum")
    model.train()
    first, fifth = (round(100.0 * count / test.samples, 4) for count in right.tolist())
    top5 = {"top5": fifth} if classes > 5 else {}
    return {"accuracy": first, **top5, "test_loss": float(loss) / test.samples} | means.by_name()


def best_of(row: dict[str, Any], before: dict[str, float] | None) -> dict[str, float]:
    """The better of an evaluation and the best one before it: by BLEU where there is one, else by accuracy."""
    metric = "bleu" if "bleu" in row else "accuracy"
    if before is not None and row[metric] <= before[metric]:
        return before
    return {key: row[key] for key in dict.fromkeys((metric, "bleu_error", "accuracy", "top5", "step")) if key in row}


def final_of(row: dict[str, Any]) -> dict[str, Any]:
    """The metrics of the last evaluation, for the summary."""
    return {key: row[key] for key in (*MEASURED, *METRICS) if key in row}
