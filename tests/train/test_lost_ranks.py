"""What a rank prints that is ended because of another one."""

import signal
import socket
import subprocess
import sys
import time

import pytest

WATCHED = """
import os, socket, sys, time
from lewel.train import lost_ranks
from lewel.train.heartbeat import Peer
other = Peer(1, socket.socket(fileno=int(sys.argv[1])))
os.environ["MASTER_ADDR"] = ""
lost_ranks.ranks, lost_ranks.connect = lambda: 2, lambda host: [other]
with lost_ranks.WatchedRanks(10):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("lost", [True, False])
def test_a_rank_that_srun_ends_reports_the_lost_rank_first(lost: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", WATCHED, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)  # the news may come after the signal
        if lost:
            ours.shutdown(socket.SHUT_RDWR)
        _, said = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM
    expected = "Rank 1 has ended: it was killed, or its node was lost. Nothing is saved yet: "
    assert said == (f"{expected}run the same command to start again.\n" if lost else "")
