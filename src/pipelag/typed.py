"""Check the types of values from outside; a refusal gives the place, the value, what would be right, the nearest name.

No torch. One function, `mistake`, puts pydantic's errors into this project's words.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, Signature, signature
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from pipelag.errors import PipelagError, named, nearest, shown, unknown
from pipelag.files import plain

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic does not export it


class _Refusing(ModelMetaclass):
    """Makes the constructor of a model raise `PipelagError` in this project's words.

    Nested models and `model_validate` still raise pydantic's `ValidationError`, which holds the places of all mistakes:
    callers of `model_validate` know where the content comes from, and say so.
    """

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*args, **fields)
        except ValidationError as error:
            raise mistake(error, fields, cast("type[BaseModel]", cls)).at(f"the {cls.__name__} is wrong") from error


class Closed(BaseModel, metaclass=_Refusing):
    """A model with a closed set of fields, which is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Typed(BaseModel, metaclass=_Refusing):
    """An immutable model with a closed set of fields, whose values have exactly the stated types; numbers are finite.

    Nothing is converted: "3", 3.0 and true are not whole numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def _whole(key: Any) -> Any:
    """The key as an int if it is the text of one: keys in JSON are always texts."""
    return int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,9}", key) else key


# More than any machine has or any paper trains. A larger number is a typo, and would take all memory or all day.
MOST_STEPS, MOST_STAGES, MOST_WORKERS, MOST_BATCH = 10**9, 10_000, 4096, 2**24

MOST_RATE = 1e38  # a learning rate; float32 has no larger numbers
MOST_PASSES = 200_000  # stages times microbatches: the passes of a minibatch, which a schedule lists one by one

Stage = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MOST_STAGES)]  # a stage's number, as a key
Cut = Annotated[int, Field(ge=1, le=10**6)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # in the range that NumPy's and torch's generators both take
Options = Annotated[dict[str, Any], AfterValidator(lambda options: plain(options, "the options"))]
T = TypeVar("T")
Tuple = Annotated[tuple[T, ...], Field(strict=False)]  # a list is taken too
NAMES = r"^[A-Za-z0-9_.-]+$"
Name = Annotated[str, Field(pattern=NAMES, max_length=100)]  # fits into a path and a shell command

M = TypeVar("M", bound=BaseModel)


def checked(model: type[M], content: Any, kind: str) -> M:
    """`content` as an instance of the model; raises `PipelagError` for the first mistake.

    Args:
        kind: what the content's keys are called in the refusal, such as "option of a plan".
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = mistake(error, content, model)
        if first.key:
            raise PipelagError(f"unknown {named(kind, first.place)}{first.near}") from error
        if first.place:
            raise PipelagError(f"the {named(kind, first.place)} {first.words}") from error
        noun, _, rest = kind.partition(" ")
        several = f"the {noun}s {rest}".strip()
        words = re.sub(r"^it is (.*); it should", lambda told: f"{several} are {told[1]}; they should", first.words)
        raise PipelagError(words) from error


class Mistake(NamedTuple):
    """A mistake in a content.

    place: where it is, such as "phases.0.steps"; empty for the whole content.
    words: what is wrong there.
    key, near: for an unknown key, the key and the end of the refusal.
    """

    place: str
    words: str
    key: str = ""
    near: str = ""

    def at(self, where: str) -> PipelagError:
        """The refusal of a content that was read from `where`."""
        if self.key:
            at = f" at {self.place}" if self.place != self.key else ""
            return PipelagError(f"{where}: unknown key '{self.key}'{at}{self.near}")
        return PipelagError(f"{where}: {self.place} {self.words}" if self.place else f"{where}: {self.words}")


def mistake(error: ValidationError, content: Any, model: type[BaseModel] | None = None) -> Mistake:
    """The mistake to report of those that pydantic found: an unknown key, or else one in the first field with mistakes.

    A misspelt key is also reported as a missing one, and a union reports a mistake for each of its types. So an unknown
    key comes first, and within a field the mistake with the deepest place.
    """
    mistakes = [(_place(each, content), each) for each in error.errors(include_url=False)]
    first = next((one for one in mistakes if one[1]["type"] == "extra_forbidden"), mistakes[0])
    if first[1]["type"] != "extra_forbidden":
        field = [one for one in mistakes if one[0][:1] == first[0][:1]]
        first = max(field, key=lambda one: len(one[0]))
    place, each = first
    alike = [other for at, other in mistakes if at == place]
    at = ".".join(str(part)[:60] for part in place)
    if each["type"] == "extra_forbidden":
        near = nearest(str(place[-1]), keys_at(model, place[:-1]), "the keys are")
        return Mistake(at, f"is not known{near}", str(place[-1])[:60], near)
    return Mistake(at, _said(each, alike, place))


def _place(each: ErrorDetails, content: Any) -> tuple[Any, ...]:
    """The place of a mistake, without the types of unions that pydantic adds to it."""
    place: list[Any] = []
    loc = each["loc"]
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        if isinstance(content, Mapping) and (part in content or str(part) in map(str, content)):
            content = content.get(part, content.get(str(part)))
        elif isinstance(content, Sequence) and not isinstance(content, str) and isinstance(part, int):
            content = content[part] if part < len(content) else None
        elif not (last and each["type"] in ("missing", "extra_forbidden")):
            continue
        place.append(part)
    return tuple(place)


def _said(each: ErrorDetails, alike: Sequence[ErrorDetails], place: Sequence[Any]) -> str:
    kind, value = each["type"], each["input"]
    if kind == "missing":
        return "is missing"
    if kind == "value_error":  # our own words: those of a validator
        return f"is invalid: {each['ctx']['error']}" if place else str(each["ctx"]["error"])
    names = [
        name for other in alike for name in re.findall(r"'([^']*)'", str(other.get("ctx", {}).get("expected", "")))
    ]
    if names and isinstance(value, str):
        return f"is '{value[:60]}', which is not known{nearest(value, names, 'it should be')}"
    wanted = list(dict.fromkeys(_expected(other) for other in alike))
    return f"{'' if place else 'it '}is {shown(value)}; it should be {' or '.join(wanted)}"


def _expected(each: ErrorDetails) -> str:
    """What would be right instead, in words."""
    kind, ctx = each["type"], each.get("ctx", {})
    if each["loc"][-1:] == ("[key]",):
        return "under another key: " + (WANTED.get(kind) or each["msg"]).format(**ctx)
    if kind == "string_pattern_mismatch" and ctx["pattern"] != NAMES:
        return f"a string of the form {ctx['pattern']}"
    wanted = WANTED.get(kind)
    return wanted.format(**ctx) if wanted else f"something else ({each['msg']})"


WANTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("finite_number",), "a finite number"),
    **dict.fromkeys(("string_type", "string_unicode"), "a string"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "model_type", "mapping_type", "model_attributes_type"), "a mapping of names to values"
    ),
    "none_required": "null",
    "invalid_key": "a mapping whose keys are strings",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:,} or less",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} long",
    "too_long": "at most {max_length} long",
    "string_too_short": "a string of at least {min_length} characters",
    "string_too_long": "a string of at most {max_length} characters",
    "string_pattern_mismatch": "a name of letters, digits, '_', '.' and '-'",
    "is_instance_of": "an instance of {class}",
    "callable_type": "a function",
}


def check_passes(stages: int, microbatches: int) -> None:
    """Refuse a minibatch with more passes than a schedule can lay out in about a second."""
    if stages * microbatches > MOST_PASSES:
        raise PipelagError(
            f"{microbatches:,} microbatches on {stages:,} stages are too many: their product should be at "
            f"most {MOST_PASSES:,}"
        )


def keys_at(model: type[BaseModel] | None, place: Sequence[Any]) -> list[str]:
    """The keys of the model at a place inside `model`."""
    models = [model] if model is not None else []
    for part in place:
        models = [inner for each in models for inner in _inside(each, part)]
    return sorted({name for each in models for name in each.model_fields})


def _inside(model: Any, part: Any) -> list[Any]:
    """The models that a field of a model may hold; for an item of a list or mapping, the model itself."""
    field = model.model_fields.get(str(part))
    return _models(field.annotation) if field is not None else [model]


def _models(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models(part)]


def check_keywords(function: Callable[..., Any], first: int, given: Iterable[str], kind: str) -> None:
    """Refuse keyword arguments that a function does not take after its `first` positional ones, or missing ones.

    If `given` is a mapping, values of simple types are checked, too.

    Raises:
        PipelagError: names the keyword, what it is (`kind`), and the nearest right one.
    """
    cached = isinstance(function, Hashable)
    taken = (_parameters if cached else _parameters.__wrapped__)(function)[first:]
    known = {each.name: each for each in taken if each.kind is not Parameter.VAR_KEYWORD}
    names = set(given)
    wrong = sorted(names - set(known))
    if wrong and len(known) == len(taken):
        raise (
            unknown(kind, wrong[0], known) if known else PipelagError(f"there is no {kind}: '{wrong[0]}' is not known")
        )
    missing = [name for name, each in known.items() if each.default is Parameter.empty and name not in names]
    if missing:
        raise PipelagError(f"the {named(kind, missing[0])} is missing")
    if isinstance(given, Mapping):
        hints = (_hints if cached else _hints.__wrapped__)(function)
        for name, value in given.items():
            kinds = _plain_types(hints[name]) if name in hints else _like(known[name].default) if name in known else ()
            if kinds and not any(_is(value, each) for each in kinds):
                wanted = " or ".join(WORDS[each] if isinstance(each, type) else f"'{each}'" for each in kinds)
                raise PipelagError(f"the {named(kind, name)} is {shown(value)}; it should be {wanted}")


WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a string", type(None): "null"}


def signature_of(function: Callable[..., Any]) -> Signature:
    """Its signature, also where only type checkers can resolve annotations, which Python 3.14 evaluates on demand."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return signature(function, annotation_format=Format.FORWARDREF)
    return signature(function)


# Cached, as every spec checks its model, data, optimizer and methods.


@lru_cache(maxsize=512)
def _parameters(function: Callable[..., Any]) -> list[Parameter]:
    return list(signature_of(function).parameters.values())


@lru_cache(maxsize=512)
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters; empty if they cannot be resolved."""
    try:
        return get_type_hints(getattr(function, "func", function))
    except (NameError, TypeError, AttributeError):
        return {}


def _plain_types(hint: Any) -> tuple[Any, ...]:
    """The simple types and the literals in a type hint; empty if the hint has any other part."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    by_part = [(part,) if part in WORDS else get_args(part) if get_origin(part) is Literal else () for part in parts]
    return tuple(kind for kinds in by_part for kind in kinds) if all(by_part) else ()


def _like(default: Any) -> tuple[Any, ...]:
    """The types allowed without a type hint: that of the default; for the default None, numbers and None."""
    if default is None:
        return (int, float, type(None))
    return (int, float) if type(default) is float else (type(default),) if type(default) in WORDS else ()


def _is(value: Any, kind: Any) -> bool:
    """Whether a value has the simple type, or equals the literal. An int counts as a float, a bool as neither."""
    if not isinstance(kind, type):
        return type(value) is type(kind) and bool(value == kind)
    if kind is float:
        return type(value) in (int, float) and abs(value) < float("inf")
    return type(value) is kind and not (isinstance(value, int) and abs(value) >= 2**63)
