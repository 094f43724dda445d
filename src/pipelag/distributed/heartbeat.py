"""Heartbeats: every rank regularly tells the job's store that it is alive, and ends when another rank falls silent.

A rank falls silent if it is stopped (SIGSTOP), its machine hangs or its network is lost; after `patience` seconds the
others end and name it. A slow rank is not silent, because it beats in a thread of its own. All ranks also end if all
beat, but none has computed anything, or been ready to, for ten times the patience (a deadlock, a read that never ends).
They then name the rank whose main thread waits for something other than its peers, and the line where it waits.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from types import FrameType
from typing import Any

from pipelag.errors import PipelagError

PATIENCE = 30.0  # seconds
LONGER = 10  # times the patience: for a rank that has not beaten yet (it imports), or when no rank computes
IDLE = 0.02  # share of a core; a process that uses less, with the children it has waited for, only beats
BYE = "bye"
WAITS = (os.sep + "torch" + os.sep, os.sep + os.path.join("pipelag", "distributed") + os.sep)  # for peers, or torch


def patience_of(given: float | None) -> float:
    """The seconds for which a rank may be silent: the given ones, or PIPELAG_PATIENCE, or 30.

    Raises:
        PipelagError: no number from 1 on.
    """
    patience = given if given is not None else os.environ.get("PIPELAG_PATIENCE") or PATIENCE
    try:
        seconds = float(patience)
    except ValueError:
        seconds = -1.0
    if not 1 <= seconds < 1e9:
        raise PipelagError(
            f"patience, the seconds for which a worker may be silent, should be 1 or more, not '{patience}'"
        )
    return seconds


@dataclass
class Heard:
    """The last beat of a rank, and when it arrived by this machine's clock."""

    text: str = ""
    at: float = field(default_factory=time.monotonic)


def kept_from_a_core() -> float:
    """The seconds so far for which the main thread was ready to run but had no core; 0 if the system does not count."""
    try:
        with open("/proc/self/schedstat") as file:  # computing, ready without a core (ns), turns
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Heartbeat:
    """Sends this rank's beats, and watches those of the other ranks.

    Args:
        store: a connection of its own, because a store's client does one thing at a time.
        patience: seconds for which a rank may be silent.
        lost: called once, from a thread, with the rank that failed and the reason; it should end the process.
        local: the store is on this machine and ends only with the launcher, so that no answer is no failure (Ctrl-Z).
    """

    def __init__(
        self, store: Any, rank: int, world: int, patience: float, lost: Callable[[int, str], None], local: bool = False
    ) -> None:
        self.store, self.rank, self.world, self.patience = store, rank, world, patience
        self.lost, self.local = lost, local
        self.every = min(1.0, patience / 5)
        self.heard = {other: Heard() for other in range(world)}
        self.reached = time.monotonic()  # when the store last answered
        self.busy = time.monotonic()  # when this process last computed, or was ready to but had no core
        self.over = threading.Event()
        self.main = threading.main_thread().ident
        store.set_timeout(timedelta(seconds=max(patience, 10)))
        self.threads = [threading.Thread(target=loop, daemon=True) for loop in (self.talk, self.watch)]
        for thread in self.threads:
            thread.start()

    def talk(self) -> None:
        """Beat and listen until the end; ask a store again if it does not answer."""
        count, used = 0, 0.0
        while not self.over.is_set():
            now, spent = time.monotonic(), time.process_time() - time.thread_time() + sum(os.times()[2:4])
            spent += kept_from_a_core()  # processes of higher priority may leave it less than `IDLE` of a core
            if spent - used > IDLE * self.every:
                self.busy = now
            count, used = count + 1, spent
            idle = now - self.busy
            beat = {"n": count, "idle": idle, "at": place(self.main) if idle > self.patience else None}
            with suppress(RuntimeError):
                self.store.set(name(self.rank), json.dumps(beat))
                self.listen()
                self.reached = time.monotonic()
            self.over.wait(self.every)

    def listen(self) -> None:
        """Note the new beats of all ranks."""
        there = [other for other in self.heard if self.heard[other].text or self.store.check([name(other)])]
        for other, text in zip(there, self.store.multi_get([name(other) for other in there]), strict=True):
            if text.decode() != self.heard[other].text:
                self.heard[other] = Heard(text.decode())

    def watch(self) -> None:
        """Look for a failed rank until the end."""
        woke = time.monotonic()
        while not self.over.wait(self.every):
            now = time.monotonic()
            if now - woke > 3 * self.every:  # this process itself was stopped, and could hear no beats
                self.reached = self.busy = now
                self.heard = {other: Heard(heard.text, now) for other, heard in self.heard.items()}
            woke = now
            failed = self.failed(now)
            if failed is not None and not self.over.is_set():
                self.lost(*failed)
                return

    def failed(self, now: float) -> tuple[int, str] | None:
        """The rank that failed and the reason, or None."""
        if now - self.reached > self.patience:  # the others' beats are unknown
            cut = f"it has not reached the workers' store for {self.patience:g} s: it has lost its network"
            return None if self.local else (self.rank, cut)
        for other, heard in self.heard.items():
            limit = self.patience * (1 if heard.text else LONGER)
            if now - heard.at > limit and heard.text != BYE and other != self.rank:
                stopped = "it is stopped, hangs or has lost its network" if heard.text else "it has never started"
                return other, f"nothing has been heard from it for {limit:g} s: {stopped}"
        return self.stuck()

    def stuck(self) -> tuple[int, str] | None:
        """If no rank has computed for long: the rank that waits for something other than its peers, and where."""
        beats = [json.loads(heard.text) for heard in self.heard.values() if heard.text not in ("", BYE)]
        limit = LONGER * self.patience
        if len(beats) < self.world or min(beat["idle"] for beat in beats) < limit:
            return None
        rank = next((rank for rank, beat in enumerate(beats) if beat["at"]), 0)
        where = f"it hangs at {beats[rank]['at']}" if beats[rank]["at"] else "all wait for one another"
        return rank, f"no worker has computed anything for {limit:g} s: {where}"

    def stop(self) -> None:
        """End this rank's beats when its work is done; its silence is then no failure."""
        if not self.over.is_set():
            self.over.set()
            for thread in self.threads:
                if thread is not threading.current_thread():
                    thread.join(self.every)
            with suppress(RuntimeError):
                self.store.set(name(self.rank), BYE)

    def farewell(self) -> None:
        """Wait until all other ranks have said that they are done, but no longer than the patience."""
        with suppress(RuntimeError):
            end = time.monotonic() + self.patience
            while time.monotonic() < end:
                if all(self.store.get(name(other)).decode() == BYE for other in self.heard):
                    return
                time.sleep(0.02)


def name(rank: int) -> str:
    """The key of a rank's beat in the store."""
    return f"beat/{rank}"


def place(thread: int | None) -> str | None:
    """Where a thread is, as `file, line n`; None if it waits for its peers, or is in torch."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    if frame is None or any(part in frame.f_code.co_filename for part in WAITS):
        return None
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
