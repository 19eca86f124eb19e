"""What the pages say is so: generated parts, suites, commands, links, messages, names."""

import ast
import contextlib
import dataclasses
import functools
import importlib.util
import io
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pages
import pytest
import typer
import yaml

import pytest_joules
from pytest_joules.cli import app
from pytest_joules.metrics import METRICS
from pytest_joules.session import load_suite
from pytest_joules.suite import GateLimits, Suite

PACKAGE = Path(pytest_joules.__file__).parent
LEAST_OF_A_MESSAGE = 10
"""Fewer characters than this would be found anywhere."""


@pytest.fixture(scope="module")
def generate() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("docs_generate", pages.DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "dont_write_bytecode", True)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def every(things: object) -> pytest.MarkDecorator:
    """One test for each, by its place."""
    listed = list(things)  # type: ignore[call-overload]
    return pytest.mark.parametrize(
        "thing", listed, ids=[pages.shown(t) if isinstance(t, Path) else str(t) for t in listed]
    )


@every(pages.pages())
def test_generated_parts_are_what_the_code_says(generate: ModuleType, thing: Path) -> None:
    text = thing.read_text(encoding="utf-8")
    assert generate.filled(text) == text, f"{pages.shown(thing)} is stale: run 'python docs/generate.py'"


def test_every_part_stands_on_a_page(generate: ModuleType) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in pages.pages())
    assert {name for _, name, _ in generate.PART.findall(text)} == set(generate.PARTS)


def test_every_gate_of_the_code_is_told_of(generate: ModuleType) -> None:
    shown = [*generate.window_gates(), *generate.run_wide_gates(), *generate.trace_gates()]
    named = {
        argument.value
        for tree in trees().values()
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Gate", "_held", "_unseen")
        for argument in (*call.args[:1], *(k.value for k in call.keywords if k.arg == "name"))
        if isinstance(argument, ast.Constant)
    }
    assert named
    assert named <= {gate.name for one in shown for gate in one.examples}


def test_a_gate_is_shown_with_nothing_that_passes(generate: ModuleType) -> None:
    shown = [*generate.window_gates(), *generate.run_wide_gates(), *generate.trace_gates()]
    assert {gate.outcome for one in shown for gate in one.examples} == {"flag", "void"}


def test_every_limit_of_the_gates_is_named_at_its_gate(generate: ModuleType) -> None:
    named = {key for one in (*generate.window_gates(), *generate.run_wide_gates()) for key in one.keys}
    assert {f.name for f in dataclasses.fields(GateLimits)} <= named


def test_every_metric_is_defined() -> None:
    assert set(METRICS) <= set(pages.headings(pages.DOCS / "metrics.md"))


def test_every_environment_variable_is_told_of() -> None:
    used = {
        node.value
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and re.fullmatch(r"JOULES_[A-Z_]+", str(node.value))
    }
    told = {span for span in pages.spans(pages.DOCS / "commands.md") if span.startswith("JOULES_")}
    assert used == told


def suites() -> Iterator[pages.Block]:
    """A yaml block with a key of a suite is one, whole or in part, unless its first line names a file that is none."""
    for block in pages.blocks("yaml"):
        keys = {*yaml.safe_load(block.text)} & {"extends", *(f.name for f in dataclasses.fields(Suite))}
        if keys and (not block.file or block.file.startswith("suites/")):
            yield block


@every(suites())
def test_a_suite_on_a_page_can_be_used(thing: pages.Block, tmp_path: Path) -> None:
    folder = tmp_path / "suites"
    shutil.copytree(pages.ROOT / "suites", folder)
    for block in pages.blocks("yaml"):
        # One may extend another of the same page.
        if block.page == thing.page and block.file.startswith("suites/"):
            (tmp_path / block.file).write_text(block.text)
    file = tmp_path / thing.file if thing.file else folder / "of-a-page.yaml"
    stated = yaml.safe_load(thing.text)
    missing = () if "extends" in stated else {"question", "model"} - {*stated, *stated.get("vary", ())}
    file.write_text("".join(f"{key}: of a page\n" for key in sorted(missing)) + thing.text)
    load_suite(file)


@every(dict.fromkeys(" ".join(words) for _, words in pages.commands(["joules"])))
def test_a_joules_command_on_a_page_can_be_typed(thing: str) -> None:
    words = next(words for _, words in pages.commands(["joules"]) if " ".join(words) == thing)[1:]
    command = typer.main.get_command(all_commands())
    name = "joules"
    while commands := getattr(command, "commands", None):
        name, *words = words
        assert name in commands, f"there is no command {name}"
        command = commands[name]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(typer.Exit):
        command.make_context(name, words)


@every(pages.pages())
def test_a_command_within_a_line_exists(thing: Path, generate: ModuleType) -> None:
    known = generate.commands()
    for span in pages.spans(thing):
        if not re.match(r"joules [a-z]", span):
            continue
        name = next((name for name in known if re.match(rf"joules {name}\b", span)), None)
        assert name, f"there is no command {span}"
        options = {word.split("=")[0] for word in span.partition(" -- ")[0].split() if word.startswith("--")}
        told = generate.command_reference().partition(f"### joules {name}\n")[2].partition("\n### ")[0]
        assert options <= {*re.findall(r"--[\w-]+", told), "--help"}, span


@every(pages.pages())
def test_an_option_of_pytest_within_a_line_exists(thing: Path, generate: ModuleType) -> None:
    known = {name for name, _ in generate.asked().options}
    assert set(re.findall(r"--joules-[a-z]+", " ".join(pages.spans(thing)))) <= known


def test_ini_keys_on_pages_exist(generate: ModuleType) -> None:
    stated = {key for block in pages.blocks("ini") for key in re.findall(r"^(joules_\w+)", block.text, re.MULTILINE)}
    assert stated
    assert stated <= set(generate.asked().inis)


def test_make_targets_on_pages_exist() -> None:
    makefile = (pages.ROOT / "Makefile").read_text()
    asked = {words[1] for _, words in pages.commands(["make"])}
    assert asked
    assert asked <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


@every(pages.pages())
def test_links_lead_somewhere(thing: Path) -> None:
    for target in pages.links(thing):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (thing.parent / name).resolve() if name else thing
        assert file.exists(), target
        if anchor:
            assert anchor in map(pages.anchor, pages.headings(file)), target


def test_every_page_is_in_the_navigation_once() -> None:
    listed: list[str] = []

    def walk(entry: object) -> None:
        if isinstance(entry, str):
            listed.append(entry)
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            walk(inner)

    walk(yaml.safe_load((pages.ROOT / "mkdocs.yml").read_text())["nav"])
    there = [page.relative_to(pages.DOCS).as_posix() for page in pages.pages() if page.is_relative_to(pages.DOCS)]
    assert sorted(listed) == sorted(there)


def quoted() -> list[str]:
    """What the page on troubleshooting gives as printed: code in a heading, and code in bold."""
    text = pages.prose(pages.DOCS / "troubleshooting.md")
    found = [
        span for heading in re.findall(r"^### (.+)$", text, re.MULTILINE) for span in re.findall(r"`([^`]+)`", heading)
    ]
    return found + re.findall(r"\*\*`([^`]+)`", text)


@every(quoted())
def test_a_message_is_one_of_the_code(thing: str) -> None:
    parts = [part.strip() for part in thing.split("…") if part.strip()]
    assert sum(map(len, parts)) >= LEAST_OF_A_MESSAGE, "too short to be found"
    pattern = re.compile(".*?".join(map(re.escape, parts)), re.DOTALL)
    assert any(pattern.search(message) for message in messages())


def all_commands() -> typer.Typer:
    """The command line with every subcommand."""
    for module in (PACKAGE / "cli").glob("*.py"):
        importlib.import_module(f"pytest_joules.cli.{module.stem}".removesuffix(".__init__"))
    return app


@functools.cache
def trees() -> dict[Path, ast.Module]:
    """The package's modules, parsed."""
    return {path: ast.parse(path.read_bytes()) for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def messages() -> tuple[str, ...]:
    """Every text of the code; what is put in when it is told is a gap."""
    found = []
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)
