"""A cell file: YAML read into a `cell.Cell`, every error with file, line and key; figures of runs are looked up in the results.

A figure that comes from a run has the run's basis, and the file can only make it worse.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pytest_joules.cell import Cell, Curve, Does, Link, Modules, Overhead, Per, Quantity, exactly, ratio, unknown
from pytest_joules.errors import Unmeasured, UsageError, Void
from pytest_joules.metrics import METRICS
from pytest_joules.queueing import Batching, Lengths, Placing, Trace
from pytest_joules.records import Basis, Condition, Run, Scope, model_text
from pytest_joules.store import Store
from pytest_joules.suite import Document, Name, Positive, read
from pytest_joules.sweep import Cell as Conditioned
from pytest_joules.sweep import Sweep, from_run, label
from pytest_joules.words import nearest, one_line

MOST_REQUESTS = 2_000_000
"""More do not fit into the memory of a usual machine."""

Covered = Literal["host", "supplies", "fans", "idle"]
_EXPECTED: tuple[Covered, ...] = get_args(Covered)
"""What is between the chips and the wall of every machine."""

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_NotNegative = Annotated[float, Field(ge=0)]
_AboveZero = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure that is stated, with what it stands on.

    Attributes:
        value: the figure, where it is one number.
        low, high: instead, what it is at least and at most.
        basis: what it says of the thing it stands for; a `placeholder` may have no figure at all.
        source: where it was published or measured, or how it was come to; wherever there is a figure, be it a guess.
        needs: of a placeholder, what is to be measured in its place.
        of: `all` where it is of all modules of the kind together.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    value: _NotNegative | None = None
    low: _NotNegative | None = None
    high: _NotNegative | None = None
    basis: Basis
    source: Name | None = None
    needs: Name | None = None
    of: Literal["each", "all"] = "each"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedCurve:
    """What one decode module does at several numbers of requests, where there is no run to name.

    Attributes:
        parallel: requests at once, from 1 upwards.
        tokens_per_s: of all of them together.
        power_w: likewise; left out where it is not known.
        basis, source: of all of these figures.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    parallel: tuple[Positive, ...]
    tokens_per_s: tuple[_AboveZero, ...]
    power_w: tuple[_NotNegative, ...] | None = None
    basis: Basis
    source: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulesAsked:
    """Equal modules: how many, and the figures of each at full load.

    Attributes:
        name: what they are called.
        does: `decode` generates tokens; `prefill` does nothing but read prompts.
        count: how many there are in a cell.
        scope: what their power and energy cover, where no run says so.
        run: of decode modules, a run's id, or SUITE@MACHINE for the newest complete run.
        condition: the row of the run that is full load; with `parallel` as the only thing that varies the others make the curve.
        basis: where it is worse than the run's own, such as `transferred` for a run of another machine.
        because: why it is.
        curve: instead of a run.
        slots: requests that a decode module is given at once; left out, the condition's or the curve's last.
        tokens_per_s, tokens_per_s_per_request: of decode modules, where there is no run.
        power_w: where there is no run.
        idle_power_w: where there is no run, or one without an idle baseline.
        prompt_tokens_per_s: of prefill modules.
        energy_per_correct_j: energy of a module for each correct answer, where no run of graded questions says it.
        inside: whose figures theirs are part of already; then they add nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Name
    does: Does
    count: Positive = 1
    scope: Scope = "chip"
    run: Name | None = None
    condition: dict[str, Any] = field(default_factory=dict)
    basis: Basis | None = None
    because: Name | None = None
    curve: StatedCurve | None = None
    slots: Positive | None = None
    tokens_per_s: Figure | None = None
    tokens_per_s_per_request: Figure | None = None
    power_w: Figure | None = None
    idle_power_w: Figure | None = None
    prompt_tokens_per_s: Figure | None = None
    energy_per_correct_j: Figure | None = None
    inside: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadAsked:
    """What draws power beside the modules: one of the three figures, or `inside`.

    Attributes:
        name: such as host, supplies, fans, switch or idle.
        covers: which of what every machine has its figure holds; left out, the one that is its name, or none.
        per: a module, a cell or a row has `count` of it.
        count: how many.
        power_w: of each.
        share: of the power at the wall that goes there; for a loss such as that of supplies.
        energy_per_correct_j: of all of them, for each correct answer.
        inside: whose figures its own are part of already; then it adds nothing.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Name
    covers: tuple[Covered, ...] | None = None
    per: Per = "cell"
    count: Positive = 1
    power_w: Figure | None = None
    share: Figure | None = None
    energy_per_correct_j: Figure | None = None
    inside: Name | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAsked:
    """From the prefill to the decode modules. Requests do not queue for it.

    Attributes:
        kv_bytes_per_token: of the KV cache of one prompt token.
        bytes_per_s: how fast it crosses.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    kv_bytes_per_token: Figure
    bytes_per_s: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersAsked:
    """What a correct answer is, for the energy of one.

    Attributes:
        tokens: of an answer, in the mean.
        correct: share of the answers that are correct.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    tokens: Figure
    correct: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedAsked:
    """Figures of the whole cell that somebody stated. They are shown beside the composed ones and are part of no total.

    Attributes:
        tokens_per_s: of all decode modules.
        power_w, energy_per_token_mj, energy_per_correct_j: at the wall.
        chip_share: of the power at the wall that the chips take.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    tokens_per_s: Figure | None = None
    power_w: Figure | None = None
    energy_per_token_mj: Figure | None = None
    energy_per_correct_j: Figure | None = None
    chip_share: Figure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked:
    """What is simulated; each has an option of `joules cell` that goes before it.

    Attributes:
        requests_per_s: one stretch of time is simulated for each.
        answer_tokens: of a request.
        prompt_tokens: of a request; needed where there are prefill modules, 0 where they have nothing to read.
        answer_lengths: all equal, or exponentially distributed with that mean.
        placing: the module that a request is put on: the emptiest, or the fullest that has a slot free.
        cap: no more requests than this on a module.
        batching: `static` lets nothing join or leave before the longest answer of a batch is done.
        requests: how many are counted.
        seed: of the random arrivals and lengths.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    requests_per_s: tuple[_AboveZero, ...] = ()
    answer_tokens: _AboveZero = 128.0
    prompt_tokens: _NotNegative | None = None
    answer_lengths: Lengths = "fixed"
    placing: Placing = "spread"
    cap: Positive | None = None
    batching: Batching = "continuous"
    requests: Annotated[int, Field(ge=1000, le=MOST_REQUESTS)] = 20_000
    seed: Annotated[int, Field(ge=0)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAsked:
    """A cell file.

    Attributes:
        name: the first line of its sheet.
        modules: by kind.
        overheads: what draws power beside them.
        link: between prefill and decode modules.
        speed_floor_tokens_per_s: what every request is to have.
        answers: what a correct answer is.
        cells: in a row; left out, there is no row.
        stated: figures of the whole cell from elsewhere.
        load: what is simulated.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    name: Name
    modules: tuple[ModulesAsked, ...]
    overheads: tuple[OverheadAsked, ...] = ()
    link: LinkAsked | None = None
    speed_floor_tokens_per_s: _AboveZero | None = None
    answers: AnswersAsked | None = None
    cells: Positive | None = None
    stated: StatedAsked = StatedAsked()
    load: LoadAsked = LoadAsked()


_ADAPTER = TypeAdapter(CellAsked)


def load(path: Path, results: Store) -> tuple[Cell, LoadAsked]:
    """Read and check a cell file, and look its runs up.

    Raises:
        UsageError: one line for every fault, with file, line, key and what was expected; or a run is not there.
    """
    document = read(path, "cell", "name and modules")
    asked = _validated(document)
    faults = [*_check_figures(asked, document, ()), *_check_sense(asked, document)]
    if faults:
        raise UsageError("\n".join(faults))
    modules = tuple(_modules(one, results, document, ("modules", index)) for index, one in enumerate(asked.modules))
    if faults := [*_check_scopes(asked, modules, document)]:
        raise UsageError("\n".join(faults))
    stated = {
        f.name: _quantity(figure)
        for f in dataclasses.fields(StatedAsked)
        if (figure := getattr(asked.stated, f.name)) is not None
    }
    return Cell(
        name=asked.name,
        modules=modules,
        overheads=(*(_overhead(one) for one in asked.overheads), *_unnamed(asked.overheads, modules)),
        link=_link(asked.link),
        floor=asked.speed_floor_tokens_per_s,
        answer_tokens=_answer_tokens(asked, document),
        correct_share=_quantity(asked.answers.correct) if asked.answers else None,
        cells=asked.cells,
        stated=stated,
    ), asked.load


_OPTIONS = {
    "answer_tokens": "--answers", "prompt_tokens": "--prompts", "answer_lengths": "--lengths", "placing": "--placing", "cap": "--cap",
    "batching": "--batching", "requests": "--requests", "seed": "--seed",
}  # fmt: skip


def with_options(stated: LoadAsked, given: Mapping[str, Any]) -> LoadAsked:
    """The load of a file with what the command line says in its place.

    Raises:
        UsageError: an option has a value that the file could not have either.
    """
    try:
        return TypeAdapter(LoadAsked).validate_python({**dataclasses.asdict(stated), **given})
    except ValidationError as error:
        fault = error.errors()[0]
        option = _OPTIONS[str(fault["loc"][0])]
        raise UsageError(f"{option} {fault['input']}: {str(fault['msg']).removeprefix('Input ')}") from None


def trace(path: Path, *, prompts: bool) -> tuple[Trace, bool]:
    """Arrivals from a CSV file with the columns time_s and answer_tokens, and prompt_tokens where prompts count; has it the last one?

    Args:
        prompts: they count, so that the column must be there.

    Raises:
        UsageError: it cannot be read, or a line is not as it should be.
    """
    arrivals: list[tuple[float, float, float]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            needed = {"time_s", "answer_tokens"} | ({"prompt_tokens"} if prompts else set())
            missing = needed - set(rows.fieldnames or ())
            if missing:
                raise UsageError(
                    f"{path}:1: the first line names the columns; {' and '.join(sorted(missing))} is not among them"
                    + ("; the cell has prefill modules, which read prompts" if "prompt_tokens" in missing else "")
                )
            for row in rows:
                arrivals.append(_arrival(row, f"{path}:{rows.line_num}", arrivals[-1][0] if arrivals else 0.0))
                if len(arrivals) > MOST_REQUESTS:
                    raise UsageError(f"{path}: more than {MOST_REQUESTS:,} requests; take a part of it")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if len(arrivals) < 2 or arrivals[-1][0] == arrivals[0][0]:
        raise UsageError(f"{path}: a trace has two requests or more, at different times")
    return Trace(arrivals=tuple(arrivals)), "prompt_tokens" in (rows.fieldnames or ())


def _arrival(row: Mapping[str, str | None], place: str, before: float) -> tuple[float, float, float]:
    found = []
    for column in ("time_s", "prompt_tokens", "answer_tokens"):
        # Without the column nobody reads the prompts; a file for a cell where somebody does has been refused.
        text = row.get(column, "0")
        try:
            found.append(float(text or ""))
        except ValueError:
            raise UsageError(f"{place}: {column}: expected a number, not {text!r}") from None
    time_s, prompt, answer = found
    if not (math.isfinite(time_s) and time_s >= before):
        raise UsageError(f"{place}: time_s: expected {before:g} or later, in order of time, not {time_s:g}")
    if not (0 <= prompt < math.inf and 0 < answer < math.inf):
        raise UsageError(
            f"{place}: expected a prompt of 0 tokens or more and an answer above 0, not {prompt:g} and {answer:g}"
        )
    return time_s, prompt, answer


def _validated(document: Document) -> CellAsked:
    try:
        # By way of JSON, so that strict mode takes mappings for dataclasses and lists for tuples, as for suites.
        return _ADAPTER.validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        faults: dict[str, list[str]] = {}
        for item in error.errors():
            path = _path(item["loc"], document)
            key = _key(path) or "cell"
            if item["type"] == "missing":
                faults[f"{document.place(path)}: {key}: {item['loc'][-1]} is missing"] = []
            elif item["type"] == "unexpected_keyword_argument":
                known = _known_beside(item["loc"])
                faults[
                    f"{document.place(path)}: {key}: there is no such key{nearest(str(path[-1]), known)}; known: {', '.join(known)}"
                ] = []
            else:
                # A value that fits none of several types gives one error for each of them.
                words = str(item["msg"]).removeprefix("Input ")
                faults.setdefault(f"{document.place(path)}: {key}: {{}}, not {_shown(item['input'])}", []).append(words)
        raise UsageError("\n".join(text.replace("{}", " or ".join(words)) for text, words in faults.items())) from None


def _shown(value: object) -> str:
    return "a mapping" if isinstance(value, dict) else repr(value)


def _path(loc: Sequence[str | int], document: Document) -> tuple[str | int, ...]:
    """The keys that lead to a value; what pydantic puts between them, such as the types of a union, stands in no file."""
    path: tuple[str | int, ...] = ()
    for part in loc:
        if (*path, part) in document.places:
            path = (*path, part)
    return path


def _key(path: Sequence[str | int]) -> str:
    return ".".join(str(part + 1) if isinstance(part, int) else part for part in path)


_CLASSES: Mapping[str, type] = {
    "modules": ModulesAsked, "overheads": OverheadAsked, "link": LinkAsked, "answers": AnswersAsked, "stated": StatedAsked,
    "load": LoadAsked, "curve": StatedCurve,
}  # fmt: skip


def _known_beside(loc: Sequence[str | int]) -> tuple[str, ...]:
    """The keys of the mapping in which an unknown one stands."""
    around = [part for part in loc[:-1] if isinstance(part, str) and not part[0].isupper()]
    cls = _CLASSES.get(around[-1], Figure) if around else CellAsked
    return tuple(f.name for f in dataclasses.fields(cls))


def _check_figures(asked: Any, document: Document, path: tuple[str | int, ...]) -> Iterator[str]:
    """Every figure in the file, whatever it stands in: does it say what it must?"""
    if isinstance(asked, tuple):
        for index, one in enumerate(asked):
            yield from _check_figures(one, document, (*path, index))
    elif isinstance(asked, Figure):
        where = f"{document.place(path)}: {_key(path)}"
        ranged = asked.low is not None and asked.high is not None
        if (asked.low is None) != (asked.high is None) or (ranged and asked.value is not None):
            yield f"{where}: give value, or low and high"
        elif ranged and asked.low > asked.high:  # type: ignore[operator]
            yield f"{where}: low {asked.low:g} is over high {asked.high:g}"
        if asked.basis == "placeholder" and asked.needs is None:
            yield f"{where}: a placeholder says what is to be measured in its place; give needs"
        if asked.source is None and (asked.value is not None or ranged):
            yield f"{where}: a figure has a source, a guess too; give source"
        if asked.basis != "placeholder" and asked.value is None and not ranged:
            yield f"{where}: only a placeholder may have no figure; give value, or low and high"
        largest = asked.high if ranged else asked.value
        if path[-1] in ("share", "correct", "chip_share") and largest is not None and largest > 1:
            yield f"{where}: a share is 1 at most, not {largest:g}"
        if asked.of == "all" and path[0] != "modules":
            yield f"{where}: of: all is for figures of modules"
    elif dataclasses.is_dataclass(asked) and not isinstance(asked, type):
        for f in dataclasses.fields(asked):
            yield from _check_figures(getattr(asked, f.name), document, (*path, f.name))


_OF_DECODE = ("run", "curve", "slots", "tokens_per_s", "tokens_per_s_per_request")


def _check_sense(asked: CellAsked, document: Document) -> Iterator[str]:
    """Faults that no single key shows."""
    if not any(one.does == "decode" for one in asked.modules):
        yield f"{document.place(('modules',))}: modules: none of them does decode, so there are no tokens"
    names = [one.name for one in asked.modules]
    for index, one in enumerate(asked.modules):
        path = ("modules", index)
        where = f"{document.place(path)}: {_key(path)}"
        if one.name in names[:index]:
            yield f"{where}: there are {one.name!r} modules already; raise their count, or give another name"
        if one.does == "prefill":
            for key in _OF_DECODE:
                if getattr(one, key) is not None:
                    yield f"{document.place((*path, key))}: {_key(path)}.{key}: it is for modules that decode"
        elif one.prompt_tokens_per_s is not None:
            yield f"{document.place((*path, 'prompt_tokens_per_s'))}: {_key(path)}.prompt_tokens_per_s: it is for prefill modules"
        if one.run is not None and one.curve is not None:
            yield f"{where}: run and curve: give one of them"
        if one.run is not None:
            for key in ("tokens_per_s", "tokens_per_s_per_request", "power_w"):
                if getattr(one, key) is not None:
                    yield f"{document.place((*path, key))}: {_key(path)}.{key}: the run says it; remove one of them"
        else:
            for key in ("basis", "because", "condition"):
                if getattr(one, key):
                    yield f"{document.place((*path, key))}: {_key(path)}.{key}: it has no effect without run"
        if (one.basis is None) != (one.because is None):
            yield f"{where}: basis and because: a worse basis comes with its reason; give both or none"
        if one.curve is not None:
            yield from _check_curve(one.curve, document, (*path, "curve"))
    for index, beside in enumerate(asked.overheads):
        given = [
            key for key in ("power_w", "share", "energy_per_correct_j", "inside") if getattr(beside, key) is not None
        ]
        if len(given) != 1:
            at = ("overheads", index)
            yield (
                f"{document.place(at)}: {_key(at)}: give one of power_w, share, energy_per_correct_j and inside; "
                f"it has {', '.join(given) or 'none'}"
            )
    for per in ("cell", "row"):
        shares = [
            (one, one.share)
            for one in asked.overheads
            if one.share is not None and (one.per == "row") == (per == "row")
        ]
        most = sum(
            one.count * ((share.high if share.high is not None else share.value) or 0.0) for one, share in shares
        )
        if most >= 1:
            yield f"{document.place(('overheads',))}: overheads: the shares of a {per} come to {most:g}, which leaves nothing"
    for index, beside in enumerate(asked.overheads):
        if beside.share is not None and beside.per == "module":
            stated = ("overheads", index, "per")
            yield f"{document.place(stated)}: {_key(stated)}: a share is of the wall of a cell or a row; say which"


def _check_curve(curve: StatedCurve, document: Document, path: tuple[str | int, ...]) -> Iterator[str]:
    if list(curve.parallel) != sorted(set(curve.parallel)):
        yield f"{document.place((*path, 'parallel'))}: {_key(path)}.parallel: expected rising numbers"
    for key in ("tokens_per_s", "power_w"):
        figures = getattr(curve, key)
        if figures is not None and len(figures) != len(curve.parallel):
            yield (
                f"{document.place((*path, key))}: {_key(path)}.{key}: {len(figures)} figures for {len(curve.parallel)} numbers of requests"
            )


def _quantity(figure: Figure, count: int = 1) -> Quantity:
    low = figure.value if figure.low is None else figure.low
    high = figure.value if figure.high is None else figure.high
    share = count if figure.of == "all" else 1
    return Quantity(
        low=None if low is None else low / share,
        high=None if high is None else high / share,
        basis=figure.basis,
        sources=() if figure.source is None else (figure.source,),
        needs=() if figure.needs is None else (figure.needs,),
    )


def _covers(one: OverheadAsked) -> set[str]:
    return {one.name.lower()} & set(_EXPECTED) if one.covers is None else set(one.covers)


def _unnamed(asked: Sequence[OverheadAsked], modules: Sequence[Modules]) -> Iterator[Overhead]:
    """What the file says nothing of: it is not taken to be 0."""
    at_wall = {one.name: one.scope == "wall" for one in modules if not one.inside}
    if at_wall and all(at_wall.values()):
        return
    if any(at_wall.values()):
        under = ", ".join(name for name, is_so in at_wall.items() if not is_so)
        yield Overhead(
            name="between chip and wall", per="cell",
            power_w=unknown(f"{under}: power at the wall, as of the other modules; overheads cannot be told apart between them"),
        )  # fmt: skip
    # What a row has is between its cells and the wall, and not in them.
    named = {covered for one in asked if one.per != "row" for covered in _covers(one)}
    for name in _EXPECTED:
        if name not in named:
            yield Overhead(
                name=name,
                per="cell",
                power_w=unknown(f"{name}: power, or share of the wall; no overhead is named {name} or covers it"),
            )


def _check_scopes(asked: CellAsked, modules: Sequence[Modules], document: Document) -> Iterator[str]:
    """Overheads that the modules' own power has in it already."""
    scopes = {one.scope for one in modules if not one.inside}
    if scopes != {"wall"}:
        return
    for index, beside in enumerate(asked.overheads):
        twice = sorted(_covers(beside)) if beside.inside is None and beside.per != "row" else []
        if twice:
            at = ("overheads", index)
            yield (
                f"{document.place(at)}: {_key(at)}: the modules' power is that at the wall and has {', '.join(twice)} in it; "
                "give inside instead of a figure, or leave it out"
            )


def _answer_tokens(asked: CellAsked, document: Document) -> Quantity | None:
    """Of what is counted as correct or not; where only the load says how long answers are, as a plan and not as a finding."""
    if asked.answers is not None:
        return _quantity(asked.answers.tokens)
    if ("load", "answer_tokens") not in document.places:
        return None
    return exactly(asked.load.answer_tokens, "placeholder", "load.answer_tokens of the file")


def _overhead(asked: OverheadAsked) -> Overhead:
    return Overhead(
        name=asked.name,
        per=asked.per,
        count=asked.count,
        power_w=_quantity(asked.power_w) if asked.power_w else None,
        share=_quantity(asked.share) if asked.share else None,
        energy_per_correct_j=_quantity(asked.energy_per_correct_j) if asked.energy_per_correct_j else None,
        inside=asked.inside or "",
    )


def _link(asked: LinkAsked | None) -> Link | None:
    if asked is None:
        return None
    return Link(
        s_per_prompt_token=ratio(_quantity(asked.kv_bytes_per_token), _quantity(asked.bytes_per_s), "link: bytes_per_s")
    )


def _modules(asked: ModulesAsked, results: Store, document: Document, path: tuple[str | int, ...]) -> Modules:
    def stated(key: str) -> Quantity:
        figure: Figure | None = getattr(asked, key)
        return unknown(f"{asked.name}: {key}") if figure is None else _quantity(figure, asked.count)

    found = Modules(
        name=asked.name,
        does=asked.does,
        count=asked.count,
        scope=asked.scope,
        slots=asked.slots,
        tokens_per_s=stated("tokens_per_s"),
        tokens_per_s_per_request=stated("tokens_per_s_per_request"),
        prompt_tokens_per_s=stated("prompt_tokens_per_s"),
        power_w=stated("power_w"),
        idle_power_w=stated("idle_power_w"),
        energy_per_correct_j=_quantity(asked.energy_per_correct_j, asked.count) if asked.energy_per_correct_j else None,
        inside=asked.inside or "",
    )
    if asked.run is not None:
        return _of_run(asked, found, results, document, path)
    return found if asked.curve is None else _of_curve(asked, found, asked.curve, document, path)


def _of_curve(
    asked: ModulesAsked, found: Modules, curve: StatedCurve, document: Document, path: tuple[str | int, ...]
) -> Modules:
    numbers = curve.parallel
    speeds = {n: exactly(v, curve.basis, curve.source) for n, v in zip(numbers, curve.tokens_per_s, strict=True)}
    alone = {n: exactly(v / n, curve.basis, curve.source) for n, v in zip(numbers, curve.tokens_per_s, strict=True)}
    powers = {n: exactly(v, curve.basis, curve.source) for n, v in zip(numbers, curve.power_w or (), strict=False)}
    slots = asked.slots or numbers[-1]
    if slots not in numbers:
        raise UsageError(
            f"{document.place((*path, 'slots'))}: {_key(path)}.slots: the curve has no figures at {slots} at once; it has {', '.join(map(str, numbers))}"
        )
    return dataclasses.replace(
        found,
        slots=slots,
        tokens_per_s=found.tokens_per_s if asked.tokens_per_s else speeds[slots],
        tokens_per_s_per_request=found.tokens_per_s_per_request if asked.tokens_per_s_per_request else alone[slots],
        power_w=found.power_w if asked.power_w or not powers else powers[slots],
        curve=Curve(tokens_per_s=speeds, tokens_per_s_per_request=alone, power_w=powers),
    )


def _of_run(
    asked: ModulesAsked, found: Modules, results: Store, document: Document, path: tuple[str | int, ...]
) -> Modules:
    place = document.place((*path, "run"))
    run = _run(str(asked.run), results, f"{place}: {_key(path)}.run")
    sweep = from_run(run)
    full = next((cell for cell in sweep.cells if dict(cell.condition) == asked.condition), None)
    if full is None:
        raise UsageError(
            f"{document.place((*path, 'condition'))}: {_key(path)}.condition: run {run.run_id} has no condition "
            f"{label(asked.condition) or '(none is given)'}; it has {'; '.join(label(c) for c in sweep.conditions)}"
        )

    def figure(cell: Conditioned, metric: str) -> Quantity:
        return _of_condition(run, cell, metric, asked)

    others = {axis: value for axis, value in asked.condition.items() if axis != "parallel"}
    along = {
        int(cell.condition["parallel"]): cell
        for cell in sweep.cells
        if "parallel" in cell.condition and all(cell.condition[axis] == value for axis, value in others.items())
    }
    void = {
        n: f"{asked.name}: run {run.run_id} at {label(cell.condition)} is void: {cell.void}"
        for n, cell in along.items()
        if cell.void
    }
    along = {n: cell for n, cell in along.items() if n not in void}
    parallel = asked.condition.get("parallel", run.suite["server"]["parallel"])
    per_correct = figure(full, "energy_per_correct_j")
    for key, said in (("idle_power_w", run.idle is not None), ("energy_per_correct_j", per_correct.known)):
        if said and getattr(asked, key) is not None:
            raise UsageError(f"{document.place((*path, key))}: {_key(path)}.{key}: run {run.run_id} says it; remove it")
    if run.idle is not None and run.idle.mean_w < 0:
        raise UsageError(
            f"{place}: {_key(path)}.run: run {run.run_id} has an idle power of {run.idle.mean_w:.4g} W, which cannot be"
        )
    per_token = figure(full, "energy_per_token_mj")
    answer_tokens, prompt_tokens = _lengths(run, full)
    return dataclasses.replace(
        found,
        scope=run.meter.scope,
        slots=asked.slots or int(parallel),
        tokens_per_s=figure(full, "tokens_per_s"),
        tokens_per_s_per_request=figure(full, "tokens_per_s_per_request"),
        power_w=figure(full, "power_w"),
        idle_power_w=found.idle_power_w if run.idle is None else _based(run.idle.mean_w, run, {}, True, asked),
        energy_per_token_mj=per_token if per_token.known else None,
        answer_tokens=answer_tokens,
        prompt_tokens=prompt_tokens,
        remarks=tuple(_against(run, sweep, full, along.values())),
        energy_per_correct_j=per_correct if per_correct.known else found.energy_per_correct_j,
        curve=Curve(
            tokens_per_s={n: figure(cell, "tokens_per_s") for n, cell in along.items()},
            tokens_per_s_per_request={n: figure(cell, "tokens_per_s_per_request") for n, cell in along.items()},
            power_w={n: figure(cell, "power_w") for n, cell in along.items()},
            void=void,
        )
        if along
        else None,
    )


def _lengths(run: Run, full: Conditioned) -> tuple[float | None, float | None]:
    """Tokens of an answer and of a prompt in the windows of a condition; of a printed table, what its suite asks of the answers."""
    answers = [
        request
        for window in run.windows
        if window.role == "measured" and dict(window.condition) == dict(full.condition)
        for request in window.requests
    ]
    if not answers:
        stated = full.condition.get("answer_tokens", run.suite.get("request", {}).get("answer_tokens"))
        return (float(stated) if isinstance(stated, int | float) else None), None
    return (
        sum(request.predicted_n for request in answers) / len(answers),
        sum(request.prompt_n + request.cache_n for request in answers) / len(answers),
    )


def _against(run: Run, sweep: Sweep, full: Conditioned, along: Iterable[Conditioned]) -> Iterator[str]:
    """How far the figures of a run may be off, as far as that is known."""
    spreads = []
    for cell in (full, *along):
        with contextlib.suppress(Void, Unmeasured):
            spreads.append(cell.spread("energy_per_token_mj"))
    yield (
        f"energy per token differs by up to {max(spreads):.1%} between passes"
        if spreads
        else "no spread over passes is known"
    )
    flags = dict.fromkeys(
        flag.partition(":")[0] for flag in (*sweep.about.flags, *full.flags, *(f for c in along for f in c.flags))
    )
    if flags:
        yield f"flagged: {', '.join(flags)}"
    yield from (f"deviation: {one_line(deviation, 160)}" for deviation in run.deviations)


def _run(name: str, results: Store, where: str) -> Run:
    suite, at, machine = name.partition("@")
    if not at:
        try:
            return results.find(name).run
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    stored = results.latest(machine, suite)
    if stored is None:
        raise UsageError(f"{where}: there is no complete run of {suite!r} on {machine!r} in {results.folder}")
    return stored.run


def _of_condition(run: Run, cell: Conditioned, metric: str, asked: ModulesAsked) -> Quantity:
    try:
        value = cell.mean(metric)
    except (Void, Unmeasured) as why:
        return unknown(f"{asked.name}: {metric} of run {run.run_id} at {why}")
    return _based(value, run, cell.condition, bool(METRICS[metric].energy_power), asked)


def _models_of(run: Run, condition: Condition) -> str:
    """What was run: names and formats, of the condition where they vary."""
    asked = {key: condition[axis] for axis, key in (("model", "name"), ("format", "format")) if axis in condition}
    return ", ".join(
        model_text(model) for model in run.models if all(model.get(key) == value for key, value in asked.items())
    )


def _based(value: float, run: Run, condition: Condition, of_energy: bool, asked: ModulesAsked) -> Quantity:
    """A figure of a run. Speed is counted, whatever became of the energy: what an estimate estimates is the power."""
    basis = run.meter.basis if of_energy or run.published else "measured"
    source = f"{run.suite_name} on {run.machine_slug}, run {run.run_id}: {_models_of(run, condition)}"
    found = exactly(value, basis, source)
    return found if asked.basis is None or asked.because is None else found.worse(asked.basis, asked.because)
