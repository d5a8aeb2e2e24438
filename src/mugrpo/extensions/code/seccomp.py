"""The filter of system calls in bubblewrap: what no program of a test needs is refused.

It refuses new processes (threads are allowed), what reaches other processes' memory, other
namespaces, the kernel's interfaces that need no capability, the network, and memory that no limit
counts. What needs a capability, such as mount, bwrap refuses already. It is a program for the
kernel's classic BPF machine (Linux, Documentation/userspace-api/seccomp_filter.rst) on x86_64 and
aarch64.
"""

from __future__ import annotations

import platform
import struct

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
