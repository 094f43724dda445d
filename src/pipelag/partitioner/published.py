"""PipeDream's published profile format: a graph of nodes with times and sizes, laid out as a chain of layers.

A line per node, `node4 -- Conv2d(...) -- forward_compute_time=22.3, backward_compute_time=24.6, activation_size=...,
parameter_size=...` (milliseconds, bytes), and a line per edge, a tab and `node3 -- node4`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipelag.errors import PipelagError
from pipelag.files import read_text
from pipelag.timing.layers import LayerTime, Profile

NODE = re.compile(
    r"^(\S+) -- (.*) -- forward_compute_time=([\d.eE+-]+), backward_compute_time=([\d.eE+-]+), "
    r"activation_size=(\[[^\]]*\]|[\d.eE+-]+), parameter_size=([\d.eE+-]+)$"
)
MOST_LAYERS = 128
MOST_LINES = 20_000


@dataclass(frozen=True)
class Node:
    """One operator: milliseconds, bytes of its output (of several outputs together) and of its weights."""

    name: str
    forward_ms: float
    backward_ms: float
    output_bytes: float
    weight_bytes: float


@dataclass(frozen=True)
class Graph:
    """A published profile: nodes and the nodes that each one feeds."""

    nodes: dict[str, Node]
    edges: tuple[tuple[str, str], ...]


def read_graph(path: Path | str) -> Graph:
    """Read a graph file; raises `PipelagError` with the line that is no node and no edge, or an edge to nowhere."""
    nodes, edges = {}, []
    lines = read_text(Path(path), "a published profile").splitlines()
    if len(lines) > MOST_LINES:
        raise PipelagError(f"'{path}' has {len(lines):,} lines, too many for a profile ({MOST_LINES:,} at most)")
    for number, line in enumerate(lines, start=1):
        if line.startswith("\t"):
            source, _, target = line.strip().partition(" -- ")
            edges.append((source, target))
            continue
        match = NODE.match(line)
        if match is None:
            raise PipelagError(f"'{path}', line {number} is no node and no edge of a profile: '{line[:60]}'")
        name, what, forward, backward, output, weights = match.groups()
        if name in nodes:
            raise PipelagError(f"'{path}', line {number}: the node '{name}' is there twice")
        try:
            size = sum(float(part) for part in output.strip("[]").split(";"))
            numbers = [float(forward), float(backward), size, float(weights)]
        except ValueError as error:
            raise PipelagError(f"'{path}', line {number} holds no number where one should be ({error})") from error
        if not all(0 <= value <= 1e15 for value in numbers):
            raise PipelagError(f"'{path}', line {number}: times and sizes lie between 0 and 1e15, not {numbers}")
        nodes[name] = Node(what, *numbers)
    for source, target in edges:
        for end in (source, target):
            if end not in nodes:
                raise PipelagError(f"'{path}': the edge {source} -- {target} names '{end}', which is no node")
    if not nodes:
        raise PipelagError(f"'{path}' holds no nodes; it is no profile")
    return Graph(nodes, tuple(edges))


def order(graph: Graph) -> list[str]:
    """The nodes in an order in which they can run, a branch at a time: a source comes just before it is needed.

    Raises:
        PipelagError: the graph has a cycle (one node of it is named).
    """
    into: dict[str, list[str]] = {name: [] for name in graph.nodes}
    out: set[str] = set()
    for source, target in graph.edges:
        into[target].append(source)
        out.add(source)
    done: dict[str, int] = {}  # depth: the longest way from a source
    ordered: list[str] = []
    for sink in [*(name for name in graph.nodes if name not in out), *graph.nodes]:  # a cycle of its own has no sink
        under_way: dict[str, None] = {}
        stack = [sink]
        while stack:
            name = stack[-1]
            if name in done:
                stack.pop()
                continue
            waiting = [before for before in into[name] if before not in done]
            if not waiting:
                done[name] = 1 + max((done[before] for before in into[name]), default=0)
                ordered.append(name)
                under_way.pop(name, None)
                stack.pop()
                continue
            under_way[name] = None
            cycle = [before for before in waiting if before in under_way]
            if cycle:
                raise PipelagError(f"the profile has a cycle through '{cycle[0]}'; layers must form an acyclic graph")
            # the longer branch first: what hangs on it (an embedding of the decoder) runs late
            stack += sorted(waiting, key=lambda before: _reach(into, before))
    return ordered


def _reach(into: dict[str, list[str]], name: str) -> int:
    """How many nodes come before one."""
    seen, stack = {name}, [name]
    while stack:
        for before in into[stack.pop()]:
            if before not in seen:
                seen.add(before)
                stack.append(before)
    return len(seen)


def chain(graph: Graph, most: int = MOST_LAYERS) -> tuple[Profile, list[str]]:
    """The graph as layers in a row, and what was merged.

    Between two neighbours crosses everything that a later node still needs, so a boundary inside a residual block
    costs both its tensors: no cut is forbidden, each has its price. Input nodes (data loading) are left out. A graph
    of more than `most` nodes is thinned out: the neighbours with the least time together are merged first.

    Raises:
        PipelagError: a cycle, or nothing but inputs.
    """
    names = [name for name in order(graph) if not graph.nodes[name].name.startswith("Input")]
    if not names:
        raise PipelagError("the profile has no layers but inputs")
    place = {name: i for i, name in enumerate(names)}
    last_use = list(range(len(names)))
    for source, target in graph.edges:
        if source in place and target in place:
            last_use[place[source]] = max(last_use[place[source]], place[target])
    crossing = [0.0] * len(names)
    for i, name in enumerate(names):
        for at in range(i, last_use[i]):
            crossing[at] += graph.nodes[name].output_bytes
    crossing[-1] = graph.nodes[names[-1]].output_bytes
    groups = [[i] for i in range(len(names))]
    cost = [graph.nodes[name].forward_ms + graph.nodes[name].backward_ms for name in names]
    merged = max(0, len(groups) - most)
    while len(groups) > most:
        at = min(range(len(groups) - 1), key=lambda i: cost[i] + cost[i + 1])
        groups[at] += groups.pop(at + 1)
        cost[at] += cost.pop(at + 1)
    layers = []
    for number, group in enumerate(groups, start=1):
        nodes = [graph.nodes[names[i]] for i in group]
        heaviest = max(nodes, key=lambda node: node.forward_ms + node.backward_ms)
        label = heaviest.name.split("(  ")[0][:60] + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "")
        layers.append(
            LayerTime(
                number,
                label,
                sum(node.forward_ms for node in nodes),
                sum(node.backward_ms for node in nodes),
                round(crossing[group[-1]]),
                # its backward needs what the layer wrote; the published files say no more
                round(sum(0.0 if "inplace" in node.name else node.output_bytes for node in nodes)),
                round(sum(node.weight_bytes for node in nodes)),
            )
        )
    notes = [f"{merged} boundaries between quick layers merged, {len(groups)} layers left"] if merged else []
    return Profile(tuple(layers)), notes
