"""What pytest's terminal shows: the verdict words, the progress while measuring, and the note at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_joules.note import lines
from pytest_joules.sweep import label
from pytest_joules.words import duration

if TYPE_CHECKING:
    from pytest_joules.records import Window
    from pytest_joules.schedule import Step
    from pytest_joules.session import PowerSource, Session
    from pytest_joules.suite import Suite


def status(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
    """Pytest's own category and letter, with the verdict as the word of verbose output."""
    properties = dict(getattr(report, "user_properties", ()))
    registration = properties.get("joules_registration", "registered")
    about = [properties.get("joules_robustness"), registration if registration != "registered" else ""]
    said = ", ".join(str(part) for part in about if part)
    word = str(properties["joules_verdict"]).upper() + (f" ({said})" if said else "")
    if report.when in ("setup", "call") and report.skipped:
        return "skipped", "s", word
    if report.when == "call":
        return (report.outcome, "." if report.passed else "F", word) if report.outcome in ("passed", "failed") else None
    if report.when == "setup" and report.failed:
        return "error", "E", word
    return None


def notes(session: Session, width: int = 80, power: PowerSource | None = None) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of the note of every suite measured in this session; without a title, by what tests were measured."""
    if power is not None and (told := power.told()):
        yield "", [told]
    for name, outcome in session.measured.items():
        if outcome.stored is not None:
            verdicts = list(outcome.verdicts.values())
            shown = lines.note(outcome.stored.run, verdicts, width, session.told_before(name))
            yield f"joules: {name}", [*shown, "", f"result: {_relative(outcome.stored.path, session)}"]
    for name, kept in session.cut_short.items():
        yield f"joules: {name}", [f"cut short: {kept}"]


def summary(terminal: pytest.TerminalReporter, found: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Write the notes; in quiet mode only where each is, and quieter nothing."""
    verbosity = terminal.config.get_verbosity()
    for title, text in found:
        if verbosity < 0:
            if title and verbosity == -1:
                terminal.write_line(f"{title}: {text[-1]}")
            continue
        if title:
            terminal.section(title, sep="=")
        for line in text:
            word, rest = lines.verdict_word(line)
            # pytest knows whether this is a terminal, and heeds NO_COLOR and --color.
            terminal.write(word, **_MARKUP.get(word, {}))
            terminal.write_line(rest)


_MARKUP: dict[str, dict[str, bool]] = {
    "HELD": {"green": True, "bold": True},
    "REFUTED": {"red": True, "bold": True},
    **{word: {"yellow": True, "bold": True} for word in ("VOID", "BROKEN", "UNMEASURED")},
}


def _relative(path: object, session: Session) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        return str(path.relative_to(session.options.root))  # type: ignore[attr-defined]
    return str(path)


def progress_for(config: pytest.Config) -> Bar | Lines | Silent:
    """A live bar on a terminal, plain lines elsewhere, nothing in quiet mode."""
    if config.get_verbosity() < 0:
        return Silent()
    terminal = sys.__stdout__ is not None and sys.__stdout__.isatty()
    return Bar(config) if terminal else Lines(config)


class Silent:
    """Says nothing."""

    def begin(self, suite: Suite, steps: Sequence[Step], done: int = 0) -> None:
        """Nothing."""

    def doing(self, index: int, step: Step, what: str, power_w: float | None) -> None:
        """Nothing."""

    def done(self, index: int, window: Window) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class _Watching(Silent):
    """Keeps the count, the clock and pytest's capturing out of the way while measuring."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._released = contextlib.ExitStack()

    def begin(self, suite: Suite, steps: Sequence[Step], done: int = 0) -> None:
        """Release pytest's hold on the output and start the clock."""
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None:
            self._released.enter_context(capture.global_and_fixture_disabled())
        self._steps, self._suite = list(steps), suite
        self._begun = time.monotonic()
        self._done = self._before = done

    def end(self) -> None:
        """Give the output back to pytest."""
        self._released.close()

    def _left(self) -> str:
        """Time left, from how long the windows so far took."""
        if self._done == self._before or self._done == len(self._steps):
            return ""
        per_window = (time.monotonic() - self._begun) / (self._done - self._before)
        return f", about {duration(per_window * (len(self._steps) - self._done))} left"

    def _name(self, index: int, step: Step) -> str:
        where = label(step.condition) or "the only condition"
        kind = " (control)" if step.role == "control" else ""
        return f"{self._suite.name} {index + 1}/{len(self._steps)}: {where}{kind}, pass {step.pass_index + 1}"


def _result(window: Window) -> str:
    if window.outcome == "void":
        return f"void: {'; '.join(window.reasons)}"
    rate = f"{lines.figure(window.tokens / window.window_s)} tok/s"
    return rate if window.energy_j is None else f"{rate}, {lines.figure(window.energy_j / window.window_s)} W"


class Lines(_Watching):
    """One plain line for each closed window."""

    def begin(self, suite: Suite, steps: Sequence[Step], done: int = 0) -> None:
        """Say what is coming."""
        super().begin(suite, steps, done)
        left = f", {len(steps) - done} of them left" if done else ""
        self._write(f"\njoules: measuring {suite.name}, {len(steps)} windows{left}")

    def say(self, text: str) -> None:
        """Say it."""
        self._write(f"joules: {text}")

    def done(self, index: int, window: Window) -> None:
        """Say what came out."""
        self._done = index + 1
        self._write(f"joules: {self._name(index, self._steps[index])}: {_result(window)}{self._left()}")

    def _write(self, text: str) -> None:
        print(text, file=sys.__stdout__, flush=True)


class Bar(_Watching):
    """A bar that tells the condition, what is being done, the watts just now and the time left."""

    def begin(self, suite: Suite, steps: Sequence[Step], done: int = 0) -> None:
        """Show it."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().begin(suite, steps, done)
        # Drawn once a second: drawing costs the CPU that is being measured.
        columns = (BarColumn(bar_width=8), TextColumn("{task.description}: {task.fields[now]}"))
        self._bar = Progress(*columns, console=Console(file=sys.__stdout__), refresh_per_second=1, transient=True)
        print(file=sys.__stdout__)
        self._bar.start()
        self._task = self._bar.add_task(suite.name, total=len(steps), completed=done, now="")

    def say(self, text: str) -> None:
        """Leave it above the bar."""
        self._bar.console.print(text, highlight=False, markup=False)

    def doing(self, index: int, step: Step, what: str, power_w: float | None) -> None:
        """Change the words beside it."""
        watts = f", {lines.figure(power_w)} W" if power_w is not None else ""
        self._bar.update(self._task, description=self._name(index, step), now=f"{what}{watts}{self._left()}")

    def done(self, index: int, window: Window) -> None:
        """Move it on and leave a line above it."""
        self._done = index + 1
        self._bar.console.print(
            f"{self._name(index, self._steps[index])}: {_result(window)}", highlight=False, markup=False
        )
        self._bar.update(self._task, completed=self._done)

    def end(self) -> None:
        """Take it away."""
        if hasattr(self, "_bar"):
            self._bar.stop()
        super().end()
