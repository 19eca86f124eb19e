"""From pytest's items to predictions, and from verdicts back to pytest's outcomes."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_joules import meters
from pytest_joules.errors import JoulesError, Unmeasured, UsageError, Void
from pytest_joules.prediction import TABLES, Prediction
from pytest_joules.reporting import progress_for
from pytest_joules.session import Hardware, Options, Session
from pytest_joules.stash import COLLECTOR
from pytest_joules.sweep import Sweep
from pytest_joules.words import printable

MARK_KEYS = ("suite", "against", "primary", "decide", "threshold", "holds", "fails")
"""What pytest.mark.joules may be given beside the suite's name."""


class PredictionWarning(pytest.PytestWarning):
    """Something about a prediction that its author may not have meant."""


class Collector:
    """The session's predictions as pytest found them."""

    def __init__(self, config: pytest.Config) -> None:
        self.session = Session(options(config), progress_for(config))
        self._items: dict[str, pytest.Item] = {}
        self.faults: list[str] = []
        self._is_worker = hasattr(config, "workerinput")

    def collect(self, items: Sequence[pytest.Item]) -> None:
        """Take in every prediction, also those that will be deselected."""
        if sys.flags.optimize:
            self.faults.append(
                "python runs with -O or PYTHONOPTIMIZE: assert statements do nothing, so nothing would be judged; run without it"
            )
            return
        for item in items:
            try:
                prediction = _prediction(item)
            except UsageError as error:
                self.faults.append(str(error))
                continue
            self._items[item.nodeid] = item
            self.session.add(prediction, item.path)

    def close(self, selected: Sequence[pytest.Item]) -> None:
        """After deselection: remember what was left out, and check everything before anything is measured.

        Raises:
            pytest.UsageError: something cannot be a prediction or a suite, or assertions are switched off.
        """
        kept = {item.nodeid for item in selected}
        for name in self._items:
            if name not in kept:
                self.session.deselect(name)
        if self.session.options.check:
            return
        errors, doubts = self.session.faults()
        self.faults += errors
        try:
            meters.check_names(self.session.options.meter)
        except UsageError as error:
            self.faults.append(f"--joules-meter: {error}")
        # A worker of pytest-xdist that ends while collecting takes the session down without a reason: `admit` tells it.
        if self.faults and not self._is_worker:
            raise pytest.UsageError("\n".join(self.faults))
        for doubt in doubts:
            try:
                warnings.warn(PredictionWarning(doubt), stacklevel=2)
            except PredictionWarning as error:  # where warnings are errors
                raise pytest.UsageError(str(error)) from None

    def admit(self, item: pytest.Item) -> None:
        """Before an item's fixtures run.

        Raises:
            UsageError: `close` found faults.
        """
        if self.faults and item.get_closest_marker("joules"):
            raise UsageError("\n".join(self.faults))

    def table(self, item: pytest.Item, hardware: Callable[[], Hardware]) -> Sweep:
        """The table an item is about."""
        self._known(item)
        try:
            return self.session.table(item.nodeid, hardware)
        except pytest.fail.Exception as failed:
            # A time limit, as pytest-timeout sets one: where it struck tells nothing.
            error = JoulesError("; ".join([str(failed), *getattr(failed, "__notes__", ())]))
            self.session.give_up(item.nodeid, error)
            raise error from None

    def against(self, item: pytest.Item) -> Sweep:
        """The stored table an item compares with."""
        self._known(item)
        return self.session.against(item.nodeid)

    def _known(self, item: pytest.Item) -> None:
        if item.nodeid not in self._items:
            raise UsageError(
                f"{item.nodeid}: it takes a table but names no suite; mark it with pytest.mark.joules('SUITE')"
            )

    def judge(self, item: pytest.Item) -> None:
        """After an item's fixtures have run: put its verdict into the report; void and broken are errors of set-up."""
        # --setup-plan runs no fixture and leaves None in its place.
        if not isinstance(getattr(item, "funcargs", {}).get("sweep"), Sweep):
            return
        verdict = self.session.verdict(item.nodeid)
        if verdict is None:
            return
        stored = next(
            (m.stored for m in self.session.measured.values() if m.stored and m.stored.run.run_id == verdict.run_id),
            None,
        )
        _record(
            item,
            joules_verdict=verdict.word,
            joules_robustness=verdict.robustness,
            joules_registration=verdict.registration,
            joules_basis=stored.run.meter.basis if stored else "",
            joules_scope=stored.run.meter.scope if stored else "",
            joules_run=verdict.run_id,
        )
        if verdict.word in ("void", "broken", "unmeasured"):
            _end(verdict.word, verdict.detail)


def collector_of(config: pytest.Config) -> Collector:
    """The session's collector, made on first need."""
    found = config.stash.get(COLLECTOR, None)
    if found is None:
        found = config.stash[COLLECTOR] = Collector(config)
    return found


_OPTIONS_WITH_PATHS = ("--joules-models", "--joules-results", "--joules-server")


def _check_root(config: pytest.Config) -> None:
    """See that no path behind an option became the project: pytest chooses its root directory before it knows these options.

    Raises:
        pytest.UsageError: the root directory became another one by that: suites and results would be another project's.
    """
    root, here = config.rootpath, config.invocation_params.dir
    as_usual = root == here or (root in here.parents and config.inipath is not None)
    if as_usual or config.getoption("rootdir") or hasattr(config, "workerinput"):
        return
    for option, value in itertools.pairwise(map(str, config.invocation_params.args)):
        if option in _OPTIONS_WITH_PATHS and (here / value).exists():
            raise pytest.UsageError(
                f"{option} {value}: in two words pytest takes the path for one of tests, and took {root} for the project; write "
                f"{option}={value}, or name the project with --rootdir"
            )


def options(config: pytest.Config) -> Options:
    """What was chosen, the command line before the ini file."""
    _check_root(config)

    def chosen(name: str) -> Any:
        given = config.getoption(f"joules_{name}")
        return given if given is not None else config.getini(f"joules_{name}") or None

    def place(name: str, path: str) -> Path:
        # What is typed is meant from where one stands, what is configured from the project's root.
        typed = config.getoption(f"joules_{name}") is not None
        return (config.invocation_params.dir if typed else config.rootpath) / Path(path).expanduser()

    substitutes = {}
    for pair in chosen("model") or ():
        name, equals, path = pair.partition("=")
        if not (name and equals and path):
            raise pytest.UsageError(f"--joules-model {pair}: write NAME=PATH")
        substitutes[name] = place("model", path)
    return Options(
        root=config.rootpath,
        results=place("results", chosen("results") or "results"),
        machine_slug=chosen("machine"),
        model_folders=tuple(place("models", folder) for folder in chosen("models") or ()),
        substitutes=substitutes,
        servers=tuple(chosen("server") or ()),
        meter=chosen("meter") or "auto",
        exploratory=config.getoption("joules_exploratory") or config.getini("joules_exploratory"),
        resume=config.getoption("joules_resume"),
        replay=config.getoption("joules_replay"),
        check=config.getoption("joules_check"),
    )


def tell(item: pytest.Item, error: JoulesError) -> NoReturn:
    """A library's exception as pytest's own outcome, in one line: a skip where nothing can be measured, else an error of set-up."""
    reason = "; ".join([str(error), *getattr(error, "__notes__", ())])
    if not isinstance(error, Unmeasured | Void):
        # Nothing was judged: the suite, the engine or the meter could not be used, which is no verdict.
        raise pytest.fail.Exception(f"joules: {printable(reason)}", pytrace=False) from None
    word = "unmeasured" if isinstance(error, Unmeasured) else "void"
    _record(item, joules_verdict=word)
    _end(word, reason)


def _record(item: pytest.Item, **properties: str) -> None:
    """Properties of an item's report, in place of what an earlier try by pytest-rerunfailures left."""
    kept = [(name, value) for name, value in item.user_properties if name not in properties]
    item.user_properties[:] = [*kept, *properties.items()]


def _end(word: str, reason: str) -> NoReturn:
    # What a server answered stands in it, and is no order to this terminal.
    reason = printable(reason)
    if word == "unmeasured":
        raise pytest.skip.Exception(f"unmeasured: {reason}") from None
    raise pytest.fail.Exception(f"{word}: {reason}", pytrace=False) from None


def _prediction(item: pytest.Item) -> Prediction:
    """The prediction an item is.

    Raises:
        UsageError: it cannot be one.
    """
    marks = list(item.iter_markers("joules"))
    if not isinstance(item, pytest.Function):
        raise UsageError(f"{item.nodeid}: a prediction is a function; this is a {type(item).__name__}")
    names = [
        name for mark in marks for name in (*mark.args, *(mark.kwargs[key] for key in mark.kwargs if key == "suite"))
    ]
    if len(names) != 1 or not isinstance(names[0], str):
        given = ", ".join(map(repr, names)) or "none"
        raise UsageError(f"{item.nodeid}: it needs the name of one suite, pytest.mark.joules('SUITE'); given: {given}")
    # What stands at the function goes before what stands at its class or module.
    said = {key: value for mark in reversed(marks) for key, value in mark.kwargs.items()}
    if unknown := set(said) - set(MARK_KEYS):
        raise UsageError(
            f"{item.nodeid}: pytest.mark.joules takes no {', '.join(sorted(unknown))}; it takes {', '.join(MARK_KEYS)}"
        )
    if said.get("decide") not in (None, "clear"):
        raise UsageError(f"{item.nodeid}: decide={said['decide']!r}; it can be 'clear', or left out")
    if item.get_closest_marker("xfail"):
        raise UsageError(
            f"{item.nodeid}: it is marked xfail; a prediction that is expected to fail is another prediction, state that one"
        )
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else {name: value for name, value in callspec.params.items() if name not in TABLES}
    arguments = item._fixtureinfo.argnames
    against = said.get("against")
    if "sweep" not in arguments:
        raise UsageError(f"{item.nodeid}: it does not take 'sweep', so it says nothing about the suite")
    if "against" in arguments and not isinstance(against, str):
        raise UsageError(
            f"{item.nodeid}: it takes 'against' but names no suite; write pytest.mark.joules(..., against='SUITE')"
        )
    return Prediction(
        name=item.nodeid,
        function=item.obj,
        suite=names[0],
        against=against,
        params={name: value for name, value in params.items() if name in arguments},
        wants=tuple(name for name in TABLES if name in arguments),
        primary=bool(said.get("primary")),
        decide=said.get("decide") or "",
        threshold=str(said.get("threshold") or ""),
        holds=_examples(item, said, "holds"),
        fails=_examples(item, said, "fails"),
    )


def _examples(item: pytest.Item, said: Mapping[str, Any], key: str) -> tuple[Mapping[str, Mapping[Any, float]], ...]:
    """Example tables of a mark: one, or a list of them.

    Raises:
        UsageError: one of them is no table.
    """
    given = said.get(key) or ()
    every = tuple(given) if isinstance(given, list | tuple) else (given,)
    for table in every:
        if not isinstance(table, Mapping) or not all(isinstance(column, Mapping) for column in table.values()):
            raise UsageError(
                f"{item.nodeid}: {key}={given!r} is no example; write {key}={{'energy_per_token_mj': {{1: 100, 8: 40}}}}"
            )
    return every
