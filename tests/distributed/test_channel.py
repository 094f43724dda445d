"""Messages between workers of one machine: through memory that both map, whoever keeps what of them for how long."""

from __future__ import annotations

import gc
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

import pipelag
from pipelag.distributed import channel
from pipelag.distributed.channel import Channel, Lost
from pipelag.distributed.job import Job
from pipelag.distributed.launch.launch import launch, neighbours
from pipelag.distributed.record import carried_by
from pipelag.distributed.training import RealTraining
from pipelag.errors import PipelagError
from pipelag.methods import get
from pipelag.stage.phase import Phase
from tests.toy import Noise, convolutional, equal, sgd

pytestmark = pytest.mark.skipif(not channel.possible(), reason="this system has no memory without a name")
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def pair() -> tuple[Channel, Channel]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Channel(one), Channel(other)


def read(end: Channel, sent: list[torch.Tensor]) -> list[torch.Tensor]:
    message = end.take()
    return [message.tensor(tuple(tensor.shape), tensor.dtype) for tensor in sent]


SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
MESSAGES = st.lists(st.lists(st.tuples(SHAPES, st.sampled_from(TYPES)), max_size=4), min_size=1, max_size=8)


@given(MESSAGES, st.lists(st.booleans(), min_size=8, max_size=8))
def test_what_is_put_is_taken_whatever_is_kept_of_it(messages: list[list[Any]], keep: list[bool]) -> None:
    here, there = pair()
    alive: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    most = 0
    for number, described in enumerate(messages):
        sent = [(torch.rand(shape) * 100).to(dtype) for shape, dtype in described]
        here.put(sent)
        taken = read(there, sent)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(taken, sent, strict=True))
        most = max(most, len(alive) + 1)
        if keep[number]:
            alive.append((taken, sent))
        del taken
        for old, originals in alive:  # nothing that is kept is written over
            assert all(torch.equal(a, b) for a, b in zip(old, originals, strict=True))
    assert len(here.pieces) <= most


def test_a_piece_is_free_again_once_the_backward_has_read_it() -> None:
    here, there = pair()
    for step in range(5):
        here.put([torch.full((4, 4), float(step))])
        value = there.take().tensor((4, 4), torch.float32).requires_grad_()
        loss = (value * value).sum()
        assert len(here.pieces) == 1 and not here.free
        loss.backward()
        assert value.grad is not None and torch.equal(value.grad, torch.full((4, 4), 2.0 * step))
        del value, loss
    received = []
    for step in range(5):  # one whose receiver keeps everything gets new memory, and does not wait
        here.put([torch.full((3,), float(step))])
        received.append(there.take().tensor((3,), torch.float32))
    assert [float(value[0]) for value in received] == [0, 1, 2, 3, 4] and len(here.pieces) == 5


def test_a_larger_message_gets_larger_memory_in_the_same_place() -> None:
    here, there = pair()
    for size in (1, 1000, 10, 100_000, 99_999):
        sent = [torch.randn(size)]
        here.put(sent)
        assert torch.equal(read(there, sent)[0], sent[0])
    assert len(here.pieces) == 1 and len(here.pieces[0]) >= 400_000


def test_both_ends_send_while_both_give_back() -> None:
    here, there = pair()
    for step in range(20):
        here.put([torch.tensor([step])])
        there.put([torch.tensor([-step]), torch.tensor([2.5])])
        if step % 3 == 2:
            for back in range(3):
                assert int(there.take().tensor((1,), torch.int64)) == step - 2 + back
                assert int(here.take().tensor((1,), torch.int64)) == -(step - 2 + back)
    assert len(here.pieces) <= 4 and len(there.pieces) <= 4


def test_as_many_messages_may_wait_as_a_channel_is_used_for() -> None:
    here, there = pair()
    for step in range(channel.MOST_UNREAD):
        here.put([torch.tensor([step])])
    taken = [there.take().tensor((1,), torch.int64) for _ in range(channel.MOST_UNREAD)]
    assert [int(value) for value in taken] == list(range(channel.MOST_UNREAD))


def test_no_open_file_is_left_behind() -> None:
    gc.collect()  # what earlier tests have left in circles has files open, too
    here, there = pair()
    before = len(os.listdir("/proc/self/fd"))
    received = []
    for step in range(20):
        here.put([torch.tensor([step])])
        received.append(there.take().tensor((1,), torch.int64))
    assert len(os.listdir("/proc/self/fd")) == before + 2 * 20  # of a mapping Python keeps a descriptor of its own
    del received, here, there
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before - 2


def test_a_peer_that_is_gone_is_told_of() -> None:
    here, there = pair()
    there.connection.close()
    with pytest.raises(Lost):
        here.take()
    with pytest.raises(Lost):
        here.put([torch.ones(1)])
    here, there = pair()
    there.put([torch.ones(1)])
    value = here.take().tensor((1,), torch.float32)
    there.connection.close()
    del value  # nobody is left to give it back to
    with pytest.raises(Lost):
        here.take()


def test_two_ranks_open_a_channel_or_none_where_one_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(channel.listen, store, "a"), pool.submit(channel.join, store, "a")
        here, there = (each.result() for each in ends)
        assert here is not None and there is not None
        here.put([torch.arange(3)])
        assert there.take().tensor((3,), torch.int64).tolist() == [0, 1, 2]
        long = tmp_path / ("x" * 120)  # longer than a socket's name may be
        long.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(long))
        ends = pool.submit(channel.listen, store, "b"), pool.submit(channel.join, store, "b")
        assert [each.result() for each in ends] == [None, None]
        monkeypatch.undo()
        store.set("c", str(tmp_path / "nobody"))
        assert channel.join(store, "c") is None and store.get("c/joined") == b"no"
    assert not list(long.iterdir())


def test_a_fork_gives_nothing_back() -> None:
    here, there = pair()
    here.put([torch.ones(3)])
    value = there.take().tensor((3,), torch.float32)
    child = os.fork()
    if not child:
        del value
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    here.put([torch.zeros(3)])
    assert len(here.pieces) == 2 and value.tolist() == [1, 1, 1]
    del value
    there.take()
    for _ in range(2):
        here.put([torch.zeros(3)])
    assert len(here.pieces) == 2  # each piece came back once


def test_whoever_collects_what_it_receives_has_it_in_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MOST_KEPT", 3)
    here, there = pair()
    received = []
    for step in range(10):
        here.put([torch.tensor([step])])
        received.append(there.take().tensor((1,), torch.int64))
    assert [int(value) for value in received] == list(range(10)) and len(here.pieces) == 4
    received.clear()
    for step in range(10):
        here.put([torch.tensor([step])])
        assert int(there.take().tensor((1,), torch.int64)) == step
    assert len(here.pieces) == 4 and not there.in_use


def test_nobody_else_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    with ThreadPoolExecutor() as pool, monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)  # the listener is another user then
        ends = pool.submit(channel.listen, store, "a"), pool.submit(channel.join, store, "a")
        assert [each.result() for each in ends] == [None, None]


def test_ranks_share_memory_that_all_of_them_take_for_neighbours() -> None:
    store = HashStore()
    near = {0: range(2), 1: range(2), 2: range(2, 4), 3: range(3, 5)}
    with ThreadPoolExecutor() as pool:
        asked = {rank: pool.submit(neighbours, store, rank, each, "cpu") for rank, each in near.items()}
        asked[4] = pool.submit(neighbours, store, 4, range(3, 5), "cuda")
        assert {rank: each.result() for rank, each in asked.items()} == {0: [0, 1], 1: [0, 1], 2: [2], 3: [3], 4: []}


class Uneven(Noise):
    """Every minibatch of another size."""

    def images(self, t: int) -> torch.Tensor:
        return super().images(t)[: 4 + 2 * (t % 3)]


PHASES = [Phase(get("pipedream"), 6, (3,)), Phase(get("gpipe"), 4, (3,), microbatches=2)]


def trained(job: Job, how: str) -> tuple[list[dict[str, torch.Tensor]], list[str]]:
    if how == "apart":
        job.near = ()
    if how == "deep":
        channel.MOST_UNREAD = 3  # fewer than may wait in either phase
    ends, carriers = [], []
    for batches in (Noise(), Uneven()):
        model, loss = convolutional(), nn.functional.cross_entropy
        uneven = isinstance(batches, Uneven)
        training = RealTraining(job, model.train(), PHASES, sgd, loss, rate=lambda step: 1.0, seed=5, uneven=uneven)
        records = training.run(batches.inputs, batches.targets)
        ends.append(model.state_dict())
        carriers += [carried_by(c for record in phase.values() for c in record.carriers) for phase in records]
    assert not job.channels
    return ends, carriers


@pytest.mark.real
def test_workers_of_one_machine_talk_through_memory_and_learn_the_same_as_without() -> None:
    results = {how: launch(trained, 2, how=how) for how in ("near", "apart", "deep")}
    carriers = {how: carriers for how, (_, carriers) in results.items()}
    assert set(carriers["near"]) == {"shared memory"} and set(carriers["apart"]) == {"gloo"}
    assert set(carriers["deep"]) == {"gloo"}
    for number, batches in enumerate((Noise(), Uneven())):
        model = convolutional()
        pipelag.train(model, batches, phases=PHASES, optimizer=sgd, seed=5, uneven=True)
        assert all(equal(states[number], model.state_dict()) for states, _ in results.values())


class Turning(nn.Module):
    """Hands on another type from the third minibatch on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.seen += 1
        return x, torch.ones(3, dtype=torch.int32 if self.seen < 3 else torch.int64)


class First(nn.Module):
    """Of two."""

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return pair[0]


@pytest.mark.real
def test_a_stage_that_hands_on_another_type_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), Turning(), First(), nn.Linear(8, 4))
    with pytest.raises(PipelagError, match=r"minibatch 2 has type int64, but earlier ones had int32"):
        pipelag.train(model, Noise(), method="pipedream", cuts=(3,), steps=6, optimizer=sgd, executor="real")
