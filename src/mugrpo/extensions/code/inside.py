"""The program that runs inside a sandbox. It does the jobs of a request by a response's program.

    python -P -s -S -B -c SOURCE    reads a request from stdin, and forks for each job

A request is {"setup": ..., "program": ..., "jobs": [...], "limits": {...}}. A job is one of

- {"stdin": text}: run the program, and give what it prints;
- {"call": name, "arguments": [...]}: give what the program's function returns;
- {"value": expression}: give the expression's value. GIVEN is what the text "given" of the job,
  if it has one, describes as the output of another job.

The first line that is printed is {"ready": true}. Then comes {"status": ..., "output": ...} for
each job: how its process ended, as `os.waitstatus_to_exitcode` says it, and its output, None if
that is too long. A value is printed as JSON (`encode`).

This file imports only the standard library: another interpreter loads it, without mugrpo.
"""

import builtins
import gc
import io
import json
import os
import symtable
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

LONGEST_OUTPUT = 4 << 20  # bytes of a job's output
GIVEN = "__given__"
FILE = "program.py"  # the program's name in tracebacks

# What solutions use without importing it: on the sites that they were written for, it is there.
_MODULES = (
    *("collections", "typing", "math", "itertools", "functools", "heapq", "bisect", "string"),
    *("re", "random", "sys", "operator", "copy", "datetime", "io", "json", "statistics"),
)
_ALONE = (*_MODULES, "decimal", "fractions", "os", "queue", "time")  # as modules, without names

_ALIKE = 200  # entries of a set with the same hash: making it takes time for each pair of them
LONGEST_INTEGER = 100_000  # digits: reading more takes a second, and Python's own limit is 4,300


def encode(value: Any) -> Any:
    """Return `value` in a form that JSON keeps. Raises TypeError for what no literal can describe.

    Subclasses are taken for their base: a Counter for a dictionary.
    """
    if value is None or isinstance(value, bool | str):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)  # NaN and Infinity are written as such
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [encode(entry) for entry in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(entry) for entry in value]}
    if isinstance(value, set | frozenset):
        return {"set": [encode(entry) for entry in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(entry)] for key, entry in value.items()]}
    raise TypeError(f"a value of type {type(value).__name__} cannot be compared")


def decode(value: Any) -> Any:
    """Return the value that `encode` wrote, each set as a frozenset, which equals it.

    Raises ValueError or TypeError for anything else.
    """
    if isinstance(value, list):
        return [decode(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "complex":
        return complex(*content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "tuple":
        return tuple(map(decode, content))
    if kind == "set":
        return frozenset(_apart(map(decode, content)))
    if kind == "dict":
        keys = _apart(decode(key) for key, _ in content)
        return dict(zip(keys, (decode(entry) for _, entry in content), strict=True))
    raise ValueError(f"no value is of the kind {kind!r}")


def _apart(entries: Iterable[Any]) -> list[Any]:
    listed = list(entries)
    if max(Counter(map(hash, listed)).values(), default=0) > _ALIKE:
        raise ValueError(f"more than {_ALIKE} entries have the same hash")
    return listed


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def perform(request: dict[str, Any], job: dict[str, Any]) -> None:
    """Run the program of a request for one of its jobs. The result goes to descriptor 1."""
    prints = "stdin" in job
    module = ModuleType("__main__" if prints else "program")
    sys.modules[module.__name__] = module
    sys.argv = [FILE]
    names = module.__dict__
    if not prints:
        sys.stdout = _Nowhere()
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # `site` has them, which -S leaves out
    for source in (request["setup"], request["program"]):
        code = compile(source, FILE, "exec", dont_inherit=True)
        names.update(_usual(source, {*names, *vars(builtins)}))
        exec(code, names)
    if prints:
        return
    if "call" in job:
        solution: Any = names.get("Solution")
        own = hasattr(solution, job["call"])
        function = getattr(solution(), job["call"]) if own else names[job["call"]]
        value = function(*job["arguments"])
    else:
        if "given" in job:
            names[GIVEN] = decode(json.loads(job["given"]))
        value = eval(compile(job["value"], FILE, "eval", dont_inherit=True), names)
    _write(1, json.dumps(encode(value)).encode())


def _usual(source: str, known: set[str]) -> dict[str, Any]:
    """Return what the usual imports give `source` of the names that it uses and nothing defines.

    A program that imports or defines all of its names gets nothing, and takes no time for it.
    """
    top = symtable.symtable(source, FILE, "exec")
    used, tables = set(), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        outer = (s for s in table.get_symbols() if table is top or s.is_global())
        used |= {symbol.get_name() for symbol in outer if symbol.is_referenced()}
    defined = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    found = {}
    for name in used - defined - known:
        if name in _ALONE:
            found[name] = import_module(name)
            continue
        for module in map(import_module, _MODULES):
            if name in getattr(module, "__all__", dir(module)) and not name.startswith("_"):
                found[name] = getattr(module, name)
                break
    return found


def serve() -> None:
    """Do the jobs of the request on stdin, each in a process of its own."""
    _say({"ready": True})
    request = json.load(sys.stdin)
    if request["limits"]["filter"] is not None:
        import ctypes  # noqa: F401 (once, before all forks)
    gc.freeze()  # or each fork would copy what it looks at when it ends
    limits = request["limits"]
    sys.set_int_max_str_digits(LONGEST_INTEGER)
    for job in request["jobs"]:
        done = _forked(request, job)
        if done is None:  # in the fork: its interpreter ends as that of any program does
            return
        _say(done)
        _empty(limits["user"])


def _empty(user: int | None) -> None:
    """Remove what a job has left in /tmp, which it could tell the next one by.

    Raises OSError or RecursionError, which end the sandbox, if a job makes that impossible.
    """
    if user is not None:  # root has no rights here to what is the job's own
        os.seteuid(user)
    _remove_below("/tmp")
    if user is not None:
        os.seteuid(0)


def _remove_below(folder: str) -> None:
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _remove_below(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def _forked(request: dict[str, Any], job: dict[str, Any]) -> dict[str, Any] | None:
    """Do `job` in a fork, in /tmp. Return how it ended and its output, or None in the fork."""
    source = _file(job["stdin"]) if "stdin" in job else os.open(os.devnull, os.O_RDONLY)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(source, 0)
        os.dup2(writer, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.closerange(3, 4096)
        os.chdir("/tmp")
        _confine(request["limits"])
        perform(request, job)
        return None
    os.close(source)
    os.close(writer)
    output, status = _watched(pid, reader)
    text = output.decode("utf-8", "replace")
    return {"status": status, "output": text if len(output) <= LONGEST_OUTPUT else None}


def _watched(pid: int, reader: int) -> tuple[bytes, int]:
    """Read what a process prints until it ends or prints too much. Kill all that it started."""
    import select
    import signal

    ended, output = os.pidfd_open(pid), bytearray()
    sources = [reader, ended]
    while len(output) <= LONGEST_OUTPUT:
        ready, _, _ = select.select(sources, [], [])
        if reader in ready:
            piece = os.read(reader, 1 << 16)
            output += piece
            if not piece:  # closed: from now on it would always be ready
                sources.remove(reader)
        elif ended in ready:
            break
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)  # all processes that this one can see are the job's
    _, status = os.waitpid(pid, 0)
    os.close(ended)
    os.close(reader)
    return bytes(output), os.waitstatus_to_exitcode(status)


def _confine(limits: dict[str, Any]) -> None:
    """Limit this process, and all that it starts."""
    import resource

    def limit(which: int, soft: int, hard: int | None = None) -> None:
        resource.setrlimit(which, (soft, soft if hard is None else hard))

    os.setsid()
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_CPU, limits["seconds"], limits["seconds"] + 1)
    limit(resource.RLIMIT_AS, limits["memory"])
    limit(resource.RLIMIT_FSIZE, limits["files"])
    limit(resource.RLIMIT_NOFILE, 64)
    limit(resource.RLIMIT_NPROC, limits["processes"])
    limit(resource.RLIMIT_SIGPENDING, limits["processes"])  # of timers, which the kernel keeps
    if limits["user"] is not None:
        os.setgroups([])
        os.setgid(limits["user"])
        os.setuid(limits["user"])
    if limits["filter"] is not None:
        _filter_calls(bytes.fromhex(limits["filter"]))


def _filter_calls(rules: bytes) -> None:
    """Let the kernel apply `rules` to the system calls of this process from now on."""
    import ctypes
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    kept = ctypes.create_string_buffer(rules, len(rules))
    program = struct.pack("HP", len(rules) // 8, ctypes.addressof(kept))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):  # no new privileges, filter
        raise OSError(ctypes.get_errno(), "the filter of system calls is refused")


def _file(text: str) -> int:
    """Return a descriptor of a file without a name that holds `text`: its size can be asked for."""
    file = os.open("/tmp", os.O_RDWR | os.O_TMPFILE, 0o600)
    _write(file, text.encode("utf-8", "surrogatepass"))
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _say(message: dict[str, Any]) -> None:
    _write(1, json.dumps(message).encode() + b"\n")


def _write(file: int, text: bytes) -> None:
    while text:
        text = text[os.write(file, text) :]


if __name__ == "__main__":
    serve()
