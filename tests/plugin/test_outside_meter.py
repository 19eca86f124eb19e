import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-meter.md"


def block(language: str) -> str:
    """The only block of that language on the page."""
    [text] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return text


@pytest.fixture
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package of the page, as an installer would leave it."""
    site = tmp_path_factory.mktemp("site-packages")
    project = tomllib.loads(block("toml"))["project"]
    [(group, meters)] = project["entry-points"].items()
    [(name, module)] = meters.items()
    (site / f"{module}.py").write_text(block("python"))
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH")))))


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Path]:
    """A driver's file: 60 W and a flickering last digit, renewed ten times a second."""
    file, stop = tmp_path / "power_mw", threading.Event()
    file.write_text("60000")

    def drive() -> None:
        digit = 0
        while not stop.wait(0.1):
            digit = (digit + 3) % 10
            partial = file.with_suffix(".new")
            partial.write_text(str(60_000 + digit))
            partial.replace(file)

    thread = threading.Thread(target=drive)
    thread.start()
    yield file
    stop.set()
    thread.join()


def joules(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "pytest_joules", *words], capture_output=True, text=True, timeout=60)


def test_it_is_found_and_measures(installed, reading) -> None:
    done = joules("measure", "--json", "--meter", f"wattmeter:{reading}", "--seconds", "1")
    record = json.loads(done.stdout)
    assert (record["meter"], record["scope"], record["basis"]) == ("wattmeter", "wall", "measured")
    assert record["power_w"] == pytest.approx(60.0, rel=0.01)


def test_it_is_listed_with_its_rail_or_with_what_to_do(installed, reading) -> None:
    words = ("--meter", f"wattmeter:{reading}", "--meter", "wattmeter")
    there, not_asked_for = json.loads(joules("meters", "--json", "--seconds", "0.3", *words).stdout)["sources"]
    assert (there["usable"], not_asked_for["usable"]) == (True, False)
    assert [rail["rail"] for rail in there["rails"]] == ["wattmeter.socket"]
    assert "--joules-meter wattmeter:FILE" in not_asked_for["next_step"]


def test_a_test_can_put_a_budget_on_any_function_with_it(installed, reading, pytester, monkeypatch) -> None:
    # Set where these tests themselves run in several workers, among which no window is measured.
    monkeypatch.delenv("PYTEST_XDIST_WORKER_COUNT", raising=False)
    pytester.makepyfile(
        """
        import time

        def test_budget(power):
            with power.window() as window:
                time.sleep(1.0)
            assert 50 < window.energy_j < 80
        """
    )
    pytester.runpytest_subprocess(f"--joules-meter=wattmeter:{reading}").assert_outcomes(passed=1)
