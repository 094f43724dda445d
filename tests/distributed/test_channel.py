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
from pipelag.distributed.launch.launch import launch
from pipelag.distributed.training import RealTraining
from pipelag.distributed.workers.base import Job
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
def test_what_is_put_is_taken_whatever_is_kept_of_it(messages: list[list[Any]], kept: list[bool]) -> None:
    here, there = pair()
    alive: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    most = 0
    for number, described in enumerate(messages):
        sent = [(torch.rand(shape) * 100).to(dtype) for shape, dtype in described]
        here.put(sent)
        taken = read(there, sent)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(taken, sent, strict=True))
        most = max(most, len(alive) + 1)
        if kept[number]:
            alive.append((taken, sent))
        del taken
        for old, originals in alive:  # nothing that is kept is written over
            assert all(torch.equal(a, b) for a, b in zip(old, originals, strict=True))
    assert len(here.own) <= most


def test_a_piece_is_free_again_once_the_backward_has_read_it() -> None:
    here, there = pair()
    for step in range(5):
        here.put([torch.full((4, 4), float(step))])
        value = there.take().tensor((4, 4), torch.float32).requires_grad_()
        loss = (value * value).sum()
        assert len(here.own) == 1 and not here.free
        loss.backward()
        assert value.grad is not None and torch.equal(value.grad, torch.full((4, 4), 2.0 * step))
        del value, loss
    kept = []
    for step in range(5):  # one whose receiver keeps everything gets new memory, and does not wait
        here.put([torch.full((3,), float(step))])
        kept.append(there.take().tensor((3,), torch.float32))
    assert [float(value[0]) for value in kept] == [0, 1, 2, 3, 4] and len(here.own) == 5


def test_a_larger_message_gets_larger_memory_in_the_same_place() -> None:
    here, there = pair()
    for size in (1, 1000, 10, 100_000, 99_999):
        sent = [torch.randn(size)]
        here.put(sent)
        assert torch.equal(read(there, sent)[0], sent[0])
    assert len(here.own) == 1 and len(here.own[0]) >= 400_000


def test_both_ends_send_while_both_give_back() -> None:
    here, there = pair()
    for step in range(20):
        here.put([torch.tensor([step])])
        there.put([torch.tensor([-step]), torch.tensor([2.5])])
        if step % 3 == 2:
            for back in range(3):
                assert int(there.take().tensor((1,), torch.int64)) == step - 2 + back
                assert int(here.take().tensor((1,), torch.int64)) == -(step - 2 + back)
    assert len(here.own) <= 4 and len(there.own) <= 4


def test_as_many_messages_may_wait_as_a_channel_is_used_for() -> None:
    here, there = pair()
    for step in range(channel.MOST_UNREAD):
        here.put([torch.tensor([step])])
    taken = [there.take().tensor((1,), torch.int64) for _ in range(channel.MOST_UNREAD)]
    assert [int(value) for value in taken] == list(range(channel.MOST_UNREAD))


def test_no_open_file_is_left_behind() -> None:
    here, there = pair()
    before = len(os.listdir("/proc/self/fd"))
    kept = []
    for step in range(20):
        here.put([torch.tensor([step])])
        kept.append(there.take().tensor((1,), torch.int64))
    assert len(os.listdir("/proc/self/fd")) == before + 2 * 20  # of a mapping Python keeps a descriptor of its own
    del kept, here, there
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


class Uneven(Noise):
    """Every minibatch of another size."""

    def images(self, t: int) -> torch.Tensor:
        return super().images(t)[: 4 + 2 * (t % 3)]


def trained(job: Job, apart: bool) -> tuple[list[dict[str, torch.Tensor]], str]:
    if apart:
        job.near = range(0)
    ends = []
    for batches in (Noise(), Uneven()):
        model, loss = convolutional(), nn.functional.cross_entropy
        phases = [Phase(get("pipedream"), 6, (3,)), Phase(get("gpipe"), 4, (3,), microbatches=2)]
        uneven = isinstance(batches, Uneven)
        training = RealTraining(job, model.train(), phases, sgd, loss, lambda step: 1.0, 5, uneven=uneven)
        training.run(batches.inputs, batches.targets)
        ends.append(model.state_dict())
    return ends, job.messages


@pytest.mark.real
def test_workers_of_one_machine_talk_through_memory_and_learn_the_same_as_without() -> None:
    (states, messages), (others, without) = (launch(trained, 2, apart=apart) for apart in (False, True))
    assert messages == "shared memory" and without == "gloo"
    assert all(equal(state, other) for state, other in zip(states, others, strict=True))
    for state, batches in zip(states, (Noise(), Uneven()), strict=True):
        model = convolutional()
        phases = [Phase(get("pipedream"), 6, (3,)), Phase(get("gpipe"), 4, (3,), microbatches=2)]
        pipelag.train(model, batches, phases=phases, optimizer=sgd, seed=5, uneven=True)
        assert equal(state, model.state_dict())
