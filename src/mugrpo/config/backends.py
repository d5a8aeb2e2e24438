"""Where the processes of a run are started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mugrpo.config.base import BackendOptions
from mugrpo.config.extensions import one_of
from mugrpo.config.options import HARMLESS


class LocalBackend(BackendOptions):
    """This process, on this machine."""

    name: Literal["local"] = Field("local", json_schema_extra=HARMLESS)


if TYPE_CHECKING:
    Backend = BackendOptions
else:
    Backend = one_of("backends", LocalBackend)
