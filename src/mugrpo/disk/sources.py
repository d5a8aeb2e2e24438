"""Python files of users, loaded by their path."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_file(name: str, file: Path) -> ModuleType:
    """Return the module in `file`, under `name`. Raises whatever running it raises."""
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None and specification.loader is not None, file
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    # Not `exec_module`: it would run a compiled copy beside the file, which may say something else.
    exec(compile(file.read_bytes(), file, "exec"), module.__dict__)
    return module
