"""Settings that are files: written, read back, and put back on every way out."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_joules.errors import EngineError, Unmeasured
from pytest_joules.knobs import _restorer


@contextlib.contextmanager
def held_files(knob: str, wanted: Mapping[Path, str]) -> Iterator[None]:
    """Write each file, check that it took the value, and restore all of them at the end or when this process dies.

    Raises:
        Unmeasured: a file cannot be written here.
        EngineError: a file did not keep the value.
    """
    before = {path: path.read_text() for path in wanted}
    restorer = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            _restorer.__file__,
            json.dumps({str(path): text for path, text in before.items()}),
        ],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for path, text in wanted.items():
            try:
                path.write_text(text)
            except OSError as error:
                raise Unmeasured(f"knob {knob}: {path} cannot be written ({error.strerror}); run as root") from None
            if (kept := path.read_text().strip()) != text:
                raise EngineError(
                    f"knob {knob}: {path} was set to {text} and reads {kept}; the machine does not offer this value"
                )
        yield
    finally:
        for path, text in before.items():
            with contextlib.suppress(OSError):
                path.write_text(text)
        if restorer.stdin is not None:
            with contextlib.suppress(OSError):
                restorer.stdin.write("done\n")
                restorer.stdin.close()
        restorer.wait(timeout=10)
