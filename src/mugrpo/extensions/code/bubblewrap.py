"""The sandbox bubblewrap: namespaces of its own, and limits that the kernel enforces.

Inside there are the machine's /usr and this Python, read-only, an empty /tmp of limited size,
/dev/null, /dev/zero and /dev/urandom. There is no network, no /proc, no other process, no variable
of the environment, and no file of this user.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from functools import cached_property
from pathlib import Path

from mugrpo.extensions.code.sandbox import INSIDE, Limits, Outcomes, Request, SandboxError, outcomes
from mugrpo.extensions.code.seccomp import filter_program

_NOBODY = 65534
_NEW_USER = 0x10000000  # CLONE_NEWUSER
_TEMPORARY = 64 << 20  # bytes of /tmp
_SYSTEM = ("/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/nix/store")  # where they exist
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")


class Bubblewrap:
    """Runs programs by bwrap. Raises SandboxError if it is not installed."""

    def __init__(self, seconds: int) -> None:
        program = shutil.which("bwrap") if sys.platform == "linux" else None
        if program is None:
            raise SandboxError("bwrap is not installed")
        self._program = program
        self._as_root = os.geteuid() == 0
        user, rules = _NOBODY if self._as_root else None, filter_program()
        self._limits = Limits(seconds, alone=True, user=user, filter=rules.hex() if rules else None)
        self.name = "bubblewrap" if rules else "bubblewrap, without a filter of system calls"

    def run(self, request: Request, patience: float) -> Outcomes:
        """Yield outcomes as `Sandbox.run` does."""
        command = [self._program, *self._user, *self._inside, "-c", INSIDE]
        kept = [self._user_namespace] if self._as_root else []
        yield from outcomes(command, self._limits.text(request), patience, descriptors=kept)

    @cached_property
    def _user(self) -> list[str]:
        """Return bwrap's user-namespace arguments (uid and gid map)."""
        nobody = str(_NOBODY)
        if not self._as_root:
            return ["--unshare-user", "--uid", nobody, "--gid", nobody]
        words = ["--userns", str(self._user_namespace), "--cap-drop", "ALL"]
        for capability in ("SETUID", "SETGID", "KILL"):  # a job has none of them
            words += ["--cap-add", f"CAP_{capability}"]
        return words

    @cached_property
    def _inside(self) -> list[str]:
        """Return the arguments that make the inside, and the Python in it."""
        words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        words += ["--unshare-cgroup-try", "--hostname", "none", "--new-session"]
        # The first process inside is `inside`: no signal from its jobs ends or stops it.
        words += ["--die-with-parent", "--as-pid-1"]
        words += ["--ro-bind", "/usr", "/usr"]
        for place in _SYSTEM:
            words += ["--ro-bind-try", place, place]
        home, python = _python()
        if Path("/usr") not in home.parents and home != Path("/usr"):
            for folder in list(reversed(home.parents))[1:]:  # they would be closed to other users
                words += ["--perms", "0755", "--dir", str(folder)]
            words += ["--ro-bind", str(home), str(home)]
        words += ["--perms", "0755", "--dir", "/dev"]
        for device in _DEVICES:
            words += ["--dev-bind", device, device]
        words += ["--perms", "1777", "--size", str(_TEMPORARY), "--tmpfs", "/tmp"]
        words += ["--remount-ro", "/", "--chdir", "/tmp"]
        return [*words, str(python), "-P", "-s", "-S", "-B", "-X", "utf8"]

    @cached_property
    def _user_namespace(self) -> int:
        """Return a descriptor of a new user namespace in which root and nobody exist.

        bwrap alone gives root a namespace in which everyone is root, whose processes the kernel
        does not count. Raises SandboxError if this process may not make one.
        """
        made, told = os.pipe()
        waited, done = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                failed = ctypes.CDLL(None).unshare(_NEW_USER)
                os.write(told, b"n" if failed else b"y")
                os.close(done)
                os.read(waited, 1)
            finally:
                os._exit(0)
        os.close(told)
        try:
            if os.read(made, 1) != b"y":
                raise SandboxError("this process may not make a user namespace")
            for which in ("uid_map", "gid_map"):
                Path(f"/proc/{pid}/{which}").write_text(f"0 0 1\n{_NOBODY} {_NOBODY} 1\n")
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
        except OSError as error:
            raise SandboxError(f"this process may not make a user namespace: {error}") from None
        finally:
            for descriptor in (made, waited, done):
                os.close(descriptor)
            os.waitpid(pid, 0)


def _python() -> tuple[Path, Path]:
    """Return the folder that the running Python is installed in, and its program there."""
    home = Path(sys.base_prefix).resolve()
    own = Path(sys.executable).resolve()
    if home in own.parents:
        return home, own
    return home, home / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
