"""Heartbeats between the ranks of a run: which rank has ended or hangs.

Each rank has a thread with a connection to rank 0. A closed connection, a long silence, or a main
thread that is stuck in a step is a lost rank, of which rank 0 informs all others. Collectives alone
would wait for it for half an hour.
"""

import json
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from lewel.ops.ranks import gather_objects, rank, ranks
from lewel.train.stalls import StepWatch

PERIOD = 5.0  # seconds between two heartbeats
JOINING = 60.0  # seconds in which all ranks must connect
LONGEST = 1 << 16  # bytes of a line
LONGEST_FAILURE = 2_000  # characters


class Lost(NamedTuple):
    """A lost rank and the reason, which completes "Rank 1 ..."."""

    rank: int
    why: str
    printed: bool = False  # whether that rank has printed its own error message


class Peer:
    """A connection to another rank."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number, self.connection = number, connection
        self.heard, self.received = time.monotonic(), b""
        connection.setblocking(False)

    def send(self, *words: object) -> None:
        with suppress(OSError):  # the next read reports it
            self.connection.send((json.dumps(words) + "\n").encode())

    def read(self) -> list[list[object]] | None:
        """The messages that have arrived; None where the connection is closed."""
        try:
            data = self.connection.recv(LONGEST)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self.heard, self.received = time.monotonic(), (self.received + data)[-LONGEST:]
        *lines, self.received = self.received.split(b"\n")
        return [json.loads(line) for line in lines] if data else None


class Heartbeat(threading.Thread):
    """Watches the peers: all ranks on rank 0, rank 0 on the others.

    Within `seconds` and a heartbeat `on_lost` is called, once, in this thread. Rank 0 sends with
    its heartbeats the step that it has saved.
    """

    def __init__(
        self,
        mine: int,
        peers: list[Peer],
        seconds: float,
        on_lost: Callable[[Lost], None],
        on_saved: Callable[[int], None],
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.peers = {peer.number: peer for peer in peers}
        self.seconds, self.period = seconds, min(PERIOD, seconds / 4)
        self.on_lost, self.on_saved = on_lost, on_saved
        self.mine = mine  # this rank
        self.step: int | None = None  # of the newest checkpoint
        self.lost: Lost | None = None
        self.steps = StepWatch()  # of this rank's main thread
        self.last_words: tuple[object, ...] = ()
        self._woken, self._waker = socket.socketpair()
        self._beaten = time.monotonic()

    def saved(self, step: int) -> None:
        """Rank 0 has saved a step."""
        if step != self.step:
            self.step = step
            self.on_saved(step)
            self._wake()

    def close(self, failure: str | None = None) -> None:
        """Leave: no other rank takes this one for lost. `failure` is its printed error message."""
        self.last_words = ("bye",) if failure is None else ("failed", failure[:LONGEST_FAILURE])
        self._wake()
        self.join(2.0)

    def _wake(self) -> None:
        with suppress(OSError):  # the thread has ended: all others have left
            self._waker.send(b".")

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for peer in self.peers.values():
                selector.register(peer.connection, selectors.EVENT_READ, peer)
            while self.peers and not self.last_words and self.lost is None:
                before = time.monotonic()
                for key, _ in selector.select(self.period):
                    if key.data is None:
                        self._woken.recv(64)
                        self._beat()
                    elif not self._hear(key.data):
                        selector.unregister(key.fileobj)
                        self.peers.pop(key.data.number, None)
                self._check_silence(before)
        for peer in self.peers.values():
            if self.last_words:
                peer.send(*self.last_words)
            peer.connection.close()
        self._woken.close()

    def _hear(self, peer: Peer) -> bool:
        """Handle what a peer has sent; whether it stays."""
        messages = peer.read()
        if messages is None:
            self._lose(Lost(peer.number, "has ended: it was killed, or its node was lost"))
            return False
        for kind, *values in messages:
            if kind == "bye":
                return False
            if kind == "failed":
                self._lose(Lost(peer.number, f"has failed: {str(values[0]).rstrip('.')}", True))
            elif kind == "stuck":
                self._lose(Lost(peer.number, str(values[0])))
            elif kind == "lost":
                self._lose(Lost(*values))  # type: ignore[arg-type]
            elif values and values[0] != self.step and self.mine:
                self.step = int(values[0])  # type: ignore[call-overload]
                self.on_saved(self.step)
        return True

    def _check_silence(self, before: float) -> None:
        """Send a heartbeat where it is due; a peer that has been silent for too long is lost."""
        now = time.monotonic()
        paused = now - before > 3 * self.period  # this process was stopped: so were others, perhaps
        if paused:
            self.steps.forgive(now - before)
        if now - self._beaten >= self.period:
            self._beat()
        self._check_main_thread()
        for peer in self.peers.values():
            if paused:
                peer.heard = now
            elif now - peer.heard > self.seconds:
                minutes = f"{self.seconds / 60:.3g} minutes (--rank-timeout)"
                self._lose(Lost(peer.number, f"has not answered for {minutes}"))

    def _check_main_thread(self) -> None:
        """A main thread that is stuck in a step is a lost rank, although its process answers.

        All ranks take a step together, so that many are stuck by one. The one that waits for its
        batch is the cause, and says so first. Where none does, rank 0 ends the run.
        """
        if self.steps.reading and (why := self.steps.stuck(self.seconds)):
            if self.mine:
                for peer in self.peers.values():
                    peer.send("stuck", why)
            else:
                self._lose(Lost(0, why))
        elif not self.mine and (why := self.steps.stuck(self.seconds + 3 * self.period)):
            self._lose(Lost(0, f"{why}: it hangs, or waits for another rank that does"))

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        for peer in self.peers.values():
            peer.send("beat", *([] if self.step is None else [self.step]))

    def _lose(self, lost: Lost) -> None:
        if self.lost is not None or self.last_words:
            return
        self.lost = lost
        for peer in self.peers.values():
            if not self.mine:
                peer.send("lost", *lost)
        self.on_lost(lost)


def connect(host: str) -> list[Peer]:
    """Connections between rank 0, on `host`, and all others; every rank calls it."""
    if rank() == 0:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        with socket.create_server(("", 0), family=family, dualstack_ipv6=dual) as server:
            token = secrets.token_hex(16)  # a stranger that connects is not a rank
            gather_objects([(server.getsockname()[1], token)])
            return _accept(server, token)
    port, token = gather_objects([(0, "")])[0]
    try:
        connection = socket.create_connection((host, port), JOINING)
    except OSError as error:  # a firewall
        print(
            f"Rank {rank()} cannot reach {host}:{port} ({error}): it is not watched, and torch "
            "notices its loss later.",
            file=sys.stderr,
        )
        return []
    first = Peer(0, connection)
    first.send("rank", token, rank())
    return [first]


def _accept(server: socket.socket, token: str) -> list[Peer]:
    """The connections of all other ranks, as far as they come in time."""
    peers: dict[int, Peer] = {}
    deadline = time.monotonic() + JOINING
    while len(peers) < ranks() - 1 and (left := deadline - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            connection, _ = server.accept()
            connection.settimeout(left)
            hello = json.loads(connection.makefile("rb").readline(LONGEST))
        except (OSError, ValueError):
            continue
        if hello[:2] == ["rank", token]:
            peers[hello[2]] = Peer(hello[2], connection)
    return list(peers.values())
