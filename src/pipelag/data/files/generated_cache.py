"""Generated data are made once in a workflow: a run leaves them in the warm process's folder, the next finds them.

The folder is its user's alone and goes when the workflow ends, so nothing is read that other code has made.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelag.job import warm_folder


def made_once(name: str, options: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """What an earlier run of this workflow made with the same options, else what `make` gives, left for the next.

    Outside of a workflow, and where nothing can be left, it is `make` alone. Runs that ask together each make it.
    """
    folder = warm_folder()
    if not folder:
        return make()
    key = hashlib.sha256(json.dumps([name, options], sort_keys=True, default=repr).encode()).hexdigest()[:16]
    path = Path(folder) / f"{name}-{key}.pickle"
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        return pickle.loads(path.read_bytes())
    data = make()
    aside = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        try:
            aside.write_bytes(pickle.dumps(data, pickle.HIGHEST_PROTOCOL))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    return data
