"""Choose a sandbox: try each kind with a small program, and take the first that runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.code import CodeOptions
from mugrpo.extensions.code.bubblewrap import Bubblewrap
from mugrpo.extensions.code.fusion import SandboxFusion
from mugrpo.extensions.code.sandbox import TRIAL, Outcome, Sandbox, SandboxError
from mugrpo.extensions.code.wasm import Wasm
from mugrpo.rewards.verdict import Unfinished

_STARTING = 100.0  # seconds, in which wasmtime may compile Python
WAY_OUT = (
    "install bubblewrap (apt-get install bubblewrap) where user namespaces are allowed, "
    "pip install 'mugrpo[wasm]', or name a SandboxFusion server in the reward's url"
)


def choose(options: CodeOptions) -> Sandbox:
    """Return the sandbox that `options` name, or the first one that works.

    Raises UsageError, with the reason for each, if none does.
    """
    found = tried(options)
    if isinstance(found, list):
        raise UsageError(
            "the reward code runs programs in a sandbox only, and none works here "
            f"({'; '.join(found)}); {WAY_OUT}"
        )
    return found


def tried(options: CodeOptions) -> Sandbox | list[str]:
    """Return the first sandbox of `options` that works, or why each of them does not."""
    reasons = []
    for name, make in _MAKERS.items():
        if options.sandbox in ("auto", name):
            try:
                return _working(make(options))
            except (SandboxError, Unfinished) as error:
                reasons.append(f"{name}: {error}")
    return reasons


def check() -> tuple[str, str]:
    """Return what `mugrpo doctor` says of sandboxes, and the remedy if there is none."""
    found = tried(CodeOptions())
    if isinstance(found, list):
        return f"none ({'; '.join(found)})", f"for the reward code, {WAY_OUT}"
    return f"{found.name}, for the reward code", ""


def _bubblewrap(options: CodeOptions) -> Sandbox:
    return Bubblewrap(options.timeout, options.memory_mb << 20)


def _wasm(options: CodeOptions) -> Sandbox:
    module = Path(options.wasm) if options.wasm else None
    return Wasm(module, options.timeout, options.memory_mb << 20)


def _fusion(options: CodeOptions) -> Sandbox:
    if options.url is None:
        raise SandboxError("no url is named")
    return SandboxFusion(options.url, options.timeout, options.memory_mb << 20)


_MAKERS: dict[str, Callable[[CodeOptions], Sandbox]] = {
    "bubblewrap": _bubblewrap,
    "wasm": _wasm,
    "sandboxfusion": _fusion,
}


def _working(sandbox: Sandbox) -> Sandbox:
    """Return a sandbox that has run a program. Raises SandboxError or Unfinished if it cannot."""
    with closing(sandbox.run(TRIAL, _STARTING)) as ran:
        told = next(ran, None)
    if told != Outcome(0, "one of the wises\n"):
        raise SandboxError(f"a program that prints a line ended with {told}")
    return sandbox
