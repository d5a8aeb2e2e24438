"""Reward functions for tests. `obeys` does what each completion says:

5             returns 5
sleep 0.3 5   returns 5 after 0.3 s
compute 0.3 5 returns 5 after 0.3 s of CPU time
loop          never ends
bomb          takes all memory
deep          takes all of the stack
exit 3        ends the process
signal 11     ends it by a signal
raise boom    ValueError("boom")
child FILE    starts a process, writes the ids of both to FILE, and never ends nor releases the
              interpreter's lock
daemons FILE  starts daemons and writes their ids to FILE
share 600     takes 600 MB of memory in a shared map
children 4 150  starts 4 processes that take 150 MB each
forks 3 200   takes 200 MB and has 3 forks that read them
killed FILE   ends by SIGKILL unless FILE exists, which it creates; then returns 1
say hello     prints
shout 200     prints 200 MB
send TEXT     sends a message of its own to the run, and never ends
where         returns the process id
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def obeys(completions, **_):
    return [_obey(*text.split(maxsplit=1)) for text in completions]


def _obey(verb, rest=""):
    return ACTS[verb](rest) if verb in ACTS else float(verb)


def _sleep(rest):
    seconds, reward = rest.split()
    time.sleep(float(seconds))
    return float(reward)


def _compute(rest):
    seconds, reward = rest.split()
    end = time.process_time() + float(seconds)
    while time.process_time() < end:
        pass
    return float(reward)


def _loop(_):
    while True:
        pass


def _bomb(_):
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))


def _deep(rest):
    return _deep(rest)


def _raise(rest):
    raise ValueError(rest)


def _child(rest):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(rest).write_text(f"{os.getpid()} {child.pid}")
    re.match("(a+)+$", "a" * 64 + "b")


def _daemons(rest):
    for _ in range(3):
        if (pid := os.fork()) == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                with open(rest, "a") as file:
                    file.write(f"{os.getpid()} ")
                time.sleep(600)
            os._exit(0)
        os.waitpid(pid, 0)
    while len(Path(rest).read_text().split()) % 3:
        time.sleep(0.01)
    return 1.0


def _share(rest):
    shared = mmap.mmap(-1, int(rest) << 20)
    for _ in range(int(rest)):
        shared.write(b"x" * (1 << 20))
    time.sleep(60)


def _children(rest):
    count, megabytes = map(int, rest.split())
    code = f"import time; a = b'x' * ({megabytes} << 20); time.sleep(60)"
    for _ in range(count):
        subprocess.Popen([sys.executable, "-c", code])
    time.sleep(60)


def _forks(rest):
    count, megabytes = map(int, rest.split())
    hoard = b"x" * (megabytes << 20)
    for _ in range(count):
        if os.fork() == 0:
            hoard.count(b"y")
            time.sleep(1.0)
            os._exit(0)
    for _ in range(count):
        os.wait()
    return 1.0


def _shout(rest):
    for _ in range(int(rest)):
        os.write(1, b"!" * (1 << 20))
    return 1.0


def _killed(rest):
    if not Path(rest).exists():
        Path(rest).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def _send(rest):
    (channel,) = (o for o in gc.get_objects() if type(o).__name__ == "Channel")
    data = rest.replace("DEEP", "[" * 100_000).encode()
    channel._socket.sendall(len(data).to_bytes(8, "big") + data)
    time.sleep(600)


def _say(rest):
    print(rest, flush=True)
    return 1.0


ACTS = {
    "sleep": _sleep,
    "compute": _compute,
    "loop": _loop,
    "bomb": _bomb,
    "deep": _deep,
    "exit": lambda rest: os._exit(int(rest)),
    "signal": lambda rest: os.kill(os.getpid(), int(rest)),
    "raise": _raise,
    "child": _child,
    "daemons": _daemons,
    "share": _share,
    "children": _children,
    "forks": _forks,
    "killed": _killed,
    "say": _say,
    "send": _send,
    "shout": _shout,
    "where": lambda _: float(os.getpid()),
}


def length(completions):
    """Take nothing else, not even by **kwargs."""
    return [len(text) for text in completions]


async def later(completions, **_):
    await asyncio.sleep(0.01)
    return [len(text) / 10 for text in completions]


class Callable:
    def __call__(self, completions, log_metric, log_extra, trainer_state, **_):
        log_metric("a", 1.0)
        log_extra("b", ["x"] * len(completions))
        return [0.25 if trainer_state is None else 0.0] * len(completions)


an_object = Callable()


def as_numpy(completions, **_):
    return np.array([0.5] * len(completions), dtype=np.float32)


def returns(completions, **_):
    """Return the value of the first completion as a Python expression."""
    return eval(completions[0])


def half(completions, **_):
    return [0.5 if "half" in text else None for text in completions]


not_callable = 3
