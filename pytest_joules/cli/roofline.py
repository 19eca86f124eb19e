"""`joules roofline`: what a machine could decode at most, what a run reached of it, and how fast this machine's memory is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pytest_joules.cli import app, print_json, text_width, write_files
from pytest_joules.cli.models import Folders, meant, places
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.words import nearest, one_line

if TYPE_CHECKING:
    from pytest_joules.bandwidth import Probe
    from pytest_joules.note.roofs import Model, Told
    from pytest_joules.records import Run
    from pytest_joules.roofline import Load, Sheet

_BATCHES = "1,2,4,8,16,32,64"
_BATCH_DIGITS = 6
_CONTEXT = 1024


@app.command()
def roofline(
    run: Annotated[
        str | None, typer.Argument(help="a run's file or id, a suite's name, or 'latest'; left out, roofs alone")
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="name of a sheet; of a run, the one of its machine", show_default=False)
    ] = None,
    sheet: Annotated[Path | None, typer.Option(help="a file of sheets of your own", show_default=False)] = None,
    model: Annotated[
        str | None, typer.Option(help="a model's name or a .gguf file; of a run, its own", show_default=False)
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="format of the model", show_default=False)] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="tokens each slot holds; of a run, its prompt and half its answer, else 1024",
            show_default=False,
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(help=f"batches without a run, such as {_BATCHES}", show_default=False)
    ] = None,
    peak: Annotated[
        str | None, typer.Option(help="number type of the compute roof, such as fp8; else fp16", show_default=False)
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="measure the bandwidth of this machine's memory")] = False,
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    models: Folders = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="write Markdown and a page with a plot here; with --probe a sheet", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Roofs over tokens per second from a machine's bandwidth and peak, and the share of them that a run reached.

    Every figure stands with its origin, and what a sheet does not state is told as missing. Without a run and a model, the sheets
    there are.

    Examples: joules roofline decode-batch
    joules roofline --model qwen2.5-7b-instruct --format q4_0 --hardware nvidia-h100-sxm --context 4096
    joules roofline --probe -o this-machine.yaml

    Keys of --json: run_id, model, hardware, basis, energy_bases, least_shares, peak, context_tokens, rows, counted, kv_batch,
    batch_floors, slots, missing, remarks; with --probe: bandwidth_gb_s, kernel, kernels, threads, array_mb, cache_mb, cores_others,
    unquiet, file; of the sheets alone: sheets. What is not known is null.
    """
    if out is not None and as_json and not probe:
        raise UsageError("-o and --json exclude each other; ask for one")
    if probe:
        if given := [name for name, value in (("a run", run), ("--model", model), ("--sheet", sheet)) if value]:
            raise UsageError(f"--probe measures this machine alone; leave out {', '.join(given)}")
        _probe(out, as_json)
        return
    from pytest_joules import hardware as sheets
    from pytest_joules.note import roofs

    known = sheets.read(sheet) if sheet else sheets.read()
    if run is None and model is None:
        _list(sheets.named(known, hardware) if hardware else None, known, as_json)
        return
    told, run_id = _told(run, results, known, hardware, model, form, context, batches, peak, models)
    if out is not None:
        _write(told, run_id, out)
    elif as_json:
        print_json({"run_id": run_id or None, **roofs.record(told)})
    else:
        for line in roofs.lines(told, text_width()):
            typer.echo(line)


def _told(
    run: str | None,
    results: Path,
    known: Mapping[str, Sheet],
    hardware: str | None,
    model: str | None,
    form: str | None,
    context: int | None,
    batches: str | None,
    peak: str | None,
    folders: Sequence[Path] | None,
) -> tuple[Told, str]:
    """The roofline that is asked for, and the id of the run it is held against."""
    from pytest_joules import hardware as sheets
    from pytest_joules import roofline as roof
    from pytest_joules import store
    from pytest_joules.note import roofs

    about: list[str] = []
    remarks: list[str] = []
    if run is None:
        sheet = sheets.named(known, hardware) if hardware else _only(known, "--hardware names the one")
        load = _load(str(model), form, folders)
        depth = _CONTEXT if context is None else context
        points = [roof.Point(batch=n, depth_tokens=depth, cache_type="f16") for n in _batches(batches or _BATCHES)]
        reserved, run_id = depth or _CONTEXT, ""
    else:
        if batches:
            raise UsageError("--batches is for roofs without a run; a run has its own")
        measured = store.Store(results).find(run).run
        run_id = measured.run_id
        sheet = sheets.named(known, hardware) if hardware else _of_run(known, measured)
        which = _chosen(measured, model, form)
        load = _load(model, form, folders) if model and model.endswith(".gguf") else _load(*which, folders)
        points = roofs.points_of(measured, which, context)
        reserved = context or measured.suite.get("server", {}).get("context_per_slot") or _CONTEXT
        about.append(_about(measured))
        remarks += _of_the_run(measured, which, sheet, load, context)
    found = roof.roofline(load, sheet, points, reserved, peak and peak.lower())
    found = dataclasses.replace(found, remarks=(*remarks, *found.remarks))
    return roofs.Told(title=f"Roofs of {load.name} on {sheet.name}", about=tuple(about), found=found), run_id


def _only(known: Mapping[str, Sheet], otherwise: str) -> Sheet:
    if len(known) != 1:
        raise UsageError(f"there are sheets of {', '.join(known)}; {otherwise}")
    return next(iter(known.values()))


def _of_run(known: Mapping[str, Sheet], run: Run) -> Sheet:
    """The sheet of a run's machine, or the only one of a file of the person's own."""
    from pytest_joules import hardware as sheets

    part = sheets.decoded_on(run)
    if found := next((sheet for sheet in known.values() if sheets.is_of(sheet, part)), None):
        return found
    return _only(
        known,
        f"none of them is of {part}, on which {run.run_id} was measured: name one with --hardware, or one of your own with --sheet; "
        "'joules roofline --probe -o FILE.yaml' measures the bandwidth there and writes one",
    )


def _chosen(run: Run, model: str | None, form: str | None) -> Model:
    """Which of a run's models is meant."""
    from pytest_joules.note.roofs import model_of

    there = list(dict.fromkeys(model_of(run, condition) for condition in run.conditions))
    wanted = None if model is None or model.endswith(".gguf") else model
    fitting = [one for one in there if wanted in (None, one[0]) and form in (None, one[1])]
    named = "; ".join(f"--model {name} --format {of}" if of else f"--model {name}" for name, of in there)
    if not fitting:
        raise UsageError(
            f"run {run.run_id} has no {wanted or 'model'} {form or ''}".rstrip()
            + f"{nearest(wanted, [name for name, _ in there]) if wanted else ''}; it has {named}"
        )
    if len(fitting) > 1:
        raise UsageError(f"run {run.run_id} has several models, and a roof is of one; choose: {named}")
    return fitting[0]


def _load(model: str, form: str | None, folders: Sequence[Path] | None) -> Load:
    """What a step of a model reads: counted in its file where that is here, else worked out from its shape.

    Raises:
        UsageError: neither its file nor its shape is known, or nothing can be said of its format.
    """
    from gguf.constants import GGML_QUANT_SIZES

    from pytest_joules import roofline as roof
    from pytest_joules.models import anatomy

    _, known = places(folders)
    try:
        return roof.of_file(anatomy.read(meant(model, form, folders)))
    except Unmeasured as error:
        entry = known.models.get(model)
        if (entry is None or entry.shape is None) and model not in known.shapes:
            raise UsageError(one_line(str(error), 1000)) from None
    if form is None:
        raise UsageError(f"--model {model}: its file is not here; state its format with --format, such as q4_0")
    sizes = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}
    return roof.of_shape(model, known.shape(model), form.lower(), sizes, anatomy.KV_BYTES)


def _batches(text: str) -> list[int]:
    found = [part.strip() for part in text.split(",")]
    if wrong := [part for part in found if not re.fullmatch(r"[1-9]\d*", part)]:
        raise UsageError(f"--batches {text}: {wrong[0]!r} is no number of slots; write them as in {_BATCHES}")
    if large := [part for part in found if len(part) > _BATCH_DIGITS]:
        raise UsageError(
            f"--batches {text}: {large[0]} slots are more than the {10**_BATCH_DIGITS - 1:,} that are looked at"
        )
    return sorted({int(part) for part in found})


def _about(run: Run) -> str:
    basis = (
        "transcribed"
        if run.published
        else "synthetic: random weights"
        if run.meter.basis == "synthetic"
        else "measured"
    )
    return f"Against run {run.run_id} of {run.suite_name} on {run.machine_slug} (speed: {basis})"


def _of_the_run(run: Run, which: Model, sheet: Sheet, load: Load, context: int | None) -> list[str]:
    """What speaks against holding a run against this sheet and these weights."""
    from pytest_joules.hardware import decoded_on, is_of

    said = []
    if not is_of(sheet, decoded_on(run)):
        said.append(
            f"the run was measured on {decoded_on(run)}, and the sheet is of {', '.join(sheet.chips) or sheet.name}"
        )
    if run.published and context is None:
        said.append(
            "how long the prompts were was not published: they are counted as none, and each slot holds half its answer; "
            "--context states another figure"
        )
    size = next((m.get("size_bytes") for m in run.models if (m["name"], m.get("format")) == which), None)
    if load.basis == "measured" and size and not 0 <= size - load.weight_bytes < 0.2 * size:
        said.append(
            f"the run's model file has {size:,} bytes, and {load.name} has {load.weight_bytes:,} bytes of weights"
        )
    return said


# sheets ---------------------------------------------------------------------------------------------------------------


def _list(one: Sheet | None, known: Mapping[str, Sheet], as_json: bool) -> None:
    """The sheets there are, or all figures of one."""
    from pytest_joules.note.lines import wrapped
    from pytest_joules.note.roofs import sheet_rows

    shown = [one] if one else list(known.values())
    if as_json:
        print_json({"sheets": [dataclasses.asdict(sheet) for sheet in shown]})
        return
    width = text_width()
    for sheet in shown:
        typer.echo(sheet.name)
        for name, value, basis, source in sheet_rows(sheet):
            for line in wrapped(f"  {name:<22} {value:>6}  {basis}: {source}", width, " " * 10):
                typer.echo(line)
        for remark in sheet.remarks:
            for line in wrapped(f"  {remark}", width, "  "):
                typer.echo(line)
    typer.echo("next: joules roofline SUITE, or --model NAME --format FORMAT --hardware SHEET")


def _probe(out: Path | None, as_json: bool) -> None:
    from pytest_joules import bandwidth, hardware
    from pytest_joules.note.lines import wrapped
    from pytest_joules.protocol.lock import machine_lock

    path = None if out is None else _sheet_path(out)
    with machine_lock("joules roofline --probe"):
        found = bandwidth.probe()
    if path is not None:
        write_files(path.parent, {path.name: hardware.dumped(_own_sheet(found))})
    if as_json:
        print_json(_probed(found) | {"file": str(path) if path else None})
        return
    for line in _told_of(found):
        for row in wrapped(line, text_width(), "    "):
            typer.echo(row)
    if path is not None:
        typer.echo(f"{path}: hold a run against it with 'joules roofline SUITE --sheet {path}'")


def _told_of(found: Probe) -> Iterator[str]:
    for kernel in found.kernels:
        yield (
            f"{kernel.name:<5} {kernel.best_gb_s:7.1f} GB/s  best of {len(kernel.gb_s)}, median {kernel.median_gb_s:.1f}, "
            f"spread {kernel.spread:.0%}: {kernel.what}"
        )
    at_least = "at least " if found.unquiet else ""
    yield f"bandwidth: {at_least}{found.best.best_gb_s:.1f} GB/s, measured ({found.best.name})"
    cache = "unknown" if found.cache_mb is None else f"{found.cache_mb:.3g} MB"
    yield f"{found.threads} threads, arrays of {found.array_mb:.0f} MB each, last-level cache {cache}"
    yield (
        "Bytes as the program reads and writes them; lines that are read before they are overwritten come on top, up to half as "
        "much in copy and a third in add. It is the processor's memory: a graphics card's own is not measured."
    )
    if found.unquiet:
        yield f"not of an idle machine: {found.unquiet}; probe again when it is"


def _probed(found: Probe) -> dict[str, Any]:
    return {
        "bandwidth_gb_s": found.best.best_gb_s,
        "kernel": found.best.name,
        "kernels": [
            {"name": k.name, "best_gb_s": k.best_gb_s, "median_gb_s": k.median_gb_s, "spread": k.spread, "gb_s": list(k.gb_s)}
            for k in found.kernels
        ],
        "threads": found.threads,
        "array_mb": found.array_mb,
        "cache_mb": found.cache_mb,
        "cores_others": found.cores_others,
        "unquiet": found.unquiet or None,
    }  # fmt: skip


def _own_sheet(found: Probe) -> Sheet:
    """This machine's sheet, as far as it can be measured."""
    import psutil

    from pytest_joules import machine
    from pytest_joules.roofline import Quantity, Sheet

    this = machine.describe()
    best = found.best
    source = (
        f"joules roofline --probe: {best.name}, best of {len(best.gb_s)} with {found.threads} threads and arrays of {found.array_mb:.0f} MB, "
        f"spread {best.spread:.0%}"
    )
    return Sheet(
        name=this.slug,
        chips=(this.chip,),
        bandwidth_gb_s=Quantity(value=round(best.best_gb_s, 1), basis="measured", source=source),
        memory_gb=Quantity(
            value=round(psutil.virtual_memory().total / 1e9, 1), basis="measured", source="as the system counts it"
        ),
        cache_mb=None
        if found.cache_mb is None
        else Quantity(
            value=round(found.cache_mb, 1),
            basis="published",
            source="as the system states it" + (", which a virtual machine shows" if this.virtual else ""),
        ),
        absent={
            "peak_tflop_s": "the probe measures none; state the maker's dense figure, or one measured, by number type",
            "idle_w": "the probe measures none; 'joules measure --seconds 60' on the idle machine does",
            "limit_w": "the probe measures none; state what the maker or the firmware says",
        },
        remarks=(f"the bandwidth is not of an idle machine: {found.unquiet}",) if found.unquiet else (),
    )


def _sheet_path(out: Path) -> Path:
    from pytest_joules import machine

    path = out if out.suffix in (".yaml", ".yml") else out / f"{machine.describe().slug}.yaml"
    if path.exists():
        raise UsageError(f"{path} is there already; remove it, or name another file with -o")
    return path


def _write(told: Told, run_id: str, out: Path) -> None:
    """The Markdown with its plot beside it, and the page."""
    from pytest_joules.note import roofs

    words = run_id or f"{told.found.load.name}-{told.found.sheet.name}"
    name = f"roofline-{re.sub(r'[^A-Za-z0-9._-]+', '-', words)}"
    drawn = roofs.plot(told)
    page = roofs.page(told, drawn)
    texts = {f"{name}.svg": drawn.standalone} if drawn else {}
    texts |= {f"{name}.md": roofs.as_markdown(told, f"{name}.svg" if drawn else ""), f"{name}.html": page}
    write_files(out, texts)
