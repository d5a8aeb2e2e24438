"""Peer processes: messages arrive, how a peer ended is reported, and it never outlives us."""

import datetime
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from mugrpo.processes import child
from mugrpo.processes.messages import Inbox, from_json, printable, send, to_json
from mugrpo.processes.peer import Peer, PeerLost, audible
from tests.cases import table
from tests.waiting import alive, soon

ROOT = Path(__file__).parents[2]
HOUSE = Path(child.__file__).parents[1]

# Starts a grandchild, then executes every message as Python.
PROGRAM = f"""
import sys; sys.path.insert(0, {str(HOUSE)!r})
from processes.child import Channel
import os, re, signal, subprocess, time
channel = Channel()
channel.send([channel.receive(), os.getpid(), subprocess.Popen(["sleep", "600"]).pid])
while True:
    exec(channel.receive())
"""
HOLDS_THE_LOCK = 're.match("(a+)+$", "a" * 64 + "b")'  # holds the interpreter's lock for years


def started(silence: float = 30.0, log: Path | None = None, setup: object = "hello") -> Peer:
    command = [sys.executable, "-P", "-c", PROGRAM]
    return Peer(command, to_json(setup), silence=silence, environment={"OURS": "1"}, log=log)


def tell(peer: Peer, text: str) -> None:
    peer.send(to_json(text))


def heard(peer: Peer) -> object:
    """Return its next message, however long that takes."""
    while (message := peer.hear()) is None:
        pass
    return message


def test_messages_go_both_ways_and_it_ends_with_what_it_started():
    peer = started(setup={"a": b"\x00"})
    first, pid, grandchild = heard(peer)
    assert first == {"a": b"\x00"} and pid == peer.process.pid
    tell(peer, "channel.send(os.environ['OURS'])")
    assert heard(peer) == "1"
    assert peer.hear(0.01) is None
    assert alive(pid) and alive(grandchild) and os.getsid(pid) == pid
    assert peer.end() == peer.end() == "SIGKILL"
    assert not alive(pid) and soon(lambda: not alive(grandchild))


@table(
    ("last", "ended"),
    [
        ("os._exit(3)", "status 3"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("channel._socket.close(); time.sleep(0.5); os._exit(4)", "status 4"),
    ],
)
def test_a_peer_that_has_ended_is_lost_and_says_how(last: str, ended: str, tmp_path: Path):
    peer = started(log=tmp_path / "log")
    _, _, grandchild = heard(peer)
    tell(peer, last)
    with pytest.raises(PeerLost, match=f"^ended with {ended}$") as lost:
        heard(peer)
    assert lost.value.ended == ended
    assert soon(lambda: not alive(grandchild))
    with pytest.raises(PeerLost, match=f"^ended with {ended}$"):
        tell(peer, "1")


def test_a_silent_peer_is_lost_and_a_message_restarts_the_clock():
    peer = started()
    heard(peer)
    peer.silence = 0.5
    for _ in range(3):
        tell(peer, "time.sleep(0.3); channel.send({})")
        assert heard(peer) == {}
    began = time.monotonic()
    tell(peer, HOLDS_THE_LOCK)
    with pytest.raises(PeerLost, match=r"^has sent nothing for 0\.5 s$") as lost:
        heard(peer)
    assert lost.value.ended is None and time.monotonic() - began > 0.5
    with pytest.raises(PeerLost, match=r"^has read nothing for 0\.5 s$"):
        tell(peer, "#" * (1 << 24))
    peer.end()
    assert peer.silence and peer.due < time.monotonic()


def test_peers_that_speak_or_are_overdue_are_audible():
    idle, speaks, late = (started() for _ in range(3))
    for peer in (idle, speaks, late):
        heard(peer)
    idle.silence = None
    tell(speaks, "channel.send(1)")
    assert audible([idle, speaks, late]) == [speaks]
    assert heard(speaks) == 1
    late.silence = 0.2
    assert audible([idle, speaks, late]) == [late]
    assert audible([idle], 0.01) == []
    for peer in (idle, speaks, late):
        peer.end()


def test_what_it_prints_goes_to_its_log_or_to_stderr(tmp_path: Path, capfd):
    for log in (tmp_path / "log", tmp_path / "log", None):
        peer = started(log=log)
        tell(peer, "print('out', flush=True); os.write(2, b'err\\n'); os._exit(0)")
        with pytest.raises(PeerLost, match="status 0"):
            while True:
                heard(peer)
    assert (tmp_path / "log").read_text() == "out\nerr\n" * 2
    assert capfd.readouterr() == ("", "out\nerr\n")


def test_it_ignores_ctrl_c_and_leaves_no_core_or_if_its_channel_closes_first_nothing():
    peer = started()
    heard(peer)
    os.kill(peer.process.pid, signal.SIGINT)
    tell(peer, "import resource; channel.send(resource.getrlimit(resource.RLIMIT_CORE))")
    assert heard(peer) == [0, 0]
    peer.end()
    # The kernel may close the descriptors of a killed parent in this order.
    peer = started()
    _, *pids = heard(peer)
    peer._channel.close()
    assert soon(lambda: not any(map(alive, pids)))
    peer.end()


def test_the_childs_side_needs_only_the_standard_library():
    words = f"""
        import sys
        sys.path.insert(0, {str(HOUSE)!r})
        import processes.child
        tops = {{name.partition(".")[0] for name in sys.modules}}
        print(tops - sys.stdlib_module_names - {{"__main__"}})
    """
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", textwrap.dedent(words)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("{'processes'}\n", "")


PARENT = """
from tests.processes.test_peer import *
peer = started()
print(*heard(peer)[1:], flush=True)
"""


@table("busy", ["time.sleep(600)", HOLDS_THE_LOCK])
def test_it_and_what_it_started_die_with_a_killed_parent(busy: str):
    """However the process that started them ends."""
    code = f"{PARENT}tell(peer, {busy!r}); time.sleep(600)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{HOUSE.parent}"}
    command = [sys.executable, "-c", code]
    run = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)
    assert run.stdout is not None
    known = [int(word) for word in run.stdout.readline().split()]
    assert len(known) == 2 and all(map(alive, known))
    time.sleep(0.5)  # until it is busy
    run.kill()
    run.communicate()
    assert soon(lambda: not any(map(alive, known)))


def test_messages_keep_every_character_and_arrive_in_pieces():
    ours, theirs = socket.socketpair()
    said = {"text": "\x00\ud800\udfff\u2028é", "n": [1, None, 0.1], "raw": b"\x00\xff"}
    with ours, theirs:
        send(ours, to_json(said))
        send(ours, to_json("next"))
        inbox = Inbox()
        assert inbox.message() is None
        inbox.read(theirs)
        assert [inbox.message(), inbox.message(), inbox.message()] == [said, "next", None]


def test_values_that_json_cannot_express_and_what_a_terminal_obeys():
    values = {"a": np.arange(3), "b": np.float32(0.5), "c": (1, 2), "d": np.int64(7)}
    values |= {"day": datetime.date(2026, 1, 2), "price": Decimal("1.10")}
    plain = {"a": [0, 1, 2], "b": 0.5, "c": [1, 2], "d": 7}
    assert from_json(to_json(values)) == {**plain, "day": "2026-01-02", "price": "1.10"}
    with pytest.raises(TypeError, match="object"):
        to_json(object())
    assert printable("a\x1b[2J\ud800\n") == r"a\x1b[2J\ud800\n"
    assert printable("x" * 400, 10) == "xxxxxxx..."
