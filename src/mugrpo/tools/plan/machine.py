"""Machines: what they can do each second, each number with its source. Small TOML files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from mugrpo.config.load import read_toml, validated
from mugrpo.config.options import Options
from mugrpo.disk.errors import UsageError

_FOLDER = Path(__file__).with_name("machines")
_PEAK, _SHARE, _SECONDS = Field(gt=0), Field(gt=0, le=1), Field(ge=0)


class Rates(Options):
    """The most that a device can do each second: operations, or bytes."""

    fp32: float = _PEAK
    """Operations in fp32. A multiplication and an addition are two."""
    bf16: float = _PEAK
    """Operations in bf16."""
    memory: float = _PEAK
    """Bytes of the device's memory."""
    link: float = _PEAK
    """Bytes that a device sends to the others of its machine."""
    network: float = _PEAK
    """Bytes that a device sends to other machines."""
    disk: float = _PEAK
    """Bytes that the whole machine writes to disk, or reads."""
    checksum: float = _PEAK
    """Bytes that one process gets the SHA-256 of."""


class Shares(Options):
    """The share of a rate that programs reach."""

    decode: float = _SHARE
    """Of operations, in decode steps and prefill."""
    update: float = _SHARE
    """Of operations, in forward and backward passes of an update."""
    memory: float = _SHARE
    """Of memory's bytes."""
    link: float = _SHARE
    """Of link's and network's bytes."""


class Overheads(Options):
    """Seconds that no rate explains."""

    step: float = _SECONDS
    """Of each decode step."""
    sequence: float = _SECONDS
    """Of each sequence in a decode step."""
    request: float = _SECONDS
    """Of each request: its prompt's prefill, and what begins and ends it."""
    micro_batch: float = _SECONDS
    """Of each micro-batch of an update."""
    update: float = _SECONDS
    """Of each update."""
    refresh: float = _SECONDS
    """Of each refresh: sleeping, waking, the canary."""
    start: float = _SECONDS
    """Of the start of an engine outside the trainer's process, once in a run."""
    score: float = _SECONDS
    """Of each response that is judged."""


class Machine(Options):
    """A machine with equal devices (GPUs, or one CPU), or several such machines."""

    name: str
    kind: Literal["gpu", "cpu"]
    devices: int = Field(ge=1)
    """Devices in all."""
    per_machine: int = Field(ge=1)
    """Devices of one machine, which `link` connects."""
    memory_gib: float = _PEAK
    """Memory of a device. A CPU's is the host's."""
    host_gib: float = _PEAK
    """Memory of a machine's host."""
    rates: Rates
    shares: Shares
    overheads: Overheads
    sources: dict[str, str]
    """Where each number is from, by its dotted name, or by the name of its table."""

    @model_validator(mode="after")
    def _every_number_has_a_source(self) -> Self:
        tables = {"rates": Rates, "shares": Shares, "overheads": Overheads}
        names = [f"{table}.{name}" for table, group in tables.items() for name in group.model_fields]
        for name in (*names, "memory_gib", "host_gib"):
            if not (self.sources.get(name) or self.sources.get(name.partition(".")[0])):
                raise ValueError(f"{name} has no source; add one under [sources]")
        return self

    @property
    def usable(self) -> float:
        """Return the bytes of a device that a program can use: nine tenths."""
        return 0.9 * self.memory_gib * 2**30

    def operations(self, precision: str) -> float:
        """Return a device's operations each second in "fp32" or "bf16"."""
        return self.rates.bf16 if precision == "bf16" else self.rates.fp32

    def with_devices(self, devices: int) -> Machine:
        """Return the machine with another number of devices."""
        return self.model_copy(update={"devices": devices})


def names() -> list[str]:
    """Return the names of the machines that the package knows."""
    return sorted(file.stem for file in _FOLDER.glob("*.toml"))


def load_machine(name: str) -> Machine:
    """Return the machine of a name or of a TOML file.

    A name that begins with a number and an x, as in 64xH200, is the known machine with the same
    devices (8xH200), with that number of them. Raises UsageError if there is no such machine, or a
    number or its source is missing.
    """
    if name.endswith(".toml"):
        return validated(Machine, read_toml(Path(name)), name)
    if name in names():
        return validated(Machine, read_toml(_FOLDER / f"{name}.toml"), name)
    count, _, device = name.partition("x")
    for known in names():
        if count.isdigit() and int(count) and known.partition("x")[2] == device != "":
            return load_machine(known).with_devices(int(count))
    raise UsageError(
        f"--machine {name}: there is no such machine; choose among {', '.join(names())} (with any "
        "number before the x), name a TOML file of your own, or measure this machine with --measure"
    )
