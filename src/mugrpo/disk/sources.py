"""Python files of others, loaded from their source alone.

What a user approves is the source, with the extension modules beside it. Python would rather run a
compiled copy, if `__pycache__` has one that claims to fit, or a .pyc in place of a module.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType

from mugrpo.disk.publishing import regular

_folders: set[str] = set()


class _Loader(SourceFileLoader):
    """A loader that compiles the source each time."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_file(name: str, file: Path) -> ModuleType:
    """Return the module in `file`, under `name`. Raises whatever running it raises."""
    import_from_source(regular(file).resolve().parent)
    specification = importlib.util.spec_from_file_location(
        name, file, loader=_Loader(name, str(file))
    )
    assert specification is not None and specification.loader is not None, file
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def import_from_source(folder: Path) -> None:
    """Never import a compiled module from `folder` or its packages in this process.

    This does not hold for folders in it that are on `sys.path` themselves, such as an environment.
    """
    if str(folder) not in _folders:
        _folders.add(str(folder))
        if _finder not in sys.path_hooks:
            sys.path_hooks.insert(0, _finder)
        sys.path_importer_cache.clear()  # it holds the finders of before


def _finder(path: str) -> FileFinder:
    """Return a finder for a place on a path, or raise ImportError to leave it to Python's own."""
    places = {*(str(place) or os.getcwd() for place in sys.path), *_folders}
    above = [place for place in places if Path(path).is_relative_to(place)]
    if max(above, key=len, default=None) not in _folders:
        raise ImportError(path)
    return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_Loader, SOURCE_SUFFIXES))
