import contextlib
import gzip
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_joules import ledger, store
from pytest_joules.errors import UsageError
from pytest_joules.records import Gate, RailEnergy, RequestRecord, Run, Sample, Verdict
from pytest_joules.store import Store, load, load_samples, load_verdicts

SAMPLES = [
    Sample("chip.energy", 100.0, 1000.25),
    Sample("chip.power", 100.0, 20.5),
    Sample("chip.energy", 100.2, 1004.35),
]


@pytest.fixture
def kept(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


@pytest.fixture
def whole(make_run, make_window) -> Run:
    """A run that has something in every part."""
    energy = RailEnergy(
        rail="chip.energy",
        energy_j=200.0,
        uncertainty_j=1.5,
        updates=50,
        refresh_s=0.2,
        longest_gap_s=0.21,
        flags=("x",),
    )
    request = RequestRecord(
        slot=0, round=0, sent_s=0.001, received_s=9.9, prompt_n=20, cache_n=0, predicted_n=128, prompt_ms=60.5, predicted_ms=None,
        stop_type="limit",
    )  # fmt: skip
    gate = Gate(name="prompt cache", outcome="pass", value="0 of 20 prompt tokens from cache", limit="none")
    window = make_window(1, 0, rails=(energy,), requests=(request,), gates=(gate,), engine={"slots": 1})
    return make_run(
        window, make_window(1, 1), samples_file="20261025T101530Z-3fa9c1.samples.jsonl.gz", notes=("naïve “note”",)
    )


def verdict(**changes: object) -> Verdict:
    return Verdict(
        **(
            {"prediction": "test_x.py::test_y", "claim": "It falls.", "word": "held", "blobs": {"a.py": "0" * 40}}
            | changes
        )
    )


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_run_comes_back_as_it_was(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    assert load(stored.path).run == whole
    assert files(kept.folder) == [
        "example-m5-24gb/machine.json",
        "example-m5-24gb/made-up/20261025T101530Z-3fa9c1.json",
        "example-m5-24gb/made-up/20261025T101530Z-3fa9c1.samples.jsonl.gz",
    ]
    assert json.loads((kept.folder / "example-m5-24gb" / "machine.json").read_text()) == whole.machine


def test_samples_are_lines_of_the_trace_format(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    with gzip.open(stored.path.with_name(whole.samples_file), "rt") as file:
        lines = [json.loads(line) for line in file]
    # A counter's readings are joules, all others watts.
    assert lines == [
        {"rail": "chip.energy", "mono": 100.0, "energy_j": 1000.25},
        {"rail": "chip.power", "mono": 100.0, "power_w": 20.5},
        {"rail": "chip.energy", "mono": 100.2, "energy_j": 1004.35},
    ]
    assert load_samples(stored) == SAMPLES


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_a_reading_that_failed_is_null_and_never_zero(kept: Store, whole: Run, figure: float) -> None:
    stored = kept.write(whole, [Sample("chip.power", 100.0, figure), Sample("chip.energy", 100.0, figure)])
    with gzip.open(stored.path.with_name(whole.samples_file), "rt") as file:
        assert [json.loads(line) for line in file] == [
            {"rail": "chip.power", "mono": 100.0, "power_w": None},
            {"rail": "chip.energy", "mono": 100.0, "energy_j": None},
        ]
    assert [math.isnan(sample.value) for sample in load_samples(stored)] == [True, True]


def test_a_run_without_samples(kept: Store, whole: Run) -> None:
    stored = kept.write(replace(whole, samples_file=""), SAMPLES)
    assert load_samples(stored) == []
    assert not list(kept.folder.rglob("*.gz"))


def test_a_run_is_never_overwritten(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    before = {name: (kept.folder / name).read_bytes() for name in files(kept.folder)}
    for samples_file in (whole.samples_file, ""):
        with pytest.raises(FileExistsError):
            kept.write(replace(whole, notes=("another",), samples_file=samples_file), [])
    assert {name: (kept.folder / name).read_bytes() for name in files(kept.folder)} == before
    assert load(stored.path).run == whole


def test_a_file_system_without_hard_links(kept: Store, whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    stored = kept.write(whole, SAMPLES)
    assert load(stored.path).run == whole
    with pytest.raises(FileExistsError):
        kept.write(whole, SAMPLES)


def test_a_write_that_fails_leaves_nothing(kept: Store, whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        kept.write(whole, SAMPLES)
    assert files(kept.folder) == []


@pytest.mark.parametrize("figure", [math.nan, math.inf])
def test_what_is_no_number_is_refused(kept: Store, make_run, make_window, whole: Run, figure: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        kept.write(make_run(make_window(energy_j=figure)), [])
    assert files(kept.folder) == []
    stored = kept.write(whole, SAMPLES)
    with pytest.raises(ValueError, match="not JSON compliant"):
        kept.append_verdicts(stored, [verdict(agreement=figure)])
    assert load_verdicts(stored) == []


def test_the_home_folder_is_in_no_file(
    kept: Store, make_run, make_window, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home" / "ada"
    home.mkdir(parents=True)
    (tmp_path / "link").symlink_to(home)
    monkeypatch.setenv("HOME", str(tmp_path / "link"))
    said = f"cannot read {home}/models/x.gguf, nor {tmp_path}/link, nor {home}."
    run = make_run(
        make_window(outcome="void", failure=said), suite={"question": "q", "model": f"{home}/m.gguf"}, notes=(said,),
        samples_file="20261025T101530Z-3fa9c1.samples.jsonl.gz",
    )  # fmt: skip
    journal = kept.journal("m", "s", "r", {"said": said}, ())
    journal.window(run.windows[0], [])
    journal.note("cut short", reason=said)
    journal.close(remove=False)
    stored = kept.write(run, SAMPLES)
    kept.append_verdicts(stored, [verdict(detail=said)])
    texts = [path.read_text() for path in kept.folder.rglob("*.json*") if path.suffix != ".gz"]
    assert len(texts) == 4
    assert not any(str(home) in text or str(tmp_path / "link") in text for text in texts)
    assert load(stored.path).run.notes == ("cannot read ~/models/x.gguf, nor ~, nor ~.",)


def test_a_folder_that_only_begins_like_the_home_folder_stays(
    kept: Store, make_run, make_window, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/al")
    note = "/home/alice/x, /home/al.bak, /home/al-2 and /home/al/x"
    stored = kept.write(make_run(make_window(), notes=(note,)), [])
    assert load(stored.path).run.notes == ("/home/alice/x, /home/al.bak, /home/al-2 and ~/x",)


def test_a_home_at_the_root_names_nobody(kept: Store, make_run, make_window, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    stored = kept.write(make_run(make_window(), notes=("/srv/models/x.gguf",)), [])
    assert load(stored.path).run.notes == ("/srv/models/x.gguf",)


def test_a_journal_has_a_line_for_each_event(kept: Store, whole: Run) -> None:
    journal = kept.journal("m", "s", "20261025T101530Z-3fa9c1", {"suite": {"question": "q"}}, {"chip.energy"})
    journal.window(whole.windows[0], SAMPLES)
    journal.note("cut short", reason="KeyboardInterrupt: ")
    journal.close(remove=False)
    assert journal.path == kept.folder / "m" / "s" / "20261025T101530Z-3fa9c1.journal.jsonl"
    start, window, note = map(json.loads, journal.path.read_text().splitlines())
    assert start == {
        "event": "start",
        "run_id": "20261025T101530Z-3fa9c1",
        "schema_version": 1,
        "suite": {"question": "q"},
    }
    assert (window["event"], window["window"]["energy_j"]) == ("window", 200.0)
    assert window["samples"] == [
        {"rail": "chip.energy", "mono": 100.0, "energy_j": 1000.25},
        {"rail": "chip.power", "mono": 100.0, "power_w": 20.5},
        {"rail": "chip.energy", "mono": 100.2, "energy_j": 1004.35},
    ]
    assert note == {"event": "cut short", "reason": "KeyboardInterrupt: "}


def test_a_journal_is_taken_away_only_when_it_is_asked_to(kept: Store) -> None:
    journal = kept.journal("m", "s", "r", {}, ())
    with pytest.raises(FileExistsError):
        kept.journal("m", "s", "r", {}, ())
    journal.close(remove=True)
    assert files(kept.folder) == []


def test_every_line_of_a_journal_is_on_the_disk_before_the_next_thing(
    kept: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").resolve().read_text() if sys.platform == "linux" else "")
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    journal = kept.journal("m", "s", "r", {}, ())
    journal.note("first")
    journal.note("second")
    assert len(synced) == 3
    if sys.platform == "linux":
        assert [text.count("\n") for text in synced] == [1, 2, 3]
    journal.close(remove=False)


def test_a_journal_can_be_read_after_a_kill(kept: Store) -> None:
    program = f"""
        import sys
        from pathlib import Path
        from pytest_joules.store import Store
        journal = Store(Path({str(kept.folder)!r})).journal("m", "s", "r", {{}}, ())
        journal.note("one")
        journal.note("two")
        print("written", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "written\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    lines = (kept.folder / "m" / "s" / "r.journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "one", "two"]


def test_a_journal_that_is_taken_away_is_made_anew(kept: Store, whole: Run) -> None:
    journal = kept.journal("m", "s", "r", {}, ())
    journal.window(whole.windows[0], SAMPLES)
    assert not journal.made_anew
    for take_away in (lambda: shutil.rmtree(kept.folder), lambda: journal.path.rename(journal.path.with_name("moved"))):
        take_away()
        journal.note("more")
        assert journal.made_anew
        journal.made_anew = False
    journal.note("last")
    assert not journal.made_anew
    journal.close(remove=False)
    events = [json.loads(line)["event"] for line in journal.path.read_text().splitlines()]
    assert events == ["start", "window", "more", "more", "last"]


@contextlib.contextmanager
def full(path: Path, bytes_left: int) -> Iterator[None]:
    """Within the block files grow no longer than some bytes beyond what this one has; the output of these tests is one too."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + bytes_left, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def test_a_full_disk_leaves_no_half_of_a_line(kept: Store, whole: Run) -> None:
    journal = kept.journal("m", "s", "r", {}, ())
    before = journal.path.read_bytes()
    with full(journal.path, 60), pytest.raises(OSError, match="File too large"):
        journal.window(whole.windows[0], SAMPLES)
    assert journal.path.read_bytes() == before
    journal.note("cut short")
    journal.close(remove=False)
    lines = journal.path.read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines if line] == ["start", "cut short"]


def test_a_full_disk_leaves_no_half_of_a_ledgers_line(tmp_path: Path) -> None:
    path = tmp_path / ledger.NAME
    assert ledger.append([path], {"event": "start"}) == []
    with full(path, 20):
        assert len(ledger.append([path], {"event": "end", "outcome": "complete"})) == 1
    assert ledger.read(path) == ledger.Entries(({"event": "start", "prev": ""},))


def test_verdicts_that_cannot_be_written(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    kept.append_verdicts(stored, [verdict()])
    said = r"the verdicts cannot be kept: .* \(File too large\); make room there, then run again"
    with full(stored.verdicts_path, 20), pytest.raises(UsageError, match=said):
        kept.append_verdicts(stored, [verdict()])
    assert load_verdicts(stored) == [verdict()]


def test_samples_of_an_attempt_to_write_that_was_killed(kept: Store, whole: Run) -> None:
    samples = kept.place(whole.machine_slug, whole.suite_name) / whole.samples_file
    samples.parent.mkdir(parents=True)
    samples.write_bytes(b"half")
    assert load_samples(kept.write(whole, SAMPLES)) == SAMPLES


def test_what_killed_runs_left_is_taken_away_if_nobody_can_use_it(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    names = (whole.machine_slug, whole.suite_name)
    for name, windows in {"empty": [], "closed": whole.windows[:1], whole.run_id: whole.windows[:1]}.items():
        journal = kept.journal(*names, name, {}, ())
        for window in windows:
            journal.window(window, [])
        journal.close(remove=False)
    place = kept.place(*names)
    (place / "torn.journal.jsonl").write_text('{"event": "sta')
    (place / "newer.journal.jsonl").write_text('{"event": "start", "run_id": "newer", "schema_version": 99}\n')
    (place / ".x.json.999999999.part").touch()
    (place / f".y.json.{os.getpid()}.part").touch()
    (place / ".of-somebody.part").touch()
    kept.tidy(*names)
    assert {path.name for path in place.iterdir()} == {
        stored.path.name, whole.samples_file, "closed.journal.jsonl", "newer.journal.jsonl", f".y.json.{os.getpid()}.part",
        ".of-somebody.part",
    }  # fmt: skip


def test_verdicts_are_appended(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    assert load_verdicts(stored) == []
    first, again = verdict(), verdict(word="refuted", detail="assert 1 < 0", robustness="narrow", agreement=0.8)
    kept.append_verdicts(stored, [first])
    kept.append_verdicts(stored, [again, first])
    assert stored.verdicts_path.name == "20261025T101530Z-3fa9c1.verdicts.jsonl"
    assert load_verdicts(stored) == [first, again, first]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1e", "\n", "\r"])
def test_a_verdict_may_hold_any_character(kept: Store, whole: Run, separator: str) -> None:
    stored = kept.write(whole, SAMPLES)
    odd = verdict(claim=f"It{separator}falls “steeply”.")
    kept.append_verdicts(stored, [odd, odd])
    assert load_verdicts(stored) == [odd, odd]


def test_a_line_that_a_crash_cut_off_costs_no_other(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    kept.append_verdicts(stored, [verdict()])
    with stored.verdicts_path.open("a") as file:
        file.write('{"prediction": "test_x.py::te')
    assert load_verdicts(stored) == [verdict()]
    kept.append_verdicts(stored, [verdict(word="refuted")])
    assert [found.word for found in load_verdicts(stored)] == ["held", "refuted"]


def test_a_line_that_is_no_verdict_is_named(kept: Store, whole: Run) -> None:
    stored = kept.write(whole, SAMPLES)
    kept.append_verdicts(stored, [verdict()])
    with stored.verdicts_path.open("a") as file:
        file.write('{"prediction": "x", "claim": "y", "word": "perhaps"}\n')
    with pytest.raises(UsageError, match=r"verdicts.jsonl:2: is no verdict: word: "):
        load_verdicts(stored)


@pytest.fixture
def spoil(kept: Store, whole: Run) -> Callable[[str], Path]:
    """Writes something else in place of a stored run."""

    def write(text: str) -> Path:
        path = kept.write(whole, SAMPLES).path
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize("version", ["2", "0", '"1"'])
def test_another_schema_is_refused(spoil, version: str) -> None:
    path = spoil(f'{{"schema_version": {version}}}')
    with pytest.raises(UsageError, match=r"has schema version .*; this pytest-joules reads 1"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        "{}",
        '{"schema_version": null}',
        '{"schema_version": 1}',
        '{"schema_version": 1, "run_id": NaN}',
        '{"schema_version": 1,',
    ],
)
def test_what_is_no_run_is_refused(spoil, text: str) -> None:
    path = spoil(text)
    with pytest.raises(UsageError, match=f"{path.name}: is no stored run: "):
        load(path)


def test_a_run_with_a_figure_that_is_none_is_refused(kept: Store, whole: Run) -> None:
    path = kept.write(whole, SAMPLES).path
    path.write_text(path.read_text().replace("200.0", "NaN", 1))
    with pytest.raises(UsageError, match=r"is no stored run: it is no JSON .it holds NaN"):
        load(path)


def test_runs_are_found_oldest_first_and_the_latest_complete_one(kept: Store, whole: Run) -> None:
    for run_id, complete, suite in (
        ("20261026T000000Z-000001", False, "made-up"),
        ("20261024T000000Z-000002", True, "made-up"),
        ("20261025T000000Z-000003", True, "made-up"),
        ("20261027T000000Z-000004", True, "other[1]"),
    ):
        kept.write(replace(whole, run_id=run_id, complete=complete, suite_name=suite, samples_file=""), [])
    kept.append_verdicts(next(kept.runs()), [verdict()])
    assert [s.run.run_id[:8] for s in kept.runs()] == ["20261024", "20261025", "20261026", "20261027"]
    assert [s.run.run_id[:8] for s in kept.runs("example-m5-24gb", "made-up")] == ["20261024", "20261025", "20261026"]
    assert kept.latest("example-m5-24gb", "made-up").run.run_id == "20261025T000000Z-000003"
    assert kept.latest(None, None).run.run_id == "20261027T000000Z-000004"
    # Brackets in a name are letters here, not a pattern.
    assert kept.latest(None, "other[1]").run.suite_name == "other[1]"
    assert kept.latest("another-machine", "made-up") is None
    assert Store(kept.folder / "none").latest(None, None) is None


def test_names_and_labels() -> None:
    run_id = store.new_run_id()
    assert len(run_id) == len("20261025T101530Z-3fa9c1")
    assert store.new_run_id() != run_id
    assert store.utc_label(store.utc_now()).endswith("Z")
    assert {"pytest-joules", "pytest", "numpy"} <= set(store.installed_versions())


def test_plain_values_name_no_home_folder() -> None:
    reason = f"OSError: {Path.home()}/models/x.gguf"
    assert store.plain({"reason": reason, "windows": 2}) == {"reason": "OSError: ~/models/x.gguf", "windows": 2}
