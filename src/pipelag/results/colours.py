"""The colour of each method (an index into `style.COLOURS`), the same in the figures of all papers.

Black is the baseline without staleness, whatever a paper compares with; grey is staleness without a remedy.
StaleWeights, XPipe and PipeMare with its synchronous start share a colour, since no figure shows two of them.
"""

from __future__ import annotations

BASELINE, PIPEDREAM, PIPEMARE, STALE_WEIGHTS, SPECTRAIN, PIPEOPTIM, TWO_BW, UNMENDED = range(8)
XPIPE = PIPEMARE_W = STALE_WEIGHTS
