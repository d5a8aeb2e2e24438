"""Let trees of mugrpo take turns on one GPU, each in a process of its own.

A side is a name, the tree whose mugrpo it runs, and what its process is told. Only one process
computes at a time; the others keep their models. A side that fails is left out, with a sentence.
"""

import json
import os
import select
import subprocess
import sys
import traceback
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from side_by_side import ROOT, Measured, alternate, parser

# Where trees are. NEW is this checkout; OLD is a folder with the `src` of an earlier commit.
NEW, OLD = "new", "old"


class Process:
    """A process that runs `card.NAME` with the mugrpo of `tree`, and answers requests in JSON."""

    def __init__(self, module: str, tree: Path) -> None:
        path = [str(tree / "src"), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
            cwd=tree,
        )

    def ask(self, limit: float = 200, **request: Any) -> dict[str, Any]:
        """Return the answer to a request. Raises RuntimeError if it fails or takes too long."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("its process is gone") from None
        if not select.select([self._process.stdout], [], [], limit)[0]:
            self.close()
            raise RuntimeError(f"no answer in {limit:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"its process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def serve(handle: Callable[..., Mapping[str, Any]]) -> None:
    """Answer requests on stdin until it ends. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer: Mapping[str, Any] = handle(**json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        print(json.dumps(answer), file=answers, flush=True)


def trees_parser(description: str) -> ArgumentParser:
    """Return a parser of the options of a part that compares trees."""
    cli = parser(description, repetitions=2, output="folder for the JSON files")
    cli.add_argument("--old", type=Path, help="folder with the src of an earlier commit")
    return cli


@contextmanager
def processes(module: str, options: Any, trees: Sequence[str]) -> Iterator[dict[str, Process]]:
    """Yield a process for each of `trees` that there is."""
    folders = {NEW: ROOT, OLD: options.old and options.old.absolute()}
    started = {tree: Process(module, folders[tree]) for tree in trees if folders[tree]}
    try:
        yield started
    finally:
        for process in started.values():
            process.close()


def in_turn(
    sides: Mapping[str, Callable[..., Measured]], repetitions: int
) -> dict[str, list[Measured]]:
    """Warm each side up with repetition -1, then measure those that work, see `alternate`.

    If one fails later, what was measured of all is left out.
    """
    works = {}
    for name, side in sides.items():
        try:
            side(-1)
        except RuntimeError as error:
            print(f"{name} is left out: {error}", flush=True)
        else:
            works[name] = side
    try:
        return alternate(works, repetitions, lambda line: print(line, flush=True))
    except RuntimeError as error:
        print(f"{', '.join(works)} are left out: {error}", flush=True)
        return {}
