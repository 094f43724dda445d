"""Read PipeDream's published profiles, graphs of nodes with times and sizes, and lay them out as a chain of layers.

The format has one line per node, `node4 -- Conv2d(...) -- forward_compute_time=22.3, backward_compute_time=24.6,
activation_size=..., parameter_size=...` (milliseconds, bytes), and one line per edge, a tab and `node3 -- node4`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from itertools import accumulate
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
    """One operator: its milliseconds, the bytes of its outputs together, and the bytes of its weights."""

    name: str
    forward_ms: float
    backward_ms: float
    output_bytes: float
    weight_bytes: float


@dataclass(frozen=True)
class Graph:
    """A published profile: nodes by name, and edges (source, target)."""

    nodes: dict[str, Node]
    edges: tuple[tuple[str, str], ...]


def read_graph(path: Path | str) -> Graph:
    """Read the file of a published profile.

    Raises:
        PipelagError: a line that is neither a node nor an edge, or an edge whose end is no node.
    """
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
            raise PipelagError(f"'{path}', line {number} is neither a node nor an edge of a profile: '{line[:60]}'")
        name, what, forward, backward, output, weights = match.groups()
        if name in nodes:
            raise PipelagError(f"'{path}', line {number}: the node '{name}' appears twice")
        try:
            size = sum(float(part) for part in output.strip("[]").split(";"))
            numbers = [float(forward), float(backward), size, float(weights)]
        except ValueError as error:
            raise PipelagError(f"'{path}', line {number} should hold a number ({error})") from error
        if not all(0 <= value <= 1e15 for value in numbers):
            raise PipelagError(f"'{path}', line {number}: times and sizes should be between 0 and 1e15, not {numbers}")
        nodes[name] = Node(what, *numbers)
    for source, target in edges:
        for end in (source, target):
            if end not in nodes:
                raise PipelagError(f"'{path}': the edge {source} -- {target} names '{end}', which is not a node")
    if not nodes:
        raise PipelagError(f"'{path}' holds no nodes, so it is not a profile")
    return Graph(nodes, tuple(edges))


def order(graph: Graph) -> list[str]:
    """The nodes in an order in which they can run, one branch at a time, so that a source runs just before it is used.

    Raises:
        PipelagError: the graph has a cycle (the message names one of its nodes).
    """
    into: dict[str, list[str]] = {name: [] for name in graph.nodes}
    out: set[str] = set()
    for source, target in graph.edges:
        into[target].append(source)
        out.add(source)
    before = ancestors(into)
    done: set[str] = set()
    ordered: list[str] = []
    stack = [name for name in reversed(graph.nodes) if name not in out]
    while stack:
        name = stack[-1]
        waiting = [] if name in done else [source for source in into[name] if source not in done]
        if not waiting:
            stack.pop()
            if name not in done:
                done.add(name)
                ordered.append(name)
        # The longer branch runs first, so that a short one (the decoder's embedding) runs just before it is used.
        stack += sorted(waiting, key=lambda source: before[source])
    return ordered


def ancestors(into: dict[str, list[str]]) -> dict[str, int]:
    """The number of each node's ancestors, given for every node those that feed it.

    Raises:
        PipelagError: the graph has a cycle.
    """
    try:
        running = list(TopologicalSorter(into).static_order())
    except CycleError as error:
        raise PipelagError(
            f"the profile has a cycle through '{error.args[1][0]}'; layers must form an acyclic graph"
        ) from error
    sets: dict[str, int] = {}  # a node and its ancestors, one bit per node
    for number, name in enumerate(running):
        sets[name] = 1 << number
        for source in into[name]:
            sets[name] |= sets[source]
    return {name: nodes.bit_count() - 1 for name, nodes in sets.items()}


def chain(graph: Graph, most: int = MOST_LAYERS) -> tuple[Profile, list[str]]:
    """Lay a graph out as layers in a row; returns the profile, and a note where layers were merged.

    All tensors that a later node still needs cross a boundary, so that a boundary inside a residual block costs both of
    its tensors: no cut is forbidden, but each has its price. Input nodes (data loading) are left out. If the graph has
    more than `most` nodes, neighbours are merged, those with the least time together first.

    Raises:
        PipelagError: the graph has a cycle, or no nodes but inputs.
    """
    names = [name for name in order(graph) if not graph.nodes[name].name.startswith("Input")]
    if not names:
        raise PipelagError("the profile has no layers other than inputs")
    place = {name: i for i, name in enumerate(names)}
    last_use = list(range(len(names)))
    for source, target in graph.edges:
        if source in place and target in place:
            last_use[place[source]] = max(last_use[place[source]], place[target])
    outputs = [round(graph.nodes[name].output_bytes) for name in names]
    change = [0] * len(names)  # in the bytes that cross, from one boundary to the next
    for i, last in enumerate(last_use):
        change[i] += outputs[i]
        change[last] -= outputs[i]
    crossing = [*accumulate(change[:-1]), outputs[-1]]
    groups = thinned([graph.nodes[name].forward_ms + graph.nodes[name].backward_ms for name in names], most)
    merged = len(names) - len(groups)
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
                crossing[group[-1]],
                # The backward needs the layer's outputs; the published files tell nothing else.
                round(sum(0.0 if "inplace" in node.name else node.output_bytes for node in nodes)),
                round(sum(node.weight_bytes for node in nodes)),
            )
        )
    notes = [f"{merged} boundaries between quick layers merged, {len(groups)} layers left"] if merged else []
    return Profile(tuple(layers)), notes


def thinned(costs: Sequence[float], most: int) -> list[range]:
    """Merge a row of costs into at most so many groups of neighbours, those with the least cost together first.

    Returns the places of each group.
    """
    cost = list(costs)
    end = {i: i + 1 for i in range(len(cost))}  # the groups' ends by their beginnings, in order
    begin = {i + 1: i for i in range(len(cost))}  # the groups' beginnings by their ends
    pairs = [(cost[i] + cost[i + 1], i, i + 1, i + 2) for i in range(len(cost) - 1)]
    heapify(pairs)
    while len(end) > most:
        _, a, b, c = heappop(pairs)
        if end.get(a) != b or end.get(b) != c:  # one of the two has been merged since
            continue
        cost[a] += cost[b]
        del end[b]
        end[a], begin[c] = c, a
        if c in end:
            heappush(pairs, (cost[a] + cost[c], a, c, end[c]))
        if a in begin:
            heappush(pairs, (cost[begin[a]] + cost[a], begin[a], a, c))
    return [range(a, b) for a, b in end.items()]
