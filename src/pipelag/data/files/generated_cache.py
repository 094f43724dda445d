"""Generate data once per workflow: a run leaves them in the warm process's folder, where the next run finds them.

Only the user can access the folder, and it is removed when the workflow ends, so no data by other code are read.
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
    """The data that an earlier run of this workflow made with the same options; if there are none, make and leave them.

    Outside a workflow, and where nothing can be written, this only calls `make`. Runs that ask at the same time each
    make the data themselves.
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
