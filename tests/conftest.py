"""For all tests: one thread. Their tensors are tiny, and threads that wait for each other on a busy machine crawl."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
