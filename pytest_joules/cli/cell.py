"""`joules cell`: from measured modules to a cell and a row, and what they do under load."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pytest_joules.cli import app, print_json, text_width, write_files
from pytest_joules.errors import UsageError

if TYPE_CHECKING:
    from pytest_joules.cell import Cell, Sheet
    from pytest_joules.cellfile import LoadAsked
    from pytest_joules.note.cellsheet import UnderLoad
    from pytest_joules.queueing import Policy

_PLOTTED_SHARES = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)
"""Of the capacity: what a page shows beside the loads that were asked for, so that its plots have a shape."""


@app.command()
def cell(
    file: Annotated[Path, typer.Argument(help="cell file (YAML)")],
    load: Annotated[
        list[str] | None,
        typer.Option(help="requests per second, or 50% of what the cell can serve; repeat it", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="instead: a CSV file with time_s, prompt_tokens and answer_tokens of each request", show_default=False
        ),
    ] = None,
    answers: Annotated[float | None, typer.Option(help="tokens of an answer", show_default="file's, or 128")] = None,
    prompts: Annotated[float | None, typer.Option(help="tokens of a prompt", show_default="file's")] = None,
    lengths: Annotated[
        str | None, typer.Option(help="fixed, or exponential: of the answers", show_default="file's, or fixed")
    ] = None,
    placing: Annotated[str | None, typer.Option(help="spread or fill-first", show_default="file's, or spread")] = None,
    cap: Annotated[int | None, typer.Option(help="most requests on a module", show_default="its slots")] = None,
    batching: Annotated[
        str | None, typer.Option(help="continuous or static", show_default="file's, or continuous")
    ] = None,
    requests: Annotated[int | None, typer.Option(help="how many are counted", show_default="file's, or 20000")] = None,
    seed: Annotated[int | None, typer.Option(help="of arrivals and lengths", show_default="file's, or 1")] = None,
    results: Annotated[Path, typer.Option(help="folder of the results")] = Path("results"),
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="write Markdown and one HTML page with plots here", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Compose a cell and a row from modules, each figure with its basis, and simulate them under load.

    What nobody has measured stays a placeholder: a total that needs it is a range or has no value, and says what is missing.

    Example: joules cell cells/six-decode-one-prefill.yaml --load 50% --load 14

    With --json the keys are name, parts (title and rows: key, quantity, unit, low, high, basis, sources, needs), remarks and load
    (what was simulated, and points: requests_per_s, basis, of_capacity, power and energy, and the outcome at the fast and the slow end).
    """
    from pytest_joules import cellfile, store
    from pytest_joules.cell import compose, serve
    from pytest_joules.note import cellsheet
    from pytest_joules.queueing import Policy

    under: UnderLoad | None
    if out is not None and as_json:
        raise UsageError("-o and --json exclude each other; ask for one")
    if trace is not None and (load or any(one is not None for one in (answers, prompts, lengths, requests, seed))):
        raise UsageError(
            "--trace says when requests come and how long they are; leave out --load, --answers and the like"
        )
    found, stated = cellfile.load(file, store.Store(results))
    given = {
        "answer_tokens": answers, "prompt_tokens": prompts, "answer_lengths": lengths, "placing": placing, "cap": cap,
        "batching": batching, "requests": requests, "seed": seed,
    }  # fmt: skip
    asked = cellfile.with_options(stated, {key: value for key, value in given.items() if value is not None})
    sheet = compose(found)
    policy = Policy(placing=asked.placing, cap=asked.cap, batching=asked.batching)
    if trace is not None:
        arrivals, prompts_known = cellfile.trace(trace, prompts=bool(found.prefill))
        point = serve(found, arrivals, policy)
        under = cellsheet.UnderLoad(load=arrivals, policy=policy, points=(point,), prompts_known=prompts_known)
    else:
        under = _simulated(found, asked, policy, load, more=out is not None)
    if out is not None:
        _write(sheet, under, file.stem, out)
    elif as_json:
        print_json(cellsheet.record(sheet, under))
    else:
        for line in cellsheet.lines(sheet, under, text_width()):
            typer.echo(line)


def _simulated(
    found: Cell, asked: LoadAsked, policy: Policy, loads: Sequence[str] | None, *, more: bool
) -> UnderLoad | None:
    from pytest_joules import queueing
    from pytest_joules.cell import plant, serve
    from pytest_joules.note.cellsheet import UnderLoad

    if not loads and not asked.requests_per_s:
        return None
    slow, _, _ = plant(found, "slow")
    if found.prefill and asked.prompt_tokens is None:
        raise UsageError(
            f"{found.name}: there are prefill modules, and how long a prompt is is not known; "
            "give --prompts, or load.prompt_tokens in the file (0: there is nothing to read)"
        )
    prompt_tokens = asked.prompt_tokens or 0.0
    capacity = queueing.capacity_requests_per_s(slow, policy, prompt_tokens, asked.answer_tokens)
    rates = {_rate(text, capacity) for text in loads} if loads else set(asked.requests_per_s)
    drawn = set()
    if more and len(rates) < len(_PLOTTED_SHARES):
        drawn = {_rate(f"{share:.0%}", capacity) for share in _PLOTTED_SHARES} - rates

    def at(requests_per_s: float) -> queueing.Load:
        return queueing.Load(
            requests_per_s=requests_per_s, answer_tokens=asked.answer_tokens, prompt_tokens=prompt_tokens,
            answer_lengths=asked.answer_lengths, requests=asked.requests, seed=asked.seed,
        )  # fmt: skip

    return UnderLoad(
        load=at(min(rates)),
        policy=policy,
        points=tuple(serve(found, at(rate), policy) for rate in sorted(rates)),
        drawn=tuple(serve(found, at(rate), policy) for rate in sorted(drawn)),
        prompts_known=asked.prompt_tokens is not None,
        share_of=capacity if any("%" in text for text in loads or ()) else None,
    )


def _rate(text: str, capacity: float) -> float:
    """Requests per second of `2.5` or `1e3`, or of `50%` of the capacity, which is then rounded to what can be read.

    Raises:
        UsageError: it is neither.
    """
    matched = re.fullmatch(r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)(%?)", text.strip(), re.IGNORECASE)
    if matched is None or not 0 < float(matched[1]) < math.inf:
        raise UsageError(
            f"--load {text}: expected requests per second, such as 2.5, or a share of the capacity, such as 50%"
        )
    number = float(matched[1])
    return float(f"{capacity * number / 100:.3g}") if matched[2] else number


def _write(sheet: Sheet, under: UnderLoad | None, name: str, out: Path) -> None:
    """The Markdown with its plots in a folder beside it, and the page. Raises `UsageError` when they cannot be written."""
    from pytest_joules.note import cellsheet

    name = f"cell-{name}"
    drawn = cellsheet.figures(under) if under else []
    texts = {f"{name}/{figure.name}.svg": figure.standalone for figure in drawn}
    texts |= {
        f"{name}.md": cellsheet.markdown(sheet, under, drawn, name),
        f"{name}.html": cellsheet.page(sheet, under, drawn),
    }
    write_files(out, texts)
