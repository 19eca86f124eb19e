"""Everything one pytest session knows: its predictions, their suites, what was measured, and the verdicts.

Knows nothing of pytest; the plugin hands over what was collected and asks for tables and verdicts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import psutil

from pytest_joules import (
    engines,
    history,
    knobs,
    machine,
    meters,
    models,
    protocol,
    registration,
    store,
)
from pytest_joules import suite as suites
from pytest_joules.engines import Engine, Server
from pytest_joules.errors import JoulesError, MeterAbsent, MeterFrozen, Unmeasured, UsageError, Void
from pytest_joules.examining import Examined, examine
from pytest_joules.judging import Case, give, unfinished
from pytest_joules.meters.sampler import Power, PowerWindow
from pytest_joules.models import ModelFile
from pytest_joules.prediction import Prediction, judge
from pytest_joules.records import Run, Scope, Verdict
from pytest_joules.registration import Registration
from pytest_joules.standing import Attempt, stand
from pytest_joules.suite import DEFAULT_ENGINE, Draft, Request, Setting, Suite
from pytest_joules.suite import Server as ServerSpec
from pytest_joules.sweep import Sweep, from_run
from pytest_joules.words import nearest
from pytest_joules.workload import questions

DEFAULT_MODEL = ("smollm2-135m-instruct", "q4_1")
"""What `model_server()` serves when nothing is named: the model that comes with a Python package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person chose on the command line or in the configuration.

    Attributes:
        root: the project's folder.
        results: where runs are kept.
        machine_slug: name of this machine's results; `None` takes the chip and memory.
        model_folders: where models are looked up before the usual places.
        substitutes: model file to use for a name instead.
        servers: programs and addresses of --joules-server, each for every engine or behind the name of one and `=`.
        meter: `auto`, or a source with an optional argument.
        exploratory: measure predictions that are not registered.
        resume: go on with runs that were cut short.
        check: examine the predictions, and neither measure nor refuse anything.
        replay: judge stored runs and measure nothing: `latest`, `all`, or a run's file, id or folder.
    """

    root: Path
    results: Path
    machine_slug: str | None = None
    model_folders: tuple[Path, ...] = ()
    substitutes: dict[str, Path] = field(default_factory=dict)
    servers: tuple[str, ...] = ()
    meter: str = "auto"
    exploratory: bool = False
    resume: bool = False
    replay: str | None = None
    check: bool = False


@dataclass(frozen=True, slots=True)
class Collected:
    """A prediction as found, with where it stands and whether it will run."""

    prediction: Prediction
    module: Path
    selected: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """A suite's outcome in this session: its stored run, or why there is none.

    Attributes:
        also: further stored runs that were judged in a replay, each with its verdicts.
    """

    stored: store.StoredRun | None
    error: Exception | None = None
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    also: tuple[tuple[store.StoredRun, dict[str, Verdict]], ...] = ()


@dataclass(frozen=True, slots=True)
class Hardware:
    """The factories that reach the machine; asked for only when something is really measured."""

    model_server: ModelServers
    warm_chip: protocol.Warm
    power: PowerSource


def _alone() -> None:
    """Raises `Unmeasured` where several pytest workers would measure each other."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        raise Unmeasured(
            f"{workers} pytest workers share this machine and would measure each other; run without -n, or with -n 0"
        )


class PowerSource:
    """Power of this machine: `window()` for any code, `meter()` for a suite's own needs."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._open: Power | None = None
        self._stack = contextlib.ExitStack()
        self.windows: list[PowerWindow] = []

    @contextlib.contextmanager
    def window(self) -> Iterator[PowerWindow]:
        """Measure the energy of a block of code with the best source of this machine; see `Power.window`.

        Raises:
            Unmeasured: this machine has no such source, or several workers share it.
            Busy: another process measures this machine.
            MeterError: it has a source, and that cannot be read.
        """
        _alone()
        with protocol.process_lock("a power window"):
            if self._open is None:
                self._open = self._stack.enter_context(self.meter(scope=None, basis="any", rate_hz=10.0))
            with self._open.window() as opened:
                self.windows.append(opened)
                yield opened

    def told(self) -> str:
        """By what the windows of this session were measured, and what speaks against them; empty when there was none."""
        if not self.windows:
            return ""
        chosen, count = self.windows[0].chosen, len(self.windows)
        said = [f"{count} window{'' if count == 1 else 's'}"]
        for word, outcomes in (("void", {"void"}), ("flagged", {"flag", "not evaluable"})):
            against = [{g.name for g in window.gates if g.outcome in outcomes} for window in self.windows]
            if any(against):
                said.append(f"{sum(map(bool, against))} {word} ({', '.join(sorted(set().union(*against)))})")
        return f"joules: power by {chosen.name} ({chosen.basis}), {', '.join(said)}"

    def meter(self, *, scope: Scope | None, basis: str, rate_hz: float, without: Container[str] = ()) -> Power:
        """The meter a suite needs, not yet started. Raises `Unmeasured` when this machine has none."""
        try:
            return Power(meters.choose(self._wanted, scope=scope, basis=basis, without=without), rate_hz)
        except MeterAbsent as error:
            raise Unmeasured(str(error)) from error

    @property
    def named(self) -> bool:
        """The person named the source, so that no other may take its place."""
        return self._wanted != "auto"

    def close(self) -> None:
        """Stop reading."""
        self._stack.close()
        self._open = None


class ModelServers:
    """Starts model servers: `with model_server(parallel=8) as server`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._log_dir: Path | None = None

    def __call__(
        self,
        setting: Setting | None = None,
        *,
        ready_timeout_s: float = 600.0,
        request_timeout_s: float = 3600.0,
        **keys: Any,
    ) -> AbstractContextManager[Server]:
        """A server for a setting, or for the named keys of server, request and draft, model, format and engine."""
        if setting is not None and not isinstance(setting, Setting):
            raise UsageError(
                f"model_server: {setting!r} stands alone; name things, as in model_server(model='NAME', parallel=8)"
            )
        return self._serve(setting or _setting(keys), ready_timeout_s, request_timeout_s)

    @contextlib.contextmanager
    def _serve(self, setting: Setting, ready_timeout_s: float, request_timeout_s: float) -> Iterator[Server]:
        session = self._session
        model = session.model(setting.model, setting.format, setting.engine)
        draft = (
            session.model(setting.draft.draft_model, setting.draft.draft_format) if setting.draft.draft_model else None
        )
        self._log_dir = self._log_dir or _log_folder()
        held = knobs.knobs()
        with contextlib.ExitStack() as stack:
            for name, value in knobs.throughout(setting.knobs).items():
                stack.enter_context(held[name].held(value))
            engine = session.engine(setting.engine)
            server = stack.enter_context(
                engine.serve(setting, model, draft, self._log_dir, ready_timeout_s, request_timeout_s)
            )
            if in_decode := knobs.in_decode(setting.knobs):
                stack.enter_context(knobs.at_hand())
                server = protocol.phased(server, in_decode)
            yield server

    def close(self) -> None:
        """Remove the logs; their ends stand in the messages and the run."""
        if self._log_dir is not None:
            shutil.rmtree(self._log_dir, ignore_errors=True)


def _log_folder() -> Path:
    """A folder for the logs of this process; those of processes that were killed are removed."""
    for left in Path(tempfile.gettempdir()).glob("joules-logs-*-*"):
        pid = left.name.split("-")[2]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"joules-logs-{os.getpid()}-"))


def _setting(keys: dict[str, Any]) -> Setting:
    """A setting from loose keys, each put where it belongs."""
    parts: dict[type, dict[str, Any]] = {ServerSpec: {}, Request: {}, Draft: {}}
    homes = {f.name: cls for cls in parts for f in fields(cls)}
    own = {key: keys.pop(key) for key in ("engine", "model", "format") if key in keys}
    for key, value in keys.items():
        if key not in homes:
            raise UsageError(
                f"model_server: there is no key {key!r}{nearest(key, [*homes, 'engine', 'model', 'format'])}"
            )
        parts[homes[key]][key] = value
    default_model, default_format = DEFAULT_MODEL if "model" not in own else ("", None)
    return Setting(
        engine=own.get("engine", DEFAULT_ENGINE),
        model=own.get("model", default_model),
        format=own.get("format", default_format),
        server=ServerSpec(**parts[ServerSpec]),
        request=Request(**parts[Request]),
        draft=Draft(**parts[Draft]),
        knobs={},
    )


class Session:
    """One session. Suites are measured at most once, whatever pytest does with its fixtures."""

    def __init__(self, options: Options, progress: protocol.Progress) -> None:
        self.options, self._progress = options, progress
        self._collected: dict[str, Collected] = {}
        self._suites: dict[Path, Suite] = {}
        self._measured: dict[str, Measured] = {}
        self._models: dict[tuple[str, str | None], ModelFile] = {}
        self._engines: dict[str, Engine] = {}
        self._told: dict[str, str] = {}
        self.store = store.Store(options.results)
        self.cut_short: dict[str, str] = {}
        self.unreproduced: list[str] = []
        self._replayable: list[store.StoredRun] | None = None

    @functools.cached_property
    def machine_slug(self) -> str:
        """Folder name of this machine's results."""
        return self.options.machine_slug or machine.describe().slug

    @property
    def measured(self) -> dict[str, Measured]:
        """Outcome by suite name, for what was asked for in this session."""
        return self._measured

    def add(self, prediction: Prediction, module: Path, *, selected: bool = True) -> None:
        """A prediction that was collected."""
        self._collected[prediction.name] = Collected(prediction, module, selected)

    def deselect(self, name: str) -> None:
        """It will not run; it is judged all the same when its suite is measured."""
        if name in self._collected:
            self._collected[name] = replace(self._collected[name], selected=False)

    def suite_of(self, collected: Collected, name: str | None = None) -> Suite:
        """The suite a prediction names."""
        named = (name or collected.prediction.suite).partition("@")[0]
        path = suites.find(named, collected.module.parent, self.options.root)
        if path not in self._suites:
            self._suites[path] = load_suite(path)
        return self._suites[path]

    def faults(self) -> tuple[list[str], list[str]]:
        """What is wrong with the collected predictions and suites before anything is measured: (errors, warnings)."""
        found, errors = self.examined()
        errors += [f"{one.prediction.name}: {reason}" for one in found for reason in one.errors]
        doubts = [f"{one.prediction.name}: {reason}" for one in found for reason in one.warnings]
        return errors, doubts if errors else doubts + self._unused_substitutes()

    def _unused_substitutes(self) -> list[str]:
        """Slips in names of models, where there are suites that would ask for them; a test may ask by itself."""
        suites = [self.suite_of(collected) for collected in self._collected.values()]
        settings = [suite.setting(condition) for suite in suites for condition in suite.conditions]
        asked = {name for setting in settings for name in (setting.model, setting.draft.draft_model) if name}
        return [
            f"--joules-model {name}: no suite here asks for this model{nearest(name, asked)}"
            for name in self.options.substitutes
            if asked and name not in asked
        ]

    def examined(self, *, thoroughly: bool = False) -> tuple[list[Examined], list[str]]:
        """Every collected prediction, examined, and what is wrong with suites, each fault once."""
        found: list[Examined] = []
        faults: list[str] = []
        for collected in self._collected.values():
            prediction = collected.prediction
            try:
                suite = self.suite_of(collected)
                if self.options.replay and not self._is_replayed(suite, self.options.replay):
                    continue
                other = self.suite_of(collected, prediction.against) if prediction.against else None
                if not self.options.replay:
                    questions.sets(suite)
            except UsageError as error:
                faults += [line for line in str(error).splitlines() if line not in faults]
                continue
            _, foreign = self._closure(collected, suite)
            around = self._table_near(suite) if thoroughly else None
            found.append(examine(prediction, suite, other, foreign, around, thoroughly=thoroughly))
        return found, faults

    def _table_near(self, suite: Suite) -> Sweep | None:
        """The newest stored table of a suite, of this machine or another."""
        stored = self.store.latest(self.machine_slug, suite.name) or self.store.latest(None, suite.name)
        return from_run(stored.run) if stored and stored.run.axes == suite.axes else None

    def standing(self, name: str) -> Registration:
        """What git shows of a collected prediction as it is now."""
        return self._registered(name)

    def impossible(self, suite: Suite) -> str:
        """Why a suite cannot be measured here; empty when it can, as far as that shows without trying."""
        try:
            settings = [suite.setting(condition) for condition in suite.conditions]
            self._random_weights(suite, settings)
            for setting in settings:
                self.engine(setting.engine)
            protocol.check_settings(settings)
            meters.choose(self.options.meter, scope=suite.require.wanted_scope, basis=suite.require.basis)
        except JoulesError as error:
            return str(error)
        return ""

    def model(self, name: str, form: str | None, engine: str = "") -> ModelFile:
        """A whole model file by name, or what is known of it where the engine has files of its own and none is here.

        Raises:
            Unmeasured: it is not here.
            UsageError: it is damaged.
        """
        try:
            return self._file(name, form)
        except Unmeasured:
            unseen = engines.unseen_model(self.engine(engine), name, form) if engine else None
            if unseen is None:
                raise
            return unseen

    def _file(self, name: str, form: str | None) -> ModelFile:
        key = (name, form)
        if key not in self._models:
            folders = models.folders(self.options.model_folders, self.options.root)
            suites_folder = self.options.root / "suites"
            found = models.inspect(models.find(name, form, folders, self.options.substitutes, suites_folder))
            self._models[key] = replace(found, substitute=name in self.options.substitutes)
        return self._models[key]

    def _files(self, setting: Setting) -> dict[tuple[str, str | None], ModelFile]:
        """The model of a setting, and its draft model, by name and format."""
        named = [(setting.model, setting.format)]
        if setting.draft.draft_model:
            named.append((setting.draft.draft_model, setting.draft.draft_format))
        return {key: self.model(*key, setting.engine) for key in named}

    def _random_weights(self, suite: Suite, settings: Sequence[Setting]) -> list[str]:
        """Names that mean a real model and are served with random weights, in words.

        Raises:
            Unmeasured: the suite requires measured energy, or some of its conditions have real weights and others random ones.
        """
        files = [self._files(setting) for setting in settings]
        random = {name: file.path.name for each in files for (name, _), file in each.items() if file.synthetic}
        if random and suite.require.basis == "measured":
            raise Unmeasured(
                f"suite {suite.name} requires basis: measured, and {next(iter(random.values()))} has random weights, whose energy is "
                "no model's; name a file with real ones, or measure its speed with require: {basis: any}"
            )
        if random and not all(any(file.synthetic for file in each.values()) for each in files):
            raise Unmeasured(
                f"suite {suite.name}: {', '.join(random.values())} has random weights and other conditions have real ones, whose energies "
                "are not compared; measure them in two suites"
            )
        return [f"model {n}: {file} has random weights" for n, file in random.items() if "synthetic" not in n.lower()]

    def engine(self, name: str) -> Engine:
        """An engine by name."""
        if name not in self._engines:
            self._engines[name] = engines.find(name, engines.where(name, self.options.servers))
        return self._engines[name]

    def table(self, name: str, hardware: Callable[[], Hardware]) -> Sweep:
        """The table of a prediction's suite; measured on first use.

        Raises:
            Unmeasured, Void, UsageError and the like: with the full reason the first time, then in short.
        """
        collected = self._collected[name]
        suite = self.suite_of(collected)
        if collected.prediction.against and not self.options.replay:
            # Asked first: what it compares with may be missing, and then nothing need be measured for it.
            self.against(name)
        if suite.name not in self._measured:
            stored = None
            try:
                if self.options.replay:
                    outcome = self._replay(suite, self.options.replay)
                else:
                    stored = self._measure(suite, hardware)
                    outcome = Measured(stored, None, self._judge_all(suite, stored))
            except Exception as error:  # whatever it is, it must not be measured into again by the next prediction
                self._measured[suite.name] = Measured(stored, error)
            except BaseException as error:  # interrupted: pytest ends, and only the summary can still tell what is kept
                self.cut_short[suite.name] = "; ".join(getattr(error, "__notes__", ())) or "nothing was measured yet"
                raise
            else:
                self._measured[suite.name] = outcome
        outcome = self._measured[suite.name]
        if outcome.error is not None:
            raise self._shortened(suite.name, name, outcome.error)
        if outcome.stored is None:
            raise Void(f"suite {suite.name} has neither a run nor a reason")
        return from_run(outcome.stored.run)

    def give_up(self, name: str, error: JoulesError) -> None:
        """A prediction's suite was stopped from outside, and is not begun again for the next prediction."""
        suite = self.suite_of(self._collected[name]).name
        self._measured[suite] = Measured(None, error)
        self._told[suite] = name

    def against(self, name: str) -> Sweep:
        """The latest complete run, on this machine, of the suite a prediction compares with."""
        collected = self._collected[name]
        other = collected.prediction.against
        replayed = self._measured.get(self.suite_of(collected).name) if self.options.replay else None
        machine_of = replayed.stored.run.machine_slug if replayed and replayed.stored else self.machine_slug
        stored = self._compared(other, machine_of)
        if stored is None:
            raise Unmeasured(
                f"no complete run of suite {other} on this machine ({self.machine_slug}); measure that suite first"
            )
        return from_run(stored.run)

    def _compared(self, against: str | None, machine_slug: str) -> store.StoredRun | None:
        """The latest complete run that a prediction compares with: of the same machine, or of the one named behind an @."""
        if not against:
            return None
        suite, _, other_machine = against.partition("@")
        return self.store.latest(other_machine or machine_slug, suite)

    def verdict(self, name: str) -> Verdict | None:
        """The verdict on a prediction, once its suite has been measured."""
        collected = self._collected.get(name)
        if collected is None:
            return None
        outcome = self._measured.get(self.suite_of(collected).name)
        return outcome.verdicts.get(name) if outcome else None

    def _shortened(self, suite: str, prediction: str, error: Exception) -> Exception:
        """The error itself once; to other predictions one that points back to it. A skip keeps its reason: pytest folds equal ones."""
        # A prediction that is tried again hears it in full again, because only its last try is shown.
        if self._told.setdefault(suite, prediction) == prediction or isinstance(error, Unmeasured):
            return error
        return JoulesError(f"suite {suite} was not measured: as above")

    def _on_suite(self, suite: Suite) -> list[Collected]:
        return [c for c in self._collected.values() if self.suite_of(c).name == suite.name]

    def _closure(self, collected: Collected, suite: Suite) -> tuple[list[Path], list[str]]:
        named = [suite]
        if collected.prediction.against:
            named.append(self.suite_of(collected, collected.prediction.against))
        others = [file for one in named for file in (*one.files, *questions.own_files(one, self.options.root))]
        own = self.options.root / "suites" / models.catalogue.FILE_NAME
        others += [own] if own.is_file() else []  # it says which file a suite's model is
        return registration.closure(collected.module, self.options.root, others)

    @functools.cache  # noqa: B019  lives as long as the session
    def _registered(self, name: str) -> Registration:
        collected = self._collected[name]
        return registration.examine(self._closure(collected, self.suite_of(collected))[0])

    def _measure(self, suite: Suite, hardware: Callable[[], Hardware]) -> store.StoredRun:
        _alone()
        on_suite = self._on_suite(suite)
        if not self.options.exploratory:
            self._refuse_unregistered([c for c in on_suite if c.selected])
        settings = [suite.setting(condition) for condition in suite.conditions]
        found = {key: file for setting in settings for key, file in self._files(setting).items()}
        random_weights = self._random_weights(suite, settings)
        asked = questions.sets(suite)
        used = {name: self.engine(name) for name in dict.fromkeys(s.engine for s in settings)}
        substituted = [
            f"model {name}: {file.path.name} was used instead" for (name, _), file in found.items() if file.substitute
        ]
        mislabelled = [
            f"model {name}: {said}" for (name, form), file in found.items() if (said := models.other_format(file, form))
        ]
        with protocol.process_lock(f"suite {suite.name}"):
            left = self.store.interrupted(self.machine_slug, suite.name)
            if self.options.resume and left is None and (unjudged := self._unjudged(suite)):
                return unjudged
            knobs.put_back()
            protocol.check_settings(settings)
            tools = hardware()
            deaf: list[str] = []
            while True:
                power = tools.power.meter(
                    scope=suite.require.wanted_scope,
                    basis=suite.require.basis,
                    rate_hz=suite.protocol.rate_hz,
                    without=deaf,
                )
                bench = protocol.Bench(
                    model_server=tools.model_server,
                    warm=tools.warm_chip,
                    power=power,
                    store=self.store,
                    machine_slug=self.machine_slug,
                    models=found,
                    engines=used,
                    progress=self._progress,
                    provenance=self._provenance(on_suite),
                    deviations=(
                        *substituted,
                        *mislabelled,
                        *random_weights,
                        *(f"meter {name} was passed over: it did not follow the chip" for name in deaf),
                    ),
                    resume=left if self.options.resume else None,
                    notices=_kept(left) if left and not self.options.resume else (),
                    questions=asked,
                )
                try:
                    with power:
                        return protocol.measure(suite, bench)
                except MeterFrozen:
                    if tools.power.named:
                        raise
                    deaf.append(power.chosen.name)

    def _unjudged(self, suite: Suite) -> store.StoredRun | None:
        """The newest run of this suite as it stands, where it was killed after the last window and before any verdict."""
        stored = self.store.latest(self.machine_slug, suite.name)
        if stored is None or stored.verdicts_path.exists() or stored.run.suite != store.plain(suite.record()):
            return None
        return stored

    def _refuse_unregistered(self, selected: Sequence[Collected]) -> None:
        found = [self._registered(collected.prediction.name) for collected in selected]
        loose = [registered for registered in found if registered.word == "exploratory"]
        changed = dict.fromkeys(path for registered in loose for path in registered.changed)
        if changed:
            names = " ".join(shlex.quote(path) for path in changed)
            top = loose[0].top
            git = "git" if top in (None, Path.cwd()) else f"git -C {shlex.quote(os.path.relpath(str(top)))}"
            raise UsageError(
                f"said after the fact? {names} {'is' if len(changed) == 1 else 'are'} not committed as now written: "
                f"{git} add {names} && {git} commit -m 'predict', or measure without registration: --joules-exploratory"
            )

    def _provenance(self, on_suite: Sequence[Collected]) -> dict[str, Any]:
        found = {c.prediction.name: self._registered(c.prediction.name) for c in on_suite}
        blobs = {path: blob for r in found.values() for path, blob in r.blobs.items()}
        head = next((r.head for r in found.values() if r.head), "")
        words = {name: r.word for name, r in found.items()}
        modules = {self._collected[name].module: r.commit for name, r in found.items()}
        shown = [registration.evidence(module, commit) for module, commit in modules.items()]
        # Stronger than a local history: somebody else has seen the commit, or somebody has put a name to it.
        evidence = {
            "on_a_remote": bool(shown) and all(e.remotes for e in shown),
            "signed": bool(shown) and all(e.signed for e in shown),
        }
        return {
            "head": head, "blobs": blobs, "predictions": words, "evidence": evidence, "exploratory": self.options.exploratory,
        }  # fmt: skip

    def _judge_all(self, suite: Suite, stored: store.StoredRun, *, replayed: bool = False) -> dict[str, Verdict]:
        """Every collected prediction on the suite, the deselected too: a claim is not taken back by leaving it out."""
        # Read once for all predictions: a results folder may hold very many runs.
        known, earlier = history.known(self.store, stored.run.machine_slug), self._earlier(stored.run)
        verdicts = {
            c.prediction.name: self._judge(c, stored, known, earlier, replayed=replayed) for c in self._on_suite(suite)
        }
        said = store.load_verdicts(stored)
        verdicts = {name: _with_former(given, said) for name, given in verdicts.items()}
        before = {v.prediction: v for v in said}
        if replayed:
            verdicts = {name: _standing_kept(given, before.get(name)) for name, given in verdicts.items()}
        fresh = [v for v in verdicts.values() if not _alike(before.get(v.prediction), v)]
        # A replay that comes to what stands there already adds nothing.
        self.store.append_verdicts(stored, fresh if replayed else list(verdicts.values()))
        return verdicts

    def _judge(
        self,
        collected: Collected,
        stored: store.StoredRun,
        known: Sequence[Attempt],
        earlier: Sequence[Sequence[Verdict]],
        *,
        replayed: bool,
    ) -> Verdict:
        prediction, run = collected.prediction, stored.run
        registered = self._registered(prediction.name)
        other = self._compared(prediction.against, run.machine_slug)
        case = Case(
            prediction=prediction,
            run=run,
            against=other.run if other else None,
            standing=stand(
                registered, run, known,
                functools.cache(lambda commit: registration.contains(collected.module, commit, registered.blobs)),
            ),
            registered=registered,
            earlier=[
                first
                for given in earlier
                if (first := next((v for v in given if v.prediction == prediction.name and v.blobs == registered.blobs), None))
            ],
            selected=collected.selected,
            replayed=replayed,
            judged_utc=store.utc_label(store.utc_now()),
        )  # fmt: skip
        return give(case)

    def told_before(self, suite_name: str) -> list[str]:
        """Every other attempt at the suite's data on the machine of its run, in words: what came of it, or would have."""
        stored = self._measured[suite_name].stored
        return [] if stored is None else history.others(self.store, stored.run, self._would_have_said)

    def _would_have_said(self, attempt: Attempt) -> str:
        """What the predictions would have been found to be on what an interrupted run had measured."""
        left = next(
            (j for j in self.store.journals(attempt.machine, attempt.suite) if j.run_id == attempt.run_id), None
        )
        here = next((c for c in self._collected.values() if self.suite_of(c).name == attempt.suite), None)
        if left is None or here is None:
            return ""
        suite = self.suite_of(here)
        if left.header["suite"] != store.plain(suite.record()):
            return ""
        sweep = from_run(unfinished(left, suite, attempt.machine))
        said = [
            f"{judged.word}: {c.prediction.claim}"
            for c in self._on_suite(suite)
            if not c.prediction.against and (judged := judge(c.prediction, sweep)).word in ("held", "refuted")
        ]
        return f"; would have said {'; '.join(said)}" if said else ""

    def _earlier(self, run: Run) -> list[list[Verdict]]:
        """The verdicts on each earlier complete run of the same suite on the same machine, oldest first.

        What was found of random weights is no record of real ones.
        """
        return [
            store.load_verdicts(stored)
            for stored in self.store.runs(run.machine_slug, run.suite_name)
            if stored.run.run_id < run.run_id
            and stored.run.complete
            and (stored.run.meter.basis == "synthetic") == (run.meter.basis == "synthetic")
        ]

    def _replay(self, suite: Suite, wanted: str) -> Measured:
        """Judge stored runs of a suite again; the newest of this machine, else of any, stands for the suite.

        Raises:
            Unmeasured: there is none.
        """
        runs = self._to_replay(suite, wanted)
        if not runs:
            raise Unmeasured(f"no stored run of suite {suite.name} to replay in {self.store.folder.name} ({wanted})")
        judged = []
        for stored in runs:
            before = {v.prediction: v for v in store.load_verdicts(stored)}
            verdicts = self._judge_all(suite, stored, replayed=True)
            self.unreproduced += [
                fault for name, given in verdicts.items() if (fault := _unlike(before.get(name), given, stored.run))
            ]
            judged.append((stored, verdicts))
        judged.sort(key=lambda pair: (pair[0].run.machine_slug == self.machine_slug, pair[0].run.run_id))
        *others, (stored, verdicts) = judged
        return Measured(stored, None, verdicts, tuple(others))

    def _is_replayed(self, suite: Suite, wanted: str) -> bool:
        # What is wrong with the name of a run is told where it is replayed.
        with contextlib.suppress(UsageError):
            return bool(self._to_replay(suite, wanted))
        return False

    def _to_replay(self, suite: Suite, wanted: str) -> list[store.StoredRun]:
        """The stored runs of a suite that are meant."""
        if self._replayable is None:
            self._replayable = self._replayed_runs(wanted)
        return [stored for stored in self._replayable if stored.run.suite_name == suite.name]

    def _replayed_runs(self, wanted: str) -> list[store.StoredRun]:
        """The stored runs that are meant.

        Raises:
            UsageError: there is no such file, folder or id.
        """
        if wanted == "all":
            return list(self.store.runs())
        if wanted == "latest":
            newest: dict[tuple[str, str], store.StoredRun] = {}
            for stored in self.store.runs():
                if stored.run.complete:
                    newest[stored.run.machine_slug, stored.run.suite_name] = stored
            return list(newest.values())
        path = Path(wanted)
        if path.is_dir():
            return [store.load(file) for file in store.run_files(path)]
        if path.is_file():
            return [store.load(path)]
        found = [stored for stored in self.store.runs() if stored.run.run_id == wanted]
        if not found:
            raise UsageError(
                f"--joules-replay {wanted}: there is no such run, file or folder; say latest or all, or name one"
            )
        return found


def load_suite(path: Path) -> Suite:
    """A suite file, checked against the knobs and engines that exist here. Raises `UsageError` as `suite.load` does."""
    return suites.load(path, tuple(knobs.knobs()), tuple(engines.engines()))


def _with_former(given: Verdict, said: Sequence[Verdict]) -> Verdict:
    """A verdict with what the same prediction was first found to be on this run, if its text was another then."""
    first = next((v for v in said if v.prediction == given.prediction), None)
    if first is None or dict(first.blobs) == dict(given.blobs) or not first.blobs:
        return given
    return replace(given, changed=first.told)


def _standing_kept(given: Verdict, before: Verdict | None) -> Verdict:
    """How an unchanged prediction stands to a run was settled when it was measured; later attempts are not before it."""
    if before is None or not before.blobs or dict(before.blobs) != dict(given.blobs):
        return given
    # Said again word for word it is still the verdict that was given then.
    replayed = given.replayed and (before.replayed or before.told != given.told)
    return replace(
        given, registration=before.registration, registration_detail=before.registration_detail, replayed=replayed
    )


def _alike(before: Verdict | None, now: Verdict) -> bool:
    """Whether a verdict says again what was said before."""
    return before is not None and all(
        getattr(before, name) == getattr(now, name)
        for name in ("word", "robustness", "registration", "against_run_id", "blobs", "asserted")
    )


def _unlike(before: Verdict | None, now: Verdict, run: Run) -> str:
    """Why a stored verdict cannot be reproduced; empty when it can, or when the prediction has changed since."""
    if now.published and now.word in ("held", "refuted") and now.word != now.published:
        return f"{now.prediction} on {run.run_id}: {now.word}, and published as {now.published}"
    if before is None or dict(before.blobs) != dict(now.blobs):
        return ""
    if (before.word, before.robustness) != (now.word, now.robustness):
        return f"{now.prediction} on {run.run_id}: {before.told} was stored, and it is {now.told} now"
    return ""


def _kept(left: store.Interrupted) -> tuple[str, ...]:
    """What to say when a run begins anew although an earlier one was cut short."""
    windows = "1 window" if left.closed == 1 else f"{left.closed} windows"
    # After another start of the machine its clock has begun anew, and the two parts cannot be one run.
    way = "--joules-resume goes on with it" if left.header.get("boot") == machine.boot_id() else "of another boot"
    return (f"a run of this suite that was cut short after {windows} is kept; this one begins anew ({way})",)
