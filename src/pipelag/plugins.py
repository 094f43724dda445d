"""Plugins: users' own modules, which each command and each worker imports first, so that what they register is known.

`PIPELAG_PLUGINS` names them, separated by commas. The workflow sets it from `plugins:` in its config. If it is not set,
commands read `plugins:` in config/config.yaml. Modules are looked for in the working directory too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelag.errors import PipelagError

VARIABLE = "PIPELAG_PLUGINS"


def load_plugins() -> list[str]:
    """Import the plugins that `named_plugins` gives; returns their names.

    Raises:
        PipelagError: a module is missing, or fails while it is imported.
    """
    names = named_plugins()
    if names and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise PipelagError(f"the plugin '{name}' is not the name of a module, such as my_models for my_models.py")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            raise PipelagError(
                f"the plugin '{name}' cannot be imported: {error}; put its file into {os.getcwd()}, or install it"
            ) from error
        except (Exception, SystemExit) as error:
            raise PipelagError(f"the plugin '{name}' fails: {type(error).__name__}: {error}") from error
    return names


def named_plugins() -> list[str]:
    """The names of the plugins in the environment variable; if it is not set, those in the config."""
    named = os.environ.get(VARIABLE)
    return configured() if named is None else [name.strip() for name in named.split(",") if name.strip()]


def configured() -> list[str]:
    """The names of the plugins in config/config.yaml of the working directory; none if there is no such file."""
    path = Path("config/config.yaml")
    if not path.exists():
        return []
    from pipelag.files import read_yaml

    content = read_yaml(path, "the workflow's config")
    names = content.get("plugins", []) if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise PipelagError(f"{path}: plugins is {names!r}; it should be a list of modules, such as [my_models]")
    return names


def plugged_in() -> bool:
    """Whether the environment variable names any plugins."""
    return bool(os.environ.get(VARIABLE, "").strip(", "))


def use_plugins(names: Sequence[str]) -> None:
    """Import these modules here and in every process started from here."""
    os.environ[VARIABLE] = ",".join(names)
    load_plugins()
