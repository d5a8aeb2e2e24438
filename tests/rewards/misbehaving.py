"""Reward functions for tests. `obeys` does what each completion says:

5             returns 5
sleep 0.3 5   returns 5 after 0.3 s
compute 0.3 5 returns 5 after 0.3 s of CPU time
loop          computes for a minute
bomb          takes memory up to 2 GB
deep          calls itself 100,000 times
exit 3        ends the process
signal 11     ends it by a signal
raise boom    ValueError("boom")
child FILE    starts a process, writes the ids of both to FILE, and computes for about a minute
              without releasing the interpreter's lock
killed FILE   ends by SIGKILL unless FILE exists, which it creates; then returns 1
where         returns the process id

Each ends by itself, should the limit that it is to run into fail.
"""

import asyncio
import itertools
import os
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


def _bomb(_):
    hoard = [bytearray(1 << 24) for _ in range(128)]
    return float(len(hoard))


def _deep(_, calls=100_000):
    return _deep(_, calls - 1) if calls else 0.0


def _raise(rest):
    raise ValueError(rest)


def _child(rest):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(rest).write_text(f"{os.getpid()} {child.pid}")
    return float(sum(itertools.repeat(1, 3_000_000_000)))


def _killed(rest):
    if not Path(rest).exists():
        Path(rest).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


ACTS = {
    "sleep": _sleep,
    "compute": _compute,
    "loop": lambda _: _compute("60 0"),
    "bomb": _bomb,
    "deep": _deep,
    "exit": lambda rest: os._exit(int(rest)),
    "signal": lambda rest: os.kill(os.getpid(), int(rest)),
    "raise": _raise,
    "child": _child,
    "killed": _killed,
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
