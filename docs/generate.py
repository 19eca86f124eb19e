"""Writes into the pages what the code says of itself: `python docs/generate.py`.

A generated part stands between the lines `<!-- generated: NAME -->` and `<!-- end -->`, so that it can be read wherever the
page is shown. `tests/unit/test_docs.py` fails when one of them is not what the code says now.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from pytest_joules import cellfile, cli, engines, fixtures, gates, knobs, metrics, plugin, suite, trace
from pytest_joules.cli import window
from pytest_joules.collecting import MARK_KEYS
from pytest_joules.machine import PowerState
from pytest_joules.prediction import Prediction
from pytest_joules.protocol import run_gates
from pytest_joules.records import Gate, RailEnergy, RequestRecord
from pytest_joules.response import LEAST_RESPONSE

DOCS = Path(__file__).parent
PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = Sequence[Sequence[str]]


def table(headings: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def described(headings: Sequence[str], rows: Rows) -> str:
    """A table whose second column is prose, which must not be squeezed on a narrow screen."""
    return f'<div class="described" markdown="1">\n\n{table(headings, rows)}\n</div>\n'


def attributes(cls: type) -> dict[str, str]:
    """Meaning by name, from the `Attributes:` of a class."""
    text = inspect.getdoc(cls) or ""
    found: dict[str, str] = {}
    for entry in re.split(r"\n {4}(?=\w)", text.partition("Attributes:")[2]):
        names, _, meaning = entry.partition(": ")
        for name in names.split(", "):
            found[name.strip()] = " ".join(meaning.split())
    return found


_SECTIONS = (
    suite.Server, suite.Request, suite.Draft, suite.Protocol, suite.Require, suite.GateLimits, cellfile.StatedAsked, cellfile.LoadAsked,
)  # fmt: skip
_UNITS = {"_s": "s", "_hz": "Hz", "_c": "K", "_mib": "MiB"}


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "required" if field.default_factory is dataclasses.MISSING else "–"
    if value is None or value == () or value == {} or dataclasses.is_dataclass(value):
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        unit = next((unit for ending, unit in _UNITS.items() if field.name.endswith(ending)), "")
        return f"`{value:g}` {unit}".strip()
    return f"`{value}`"


def _values(kind: Any) -> str:
    """What a key may be, in words."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        limits = [one for meta in inside[1:] for one in getattr(meta, "metadata", [meta])]
        told = {type(one).__name__: getattr(one, type(one).__name__.lower(), None) for one in limits}
        return _bounded(inside[0], told)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inside)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_values(one) for one in inside if one is not type(None))
    if origin is tuple:
        return f"list of: {_values(inside[0])}"
    if kind is bool:
        return "`true`, `false`"
    return {int: "whole number", float: "number", str: "text"}.get(kind, "mapping")


def _bounded(kind: type, told: Mapping[str, Any]) -> str:
    """A number between limits, in words."""
    if kind is str:
        return "text"
    noun = "whole number" if kind is int else "number"
    if "Ge" in told and "Le" in told:
        return f"{noun}, {told['Ge']:g} to {told['Le']:g}"
    least = f"above {told['Gt']:g}" if "Gt" in told else f"{told['Ge']:g} or more"
    return f"{noun}, {least}" + (f", {told['Le']:g} at most" if "Le" in told else "")


def keys(cls: type, leave_out: Sequence[str] = ()) -> str:
    """The keys of a section of a file."""
    hints, meanings = typing.get_type_hints(cls, include_extras=True), attributes(cls)
    rows = []
    for field in dataclasses.fields(cls):
        if field.name not in leave_out:
            is_section = isinstance(field.default, _SECTIONS)
            meaning = f"[its keys](#{field.name})" if is_section else meanings[field.name].removesuffix(".")
            known = ", ".join(f"`{name}`" for name in engines.engines()) if field.name == "engine" else ""
            rows.append((f"`{field.name}`", meaning, _default(field), known or _values(hints[field.name])))
    return described(("key", "what it is", "default", "may be"), rows)


def axes() -> str:
    """What may vary."""
    whole = ", ".join(f"`{name}`" for name in suite._TOP_AXES)
    protocol = ", ".join(f"`{name}`" for name in suite._PROTOCOL_AXES)
    together = ", ".join(
        f"`{name}`, which sets {' and '.join(f'`{k}`' for k in keys)}" for name, keys in suite._TOGETHER.items()
    )
    settings = ", ".join(f"`{name}`" for name in knobs.knobs())
    return (
        f"Any key of `server`, `request` and `draft`; {together}; {whole} of the suite itself; {protocol} of `protocol`; "
        f"and the settings of the machine that `knobs` takes: {settings}.\n"
    )


def metric_table() -> str:
    """Every metric."""
    nothing = suite.Suite(name="", question="", protocol=suite.Protocol(idle_s=0)).undefined
    rows = []
    for name, metric in metrics.METRICS.items():
        needs = nothing.get(name, "").rpartition("; state ")[2]
        link = f"[`{name}`](#{name})"
        rows.append((link, metric.meaning, metric.unit, "yes" if metric.cost else "no", f"`{needs}`" if needs else "–"))
    return described(("metric", "what it is", "unit", "a cost", "asks for"), rows)


LIMITS = suite.GateLimits()
LEAST = suite.Require().min_samples


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A gate as it is told.

    Attributes:
        of: the function that gives it.
        keys: the keys of `gates` or `require` that set its limits.
        examples: what it says of made-up values that are not as they should be.
    """

    of: Callable[..., Gate]
    keys: tuple[str, ...] = ()
    examples: tuple[Gate, ...]


def _answer(**changes: Any) -> RequestRecord:
    usual: dict[str, Any] = {
        "slot": 0, "round": 0, "sent_s": 0.0, "received_s": 1.0, "prompt_n": 20, "cache_n": 0, "predicted_n": 128,
        "prompt_ms": 40.0, "predicted_ms": 1280.0, "stop_type": "limit",
    }  # fmt: skip
    return RequestRecord(**(usual | changes))


def _rail(energy_j: float | None, updates: int = 50, **changes: Any) -> RailEnergy:
    return RailEnergy(
        rail="rapl.package-0", energy_j=energy_j, uncertainty_j=1.0, updates=updates, refresh_s=0.1, longest_gap_s=0.1, **changes
    )  # fmt: skip


def window_gates() -> list[Shown]:
    """The gates on one window, by the limits of a suite that states none."""
    counted = ("rapl.package-0",)
    return [
        Shown(of=gates.requests_complete, examples=(gates.requests_complete([_answer(predicted_n=97)], 1, 128),)),
        Shown(of=gates.answers_cut_off, examples=(gates.answers_cut_off(15, 96),)),
        Shown(
            of=gates.prompt_cache,
            examples=(
                gates.prompt_cache([_answer(prompt_ms=30_000.0)], wanted=False),
                gates.prompt_cache([_answer(prompt_n=1, cache_n=19)], wanted=False),
                gates.prompt_cache([_answer(prompt_n=640, slot=3)] * 8, wanted=True, each=(512, 128)),
            ),
        ),
        Shown(
            of=gates.achieved_batch,
            keys=("batch_flag_below", "batch_void_below"),
            examples=tuple(
                gates.achieved_batch(busy, 100, 8, LIMITS.batch_void_below, LIMITS.batch_flag_below) for busy in (720, 560)
            ),
        ),
        Shown(
            of=gates.has_energy,
            examples=(gates.has_energy([_rail(None, reason="no reading for 2.1 s")], counted, ""),),
        ),
        Shown(
            of=gates.updates,
            keys=("thin_samples", "min_samples", "thin"),
            examples=tuple(gates.updates(n, LEAST, LIMITS.thin_samples, thin_voids=True) for n in (LEAST + 2, LEAST - 2)),
        ),
        Shown(
            of=gates.edge_uncertainty,
            keys=("uncertainty_flag_above", "uncertainty_void_above"),
            examples=tuple(
                gates.edge_uncertainty(100.0, wide_j, LIMITS.uncertainty_flag_above, LIMITS.uncertainty_void_above)
                for wide_j in (8.0, 30.0)
            ),
        ),
        Shown(
            of=gates.counter_check,
            keys=("counter_flag_above", "counter_void_above"),
            examples=tuple(
                gates.counter_check(100.0, other_j, apart, LIMITS.counter_flag_above, LIMITS.counter_void_above)
                for other_j, apart in ((110.0, 0.10), (140.0, 0.40))
            ),
        ),
        Shown(
            of=gates.readings,
            examples=(gates.readings([_rail(100.0, flags=("2 readings dropped",))], counted),),
        ),
        Shown(
            of=gates.averaging_times,
            examples=(gates.averaging_times(3.0, [("nvml.gpu0.power", 1.0)], trace.FEW_AVERAGINGS, gates.OF_A_SUITE),),
        ),
        Shown(of=gates.released, examples=(gates.released(0.12, 0.04),)),
        Shown(
            of=gates.client_cost,
            keys=("client_cpu_flag_above",),
            examples=(gates.client_cost(0.9, 20.0, LIMITS.client_cpu_flag_above),),
        ),
        Shown(
            of=gates.other_load,
            keys=("other_load_flag_above", "other_load_void_above"),
            examples=tuple(
                gates.other_load(cores, LIMITS.other_load_flag_above, LIMITS.other_load_void_above, 8) for cores in (0.4, 3.0)
            ),
        ),
        Shown(
            of=gates.window_power_slope,
            keys=("power_slope_flag_above",),
            examples=(gates.window_power_slope(50.0, 53.0, LIMITS.power_slope_flag_above, 0.01),),
        ),
        Shown(
            of=gates.temperature_rise,
            keys=("temperature_rise_flag_above_c",),
            examples=(gates.temperature_rise(5.2, LIMITS.temperature_rise_flag_above_c),),
        ),
        Shown(of=gates.throttled, examples=(gates.throttled(["thermal slowdown"]),)),
        Shown(
            of=gates.power_limit_saturated,
            keys=("power_limit_flag_above",),
            examples=(gates.power_limit_saturated(0.8, 300.0, LIMITS.power_limit_flag_above),),
        ),
        Shown(
            of=gates.swapping,
            keys=("swapped_flag_above_mib",),
            examples=(gates.swapping(240.0, LIMITS.swapped_flag_above_mib),),
        ),
        Shown(of=gates.other_gpu_process, examples=(gates.other_gpu_process(["python3"]),)),
        Shown(of=gates.battery_charging, examples=(gates.battery_charging(charging=True),)),
        Shown(of=gates.drafted, examples=(gates.drafted([_answer()]), gates.drafted([_answer(draft_n=190, draft_accepted_n=92)], wanted=False))),
        Shown(of=gates.settings_in_force, examples=(gates.settings_in_force(["scaling_max_freq was set to 1800000 and reads 4200000"]),)),
        Shown(of=gates.setting_seen, examples=(gates.setting_seen("estimated"),)),
        Shown(of=gates.cap_held, examples=(gates.cap_held([("amdgpu.0000:c5:00.0.clock", 2903.0, 1800.0, "MHz")]),)),
        Shown(
            of=gates.lengths_intercept,
            keys=("intercept_flag_above",),
            examples=(gates.lengths_intercept(9.0, 40.0, LIMITS.intercept_flag_above),),
        ),
        Shown(
            of=gates.rested, keys=("rest_flag_above",), examples=(gates.rested(9.4, 8.1, LIMITS.rest_flag_above),)
        ),
    ]  # fmt: skip


def run_wide_gates() -> list[Shown]:
    """The gates on a run as a whole."""
    spread, drift = LIMITS.spread_flag_above, LIMITS.drift_flag_above
    rising = [("parallel=1", 60.0 * i, 100.0 + 3 * i) for i in range(4)] + [
        ("parallel=8", 60.0 * i + 30, 30 + 0.9 * i + 0.01 * (i % 2)) for i in range(4)
    ]
    off, on = (
        PowerState(on_ac=ac, battery_percent=None, low_power_mode=low) for ac, low in ((False, False), (True, True))
    )
    return [
        Shown(of=gates.meter_response, examples=(gates.meter_response(8.0, 8.1, LEAST_RESPONSE, 0.0, LIMITS.other_load_flag_above),)),
        Shown(of=gates.pass_spread, keys=("spread_flag_above",), examples=(gates.pass_spread([("parallel=8", 0.083)], spread),)),
        Shown(
            of=gates.control_repeat,
            keys=("spread_flag_above",),
            examples=(gates.control_repeat([(100.0, 101.0), (100.0, 107.0)], spread),),
        ),
        Shown(
            of=gates.run_order,
            keys=("run_order_flag_above",),
            examples=(gates.run_order([100.0, 50.0, 30.0], [106.0, 52.6, 31.9], flag_above=LIMITS.run_order_flag_above),),
        ),
        Shown(of=gates.drift, keys=("drift_flag_above",), examples=(gates.drift(rising, drift),)),
        Shown(of=gates.bridge, keys=("spread_flag_above",), examples=(gates.bridge(30.1, 32.4, spread),)),
        Shown(of=run_gates.load_gate, examples=(run_gates.load_gate(["ffmpeg 180%"]),)),
        Shown(of=run_gates.supply_gate, examples=(run_gates.supply_gate(on, on), run_gates.supply_gate(off, on))),
        Shown(
            of=gates.wall_slope,
            examples=(gates.wall_slope([20.0, 40.0, 60.0], [50.0, 62.0, 75.0], "rapl", "shelly"),),
        ),
    ]  # fmt: skip


def trace_gates() -> list[Shown]:
    """The gate that only a recorded or a listened-to trace has."""
    return [Shown(of=window._alive, examples=(window._alive([_Still()]),))]  # type: ignore[list-item]


class _Still:
    """A series in which nothing moves."""

    rail = types.SimpleNamespace(name="plug", kind="instant")

    def __init__(self) -> None:
        import numpy as np

        self.mono, self.value = np.arange(60.0), np.full(60, 42.01)


_DOES = {"flag": "flags", "void": "voids"}


def _narrows(name: str) -> bool:
    return name in (*gates.NARROWING, "other load")


def _anchor(name: str) -> str:
    return re.sub(r"[^\w\s-]", "", name.lower()).strip().replace(" ", "-")


def _gate_keys(shown: Shown) -> Iterator[str]:
    for key in shown.keys:
        section = "require" if key in {f.name for f in dataclasses.fields(suite.Require)} else "gates"
        value = getattr(LIMITS if section == "gates" else suite.Require(), key)
        yield f"`{section}.{key}: {value:g}`" if isinstance(value, float) else f"`{section}.{key}: {value}`"


def overview(every: Callable[[], list[Shown]]) -> str:
    """One line for each gate."""
    rows = []
    for shown in every():
        name, outcomes = shown.examples[0].name, {gate.outcome for gate in shown.examples}
        rows.append(
            (
                f"[{name}](#{_anchor(name)})",
                "yes" if "flag" in outcomes else "–",
                "yes" if "void" in outcomes else "–",
                "yes" if _narrows(name) else "–",
            )
        )
    return table(("gate", "flags", "voids", "makes verdicts narrow"), rows)


def sections(every: Callable[[], list[Shown]]) -> str:
    """What each gate looks at, as it is told, and where its limits are set."""
    told = []
    for shown in every():
        name = shown.examples[0].name
        # What it gives when there is nothing to see is said of all at once.
        purpose = re.sub(r"; `None`[^.]*", "", (inspect.getdoc(shown.of) or "").split("\n\n")[0])
        lines = [f"### {name}", "", " ".join(purpose.split()), ""]
        lines += [f"- {_DOES[gate.outcome]}: `{gate}`" for gate in shown.examples]
        if limits := ", ".join(_gate_keys(shown)):
            lines.append(f"- set by {limits}")
        told.append("\n".join(lines) + "\n")
    return "\n".join(told)


def commands(app: typer.Typer = cli.app, before: str = "") -> dict[str, Callable[..., None]]:
    """The function of every subcommand by its name, in the order of their names."""
    if app is cli.app:
        for info in pkgutil.iter_modules(cli.__path__):
            importlib.import_module(f"{cli.__name__}.{info.name}")
    found = {
        f"{before}{info.name or info.callback.__name__.replace('_', '-')}": info.callback
        for info in app.registered_commands
        if info.callback is not None and not info.hidden
    }
    for group in app.registered_groups:
        if group.typer_instance is not None:
            name = group.name or group.typer_instance.info.name
            found |= commands(group.typer_instance, f"{before}{name} ")
    return dict(sorted(found.items()))


def _parameter(parameter: inspect.Parameter, hint: Any) -> tuple[str, str, str] | None:
    """An argument or option of a command: how it is written, what it is, its default."""
    kind, info = typing.get_args(hint)[:2]
    if info.hidden:
        return None
    if isinstance(info, typer.models.ArgumentInfo):
        shown = info.metavar or parameter.name.upper()
    else:
        # The first of the names is where a default would be, in a call that is no annotation.
        stated = [name for name in (info.default, *(info.param_decls or ())) if isinstance(name, str)]
        names = stated or [f"--{parameter.name.replace('_', '-')}"]
        value = "" if kind is bool else f" {info.metavar or _metavar(kind)}"
        shown = f"{', '.join(names)}{value}"
    default = parameter.default
    told = isinstance(default, str | int | float | Path) and not isinstance(default, bool) and default != ""
    written = f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
    what = info.help or ""
    return f"`{shown}`", _lowered(what), written if told else "–"


def _metavar(kind: Any) -> str:
    """What stands for a value of a type, `list[Path] | None` among them."""
    inside = typing.get_args(kind)
    if inside:
        return next(_metavar(one) for one in inside if one is not type(None))
    return {Path: "PATH", int: "N", float: "X"}.get(kind, "TEXT")


def _lowered(text: str) -> str:
    """A sentence as an entry of a table."""
    return (text[:1].lower() + text[1:] if text[1:2].islower() else text).removesuffix(".")


def _help(text: str) -> str:
    """A command's help as Markdown: its examples as a block to copy."""
    blocks = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        head, colon, rest = paragraph.partition(":")
        if colon and head in ("Example", "Examples"):
            lines = "\n".join(f"$ {line.strip()}" for line in rest.strip().splitlines())
            blocks.append(f"```console\n{lines}\n```")
        elif blocks and blocks[-1].endswith(";"):
            blocks[-1] += f" {' '.join(paragraph.split())}"
        else:
            blocks.append(" ".join(paragraph.split()))
    return "\n\n".join(blocks)


def command_reference() -> str:
    """Every subcommand."""
    told = []
    for name, function in commands().items():
        hints = typing.get_type_hints(function, include_extras=True)
        signature = inspect.signature(function).parameters.values()
        rows = [row for parameter in signature if (row := _parameter(parameter, hints[parameter.name]))]
        options = f"\n{described(('', 'what it is', 'default'), rows)}" if rows else ""
        told.append(f"### joules {name}\n\n{_help(function.__doc__ or '')}\n{options}")
    return "\n".join(told)


class _Asked:
    """Stands in for pytest's parser and keeps what a plugin asks of it."""

    def __init__(self) -> None:
        self.options: list[tuple[str, dict[str, Any]]] = []
        self.inis: list[str] = []

    def getgroup(self, *_: str) -> _Asked:
        """The same, whatever the group."""
        return self

    def addoption(self, name: str, **settings: Any) -> None:
        """Keep it."""
        self.options.append((name, settings))

    def addini(self, name: str, *_: str, **settings: Any) -> None:
        """Keep its name."""
        self.inis.append(name)


def asked() -> _Asked:
    """The options and ini keys of the plugin."""
    parser = _Asked()
    plugin.pytest_addoption(parser)  # type: ignore[arg-type]
    return parser


def pytest_options() -> str:
    """The plugin's options of pytest."""
    parser, rows = asked(), []
    for name, settings in parser.options:
        twin = name.removeprefix("--").replace("-", "_")
        shown = f"{name} {settings['metavar']}" if "metavar" in settings else name
        rows.append((f"`{shown}`", settings["help"], f"`{twin}`" if twin in parser.inis else "–"))
    return described(("option", "what it is", "ini key"), rows)


def fixture_table() -> str:
    """The plugin's fixtures."""
    tree = ast.parse(inspect.getsource(fixtures))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    rows = []
    for node in found:
        scope = "session" if "session" in ast.unparse(node.decorator_list[0]) else "function"
        rows.append((f"`{node.name}`", (ast.get_docstring(node) or "").split("\n\n")[0], scope))
    return described(("fixture", "what it is", "scope"), rows)


def mark_table() -> str:
    """What the mark takes."""
    meanings = attributes(Prediction)
    return table(("key", "what it is"), [(f"`{key}`", meanings[key].removesuffix(".")) for key in MARK_KEYS])


PARTS: Mapping[str, Callable[[], str]] = {
    "suite": lambda: keys(suite.Suite, ("name", "files")),
    "server": lambda: keys(suite.Server),
    "request": lambda: keys(suite.Request),
    "draft": lambda: keys(suite.Draft),
    "protocol": lambda: keys(suite.Protocol),
    "require": lambda: keys(suite.Require),
    "limits": lambda: keys(suite.GateLimits),
    "axes": axes,
    "metrics": metric_table,
    "gates-of-a-window": lambda: overview(window_gates),
    "gates-of-a-run": lambda: overview(run_wide_gates),
    "each-gate-of-a-window": lambda: sections(window_gates),
    "each-gate-of-a-run": lambda: sections(run_wide_gates),
    "each-gate-of-a-trace": lambda: sections(trace_gates),
    "commands": command_reference,
    "options": pytest_options,
    "fixtures": fixture_table,
    "mark": mark_table,
    "cell": lambda: keys(cellfile.CellAsked),
    "cell-modules": lambda: keys(cellfile.ModulesAsked),
    "cell-figure": lambda: keys(cellfile.Figure),
    "cell-curve": lambda: keys(cellfile.StatedCurve),
    "cell-overheads": lambda: keys(cellfile.OverheadAsked),
    "cell-link": lambda: keys(cellfile.LinkAsked),
    "cell-answers": lambda: keys(cellfile.AnswersAsked),
    "cell-stated": lambda: keys(cellfile.StatedAsked),
    "cell-load": lambda: keys(cellfile.LoadAsked),
}  # fmt: skip
"""What a generated part holds, by its name."""


def filled(page: str) -> str:
    """A page with its generated parts as the code says them now."""
    return PART.sub(lambda part: f"{part[1]}\n{PARTS[part[2]]()}\n{part[3]}", page)


def main() -> None:
    """Write every page anew."""
    for path in sorted(DOCS.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"written: {path.relative_to(DOCS.parent)}")


if __name__ == "__main__":
    main()
