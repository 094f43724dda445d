"""How long the tests look for what nobody thought of: PIPELAG_TEST_FACTOR times as long as in the ordinary suite."""

from __future__ import annotations

import os

FACTOR = int(os.environ.get("PIPELAG_TEST_FACTOR", "1"))
