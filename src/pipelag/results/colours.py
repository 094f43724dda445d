"""Which of `style.COLOURS` a method has in the figures of all papers.

Black is training without staleness, whatever a paper compares with; grey, staleness that nothing mends. XPipe shares
StaleWeights' colour, and PipeMare with its synchronous start too: no figure has two of these.
"""

from __future__ import annotations

BASELINE, PIPEDREAM, PIPEMARE, STALE_WEIGHTS, SPECTRAIN, PIPEOPTIM, TWO_BW, UNMENDED = range(8)
XPIPE = PIPEMARE_W = STALE_WEIGHTS
