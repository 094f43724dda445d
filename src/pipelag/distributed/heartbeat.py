"""Heartbeats: every rank tells the job's store that it lives, and ends where another does not.

A rank that is stopped (SIGSTOP), whose machine hangs or that lost its network falls silent; after `patience` seconds
the others end, naming it. A slow rank is not silent: a thread beats, whatever the main one does. Where all beat and no
rank has computed anything for ten times as long, nor been ready to (a deadlock, a read that never ends), all end too,
naming the rank whose main thread waits for something else than its peers, and the line that it waits at.
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
LONGER = 10  # times the patience: for a rank that has not come yet (it imports), or where nobody computes
IDLE = 0.02  # of a core: below it, a process and those it has waited for do nothing but beat
BYE = "bye"
WAITS = (os.sep + "torch" + os.sep, os.sep + os.path.join("pipelag", "distributed") + os.sep)  # for peers, or a library


def patience_of(given: float | None) -> float:
    """Seconds that a rank may be silent: as given, or PIPELAG_PATIENCE, or 30."""
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
    """The last beat of a rank, and when it came by this machine's clock."""

    text: str = ""
    at: float = field(default_factory=time.monotonic)


def kept_from_a_core() -> float:
    """Seconds so far that the main thread could have computed while others had its core; 0 where nobody counts."""
    try:
        with open("/proc/self/schedstat") as file:  # computing, ready without a core (ns), turns
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


class Heartbeat:
    """This rank's beats, and its ear for the others'.

    Args:
        store: a connection of its own, since a store's client does one thing at a time.
        lost: called once, from a thread, with the rank that failed and what of it; it should end the process.
        local: the store is this machine's, and gone only with the launcher: no answer is no failure (Ctrl-Z).
    """

    def __init__(
        self, store: Any, rank: int, world: int, patience: float, lost: Callable[[int, str], None], local: bool = False
    ) -> None:
        self.store, self.rank, self.world, self.patience = store, rank, world, patience
        self.lost, self.local = lost, local
        self.every = min(1.0, patience / 5)
        self.heard = {other: Heard() for other in range(world)}
        self.reached = time.monotonic()  # the store
        self.busy = time.monotonic()  # this process computed, or would have, had it been given a core
        self.over = threading.Event()
        self.main = threading.main_thread().ident
        store.set_timeout(timedelta(seconds=max(patience, 10)))
        self.threads = [threading.Thread(target=loop, daemon=True) for loop in (self.talk, self.watch)]
        for thread in self.threads:
            thread.start()

    def talk(self) -> None:
        """Beat and listen, until it is over; a store that does not answer is asked again."""
        count, used = 0, 0.0
        while not self.over.is_set():
            now, spent = time.monotonic(), time.process_time() - time.thread_time() + sum(os.times()[2:4])
            spent += kept_from_a_core()  # beside others' greater priority it may have less than `IDLE` of one
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
        """Note the beats that are new."""
        there = [other for other in self.heard if self.heard[other].text or self.store.check([name(other)])]
        for other, text in zip(there, self.store.multi_get([name(other) for other in there]), strict=True):
            if text.decode() != self.heard[other].text:
                self.heard[other] = Heard(text.decode())

    def watch(self) -> None:
        """Look for who is silent, until it is over."""
        woke = time.monotonic()
        while not self.over.wait(self.every):
            now = time.monotonic()
            if now - woke > 3 * self.every:  # this process itself was stopped: nobody could be heard
                self.reached = self.busy = now
                self.heard = {other: Heard(heard.text, now) for other, heard in self.heard.items()}
            woke = now
            failed = self.failed(now)
            if failed is not None and not self.over.is_set():
                self.lost(*failed)
                return

    def failed(self, now: float) -> tuple[int, str] | None:
        """The rank that failed and what of it, if one did."""
        if now - self.reached > self.patience:  # nothing can be said of the others
            cut = f"it has not reached the workers' store for {self.patience:g} s: it has lost its network"
            return None if self.local else (self.rank, cut)
        for other, heard in self.heard.items():
            limit = self.patience * (1 if heard.text else LONGER)
            if now - heard.at > limit and heard.text != BYE and other != self.rank:
                stopped = "it is stopped, hangs or has lost its network" if heard.text else "it has never started"
                return other, f"nothing has been heard from it for {limit:g} s: {stopped}"
        return self.stuck()

    def stuck(self) -> tuple[int, str] | None:
        """Where no rank has computed anything for long, the one that waits for something else than its peers."""
        beats = [json.loads(heard.text) for heard in self.heard.values() if heard.text not in ("", BYE)]
        limit = LONGER * self.patience
        if len(beats) < self.world or min(beat["idle"] for beat in beats) < limit:
            return None
        rank = next((rank for rank, beat in enumerate(beats) if beat["at"]), 0)
        where = f"it hangs at {beats[rank]['at']}" if beats[rank]["at"] else "all wait for one another"
        return rank, f"no worker has computed anything for {limit:g} s: {where}"

    def stop(self) -> None:
        """This rank's work is done; its silence from now on is no failure."""
        if not self.over.is_set():
            self.over.set()
            for thread in self.threads:
                if thread is not threading.current_thread():
                    thread.join(self.every)
            with suppress(RuntimeError):
                self.store.set(name(self.rank), BYE)

    def farewell(self) -> None:
        """Wait, at most as long as the patience, until all others have said that they are done."""
        with suppress(RuntimeError):
            end = time.monotonic() + self.patience
            while time.monotonic() < end:
                if all(self.store.get(name(other)).decode() == BYE for other in self.heard):
                    return
                time.sleep(0.02)


def name(rank: int) -> str:
    """Of a rank's beat in the store."""
    return f"beat/{rank}"


def place(thread: int | None) -> str | None:
    """Where a thread is, as `file, line n`; None where it waits for its peers, or in torch."""
    frame: FrameType | None = sys._current_frames().get(thread or 0)
    if frame is None or any(part in frame.f_code.co_filename for part in WAITS):
        return None
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}"
