"""Choose the sandbox: a server if the options name one, else bubblewrap. It must run a program."""

from __future__ import annotations

from contextlib import closing

from mugrpo.disk.errors import UsageError
from mugrpo.extensions.code import CodeOptions
from mugrpo.extensions.code.bubblewrap import Bubblewrap
from mugrpo.extensions.code.fusion import SandboxFusion
from mugrpo.extensions.code.sandbox import TRIAL, Outcome, Sandbox, SandboxError
from mugrpo.rewards.verdict import Unfinished

_STARTING = 60.0  # seconds
REMEDY = (
    "install bubblewrap (apt-get install bubblewrap) where user namespaces are allowed, or name a "
    "SandboxFusion server in the reward's url"
)


def choose(options: CodeOptions) -> Sandbox:
    """Return the sandbox for `options`, which has run a program. Raises UsageError if none works.

    A program never runs outside of one.
    """
    try:
        return _working(options)
    except (SandboxError, Unfinished) as error:
        raise UsageError(
            f"the reward code runs programs in a sandbox only, and it does not work ({error}); "
            f"{REMEDY}"
        ) from None


def check() -> tuple[str, str]:
    """Return what `mugrpo doctor` says of the sandbox, and the remedy if there is none."""
    try:
        return f"{_working(CodeOptions()).name}, for the reward code", ""
    except (SandboxError, Unfinished) as error:
        return f"none ({error})", f"for the reward code, {REMEDY}"


def _working(options: CodeOptions) -> Sandbox:
    sandbox: Sandbox
    if options.url is not None:
        sandbox = SandboxFusion(options.url, options.timeout)
    else:
        sandbox = Bubblewrap(options.timeout)
    with closing(sandbox.run(TRIAL, _STARTING)) as ran:
        told = next(ran, None)
    if told != Outcome(0, "one of the wises\n"):
        raise SandboxError(f"a program that prints a line ended with {told}")
    return sandbox
