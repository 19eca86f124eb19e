"""Hooks only: each hands over to the session object or to the report. Imports nothing heavy when pytest loads it."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from pytest_joules.errors import Busy, JoulesError, MeterError, Unmeasured
from pytest_joules.fixtures import against, model_server, power, sweep, warm_chip
from pytest_joules.stash import COLLECTOR, POWER, WORKERS_NOTES

__all__ = ["against", "model_server", "power", "sweep", "warm_chip"]

MARKER = (
    "joules(suite, against=None, primary=False, decide=None, threshold=None, holds=None, fails=None): "
    "the test is a prediction about the table of a suite"
)

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "meter",
        {
            "metavar": "NAME",
            "help": "power source: auto (default), or a name from 'joules meters', with :ARGUMENT where it takes one",
        },
    ),
    (
        "server",
        {
            "metavar": "[ENGINE=]PATH|URL",
            "action": "append",
            "help": "llama-server program (default: on PATH, else the one installed with llama-cpp-python); for engine: openai the "
            "address of a server that runs on this machine; may be repeated, with ENGINE= for one engine of several alone",
        },
    ),
    (
        "models",
        {"metavar": "DIR", "action": "append", "help": "folder where model names are looked up; may be repeated"},
    ),
    (
        "model",
        {"metavar": "NAME=PATH", "action": "append", "help": "use this file for a model name; recorded as a deviation"},
    ),
    ("results", {"metavar": "DIR", "help": "folder of the results (default: results/ in the root directory)"}),
    ("machine", {"metavar": "SLUG", "help": "name of this machine's results (default: chip and memory)"}),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("joules", "energy per token")
    for name, settings in OPTIONS:
        group.addoption(f"--joules-{name}", dest=f"joules_{name}", default=None, **settings)
        if settings.get("action") == "append":
            parser.addini(f"joules_{name}", settings["help"], type="linelist", default=None)
        else:
            parser.addini(f"joules_{name}", settings["help"], default=None)
    group.addoption(
        "--joules-exploratory",
        action="store_true",
        dest="joules_exploratory",
        help="measure predictions that are not committed; every verdict then says so",
    )
    group.addoption(
        "--joules-resume",
        action="store_true",
        dest="joules_resume",
        help="go on with a run that was cut short on this boot, and measure anew where there is none",
    )
    group.addoption("--joules-check", action="store_true", dest="joules_check", help="for the command 'joules check'")
    group.addoption(
        "--joules-replay",
        metavar="RUN",
        dest="joules_replay",
        help="judge stored runs and measure nothing: latest, all, or the file, id or folder of runs",
    )
    parser.addini("joules_exploratory", "as --joules-exploratory", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    if marked := [item for item in items if item.get_closest_marker("joules")]:
        from pytest_joules.collecting import collector_of

        collector_of(config).collect(marked)
    return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    # Only here has everyone deselected: --lf and the like do so after all other hooks that change the items.
    collector = session.config.stash.get(COLLECTOR, None)
    if collector is not None:
        collector.close(session.items)
    elif any("power" in getattr(item, "fixturenames", ()) for item in session.items):
        from pytest_joules.collecting import collector_of

        collector_of(session.config).close(session.items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    collector = item.config.stash.get(COLLECTOR, None)
    try:
        if collector is not None:
            collector.admit(item)
        yield
        if collector is not None:
            collector.judge(item)
    except JoulesError as error:
        from pytest_joules.collecting import tell

        tell(item, error)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    except (Busy, MeterError, Unmeasured) as error:
        from pytest_joules.collecting import tell

        tell(item, error)


def pytest_report_teststatus(
    report: pytest.TestReport | pytest.CollectReport,
) -> tuple[str, str, tuple[str, dict[str, bool]] | str] | None:
    if not any(name == "joules_verdict" for name, _ in getattr(report, "user_properties", ())):
        return None
    from pytest_joules.reporting import status

    return status(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # With -n 1 the session that measures has no terminal, and the one that has a terminal measures nothing.
    output = getattr(session.config, "workeroutput", None)
    collector = session.config.stash.get(COLLECTOR, None)
    if collector is not None and collector.session.unreproduced:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if output is not None and collector is not None:
        from pytest_joules.reporting import notes

        output["joules"] = list(notes(collector.session, power=session.config.stash.get(POWER, None)))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.setdefault(WORKERS_NOTES, []).extend(getattr(node, "workeroutput", {}).get("joules", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    collector = config.stash.get(COLLECTOR, None)
    found = config.stash.get(WORKERS_NOTES, [])
    if found or collector is not None:
        from pytest_joules.reporting import notes, summary

        width = min(terminalreporter._tw.fullwidth, 120)
        power = config.stash.get(POWER, None)
        # Where workers measured, nothing was measured here.
        summary(terminalreporter, found or (notes(collector.session, width, power) if collector is not None else ()))
