"""The sandbox bubblewrap: namespaces of its own, and limits that the kernel enforces.

Inside there are the machine's /usr and this Python, read-only, an empty /tmp of limited size,
/dev/null, /dev/zero and /dev/urandom. There is no network, no /proc, no other process, no variable
of the environment, and no file of this user.
"""

import ctypes
import os
import platform
import shutil
import struct
import sys
from collections.abc import Generator
from functools import cached_property
from pathlib import Path

from mugrpo.extensions.code.sandbox import INSIDE, Limits, Outcome, Request, SandboxError, outcomes

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
        self._limits = Limits(seconds, user=user, filter=rules.hex() if rules else None)
        self.name = "bubblewrap" if rules else "bubblewrap, without a filter of system calls"

    def run(self, request: Request, patience: float) -> Generator[Outcome, None, None]:
        """Yield the outcomes of a request's jobs, in order, as `outcomes` does."""
        command = [self._program, *self._user, *self._inside, "-c", INSIDE]
        kept = [self._user_namespace] if self._as_root else []
        return outcomes(command, self._limits.text(request), patience, kept)

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


# ---- the filter of system calls ----
#
# It refuses what no program of a test needs: new processes (threads are allowed), what reaches
# other processes' memory, other namespaces, the kernel's interfaces that need no capability, the
# network, and memory that no limit counts. What needs a capability, such as mount, bwrap refuses
# already. It is a program for the kernel's classic BPF machine (Linux,
# Documentation/userspace-api/seccomp_filter.rst) on x86_64 and aarch64.

# System call -> its number on x86_64 and on aarch64.
_REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "msgget": (68, 186),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "shmget": (29, 194),
    "socket": (41, 198),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_FORKS = (57, 58)  # fork and vfork of x86_64, which aarch64 does not have
_CLONE, _CLONE3 = (56, 220), (435, 435)
_THREAD = 0x00010000  # the flag of clone that makes a thread
_SOCKETPAIR = (53, 199)
_UNIX = 1  # the only family of a socketpair that is needed, by asyncio
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
_X32 = 0x40000000  # numbers from here on are those of another interface of x86_64

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in `struct seccomp_data`
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38


def filter_program() -> bytes | None:
    """Return the filter for this machine, or None if its system calls are not known here."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return None
    column = list(_MACHINES).index(machine)

    def otherwise(test: int, value: int, answer: int) -> list[tuple[int, int, int, int]]:
        """Answer if the test holds, otherwise go on."""
        return [(test, 0, 1, value), (_RETURN, 0, 0, answer)]

    steps = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, _MACHINES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *otherwise(_AT_LEAST, _X32, _ERROR | _ENOSYS),
    ]
    refused = [numbers[column] for numbers in _REFUSED.values()]
    for number in [*refused, *(_FORKS if machine == "x86_64" else ())]:
        steps += otherwise(_EQUAL, number, _ERROR | _EPERM)
    # The flags of clone3 are out of reach for a filter. Without it, libc uses clone.
    steps += otherwise(_EQUAL, _CLONE3[column], _ERROR | _ENOSYS)
    for number, test, value in (
        (_CLONE[column], _ANY_BIT, _THREAD),
        (_SOCKETPAIR[column], _EQUAL, _UNIX),
    ):
        steps += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            *otherwise(test, value, _ALLOW),
            (_RETURN, 0, 0, _ERROR | _EPERM),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
