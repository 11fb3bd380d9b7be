"""Heartbeats between ranks, as threads of one process: a closed, a silent and a failed rank."""

import socket
import threading
import time

from lewel.train.heartbeat import Heartbeat, Lost, Peer

SECONDS = 2.0


class Ranks:
    """Heartbeats of some ranks, connected to rank 0; what each has noticed."""

    def __init__(self, many: int, seconds: float = SECONDS) -> None:
        pairs = [socket.socketpair() for _ in range(many - 1)]
        self.noticed: dict[int, Lost] = {}
        self.saved: dict[int, int] = {}
        self.changed = threading.Condition()
        peers = [[Peer(number, pair[0]) for number, pair in enumerate(pairs, 1)]]
        peers += [[Peer(0, pair[1])] for pair in pairs]
        self.beats = [
            Heartbeat(
                mine,
                others,
                seconds,
                lambda lost, mine=mine: self.note(self.noticed, mine, lost),  # type: ignore[misc]
                lambda step, mine=mine: self.note(self.saved, mine, step),  # type: ignore[misc]
            )
            for mine, others in enumerate(peers)
        ]

    def note(self, where: dict[int, object], mine: int, what: object) -> None:
        with self.changed:
            where[mine] = what
            self.changed.notify_all()

    def start(self, *but: int) -> None:
        for number, beat in enumerate(self.beats):
            if number not in but:
                beat.start()

    def wait(self, where: dict[int, object], many: int, seconds: float = 30.0) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: len(where) >= many, seconds)


def test_a_closed_connection_is_a_lost_rank_at_once() -> None:
    ranks = Ranks(3, seconds=600)
    ranks.start(2)
    ranks.beats[2].peers[0].connection.close()
    assert ranks.wait(ranks.noticed, 2)  # type: ignore[arg-type]
    assert set(ranks.noticed) == {0, 1}
    assert {lost.rank for lost in ranks.noticed.values()} == {2}
    assert "killed" in ranks.noticed[1].why


def test_a_silent_rank_is_lost_after_the_timeout() -> None:
    ranks = Ranks(3)
    began = time.monotonic()
    ranks.start(1)
    assert ranks.wait(ranks.noticed, 2)  # type: ignore[arg-type]
    assert time.monotonic() - began >= SECONDS
    assert {number: lost.rank for number, lost in ranks.noticed.items()} == {0: 1, 2: 1}
    assert ranks.noticed[2].why == "has not answered for 0.0333 minutes (--rank-timeout)"


def test_a_silent_first_rank_is_lost_too() -> None:
    ranks = Ranks(2)
    ranks.start(0)
    assert ranks.wait(ranks.noticed, 1)  # type: ignore[arg-type]
    assert ranks.noticed[1].rank == 0


def test_ranks_that_leave_are_not_lost_and_the_saved_step_is_known() -> None:
    ranks = Ranks(3)
    ranks.start()
    ranks.beats[0].saved(40)
    assert ranks.wait(ranks.saved, 3)  # type: ignore[arg-type]
    assert ranks.saved == {0: 40, 1: 40, 2: 40}
    time.sleep(1.2 * SECONDS)
    ranks.beats[1].close()
    time.sleep(0.2)
    ranks.beats[0].close()
    ranks.beats[2].join(5)
    ranks.beats[2].close()  # nobody is there any more
    assert not ranks.noticed
    assert not any(beat.is_alive() for beat in ranks.beats)


def test_a_rank_that_has_printed_its_error_says_so() -> None:
    ranks = Ranks(3)
    ranks.start()
    ranks.beats[2].close(failure="The disk is full.")
    assert ranks.wait(ranks.noticed, 2)  # type: ignore[arg-type]
    assert ranks.noticed[0] == ranks.noticed[1] == Lost(2, "has failed: The disk is full", True)


def test_a_process_that_was_stopped_gives_the_others_time() -> None:
    """SLURM may stop all ranks and let them continue later: none is lost."""
    ranks = Ranks(2)
    first = ranks.beats[0]
    for peer in first.peers.values():
        peer.heard -= 10 * SECONDS
    first._check_silence(before=time.monotonic() - 10 * SECONDS)
    assert first.lost is None
    for peer in first.peers.values():
        peer.heard -= 10 * SECONDS
    first._check_silence(before=time.monotonic())
    assert first.lost is not None
