"""`joules roofline`: roofs alone and over stored runs, sheets, and the probe."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from pytest_joules import bandwidth, hardware, store
from pytest_joules.bandwidth import Kernel, Probe
from pytest_joules.cli.roofline import app
from pytest_joules.errors import UsageError
from pytest_joules.records import Run

REPOSITORY = Path(__file__).parents[2]
MODEL = {"name": "qwen2.5-1.5b-instruct", "format": "q4_0"}
QUIET = Probe(
    kernels=(Kernel(name="read", gb_s=(24.0, 25.0, 24.0)), Kernel(name="copy", gb_s=(10.0, 12.0, 11.0))),
    threads=2, array_mb=512, cache_mb=33.6, cores_others=0.0,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOULES_LOCK_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


def ask(*arguments: object, results: Path = REPOSITORY / "results") -> Result:
    return CliRunner().invoke(app, ["roofline", *map(str, arguments), "--results", str(results)])


def told(*arguments: object, **keys: Path) -> str:
    done = ask(*arguments, **keys)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*arguments: object, **keys: Path) -> str:
    done = ask(*arguments, **keys)
    assert isinstance(done.exception, UsageError), done.output
    return str(done.exception)


def record(*arguments: object, **keys: Path) -> dict:
    return json.loads(told(*arguments, "--json", **keys))


@pytest.fixture
def keep(tmp_path, make_run, make_window) -> Callable[..., Path]:
    """Keep a run of the 1.5B, 128 tokens a slot in 10 s, and return the folder of the results."""

    def write(windows: tuple = (), **changes) -> Path:
        run: Run = make_run(
            *(windows or [make_window(n, p) for p in (0, 1) for n in (1, 8)]), models=(MODEL,), **changes
        )
        store.Store(tmp_path / "results").write(run, ())
        return tmp_path / "results"

    return write


def test_a_published_run_stands_under_the_roof_of_its_machine_within_80_columns() -> None:
    text = told("decode-batch")
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^ +16 +339 +1,109 +31% ", text, re.MULTILINE)
    assert re.search(r"^all +4\.68 +7\.616 +65\.6 +1,050 +5\.16$", text, re.MULTILINE)
    assert "transcribed: Spliced research note 24, of the roof measured in its note 5" in " ".join(text.split())
    assert "compute roof and batch floor: the sheet has no peak_tflop_s" in text
    assert "Worst basis of what the roofs rest on: estimated." in text
    assert "No compute roof is known, and it may be the lower one: then the share is larger." in " ".join(text.split())
    assert re.search(r" share .*\n.* of .*\n.* roof,.*\n +at least$", text, re.MULTILINE)


def test_every_key_of_the_json_is_in_the_help_and_every_figure_as_it_is() -> None:
    found = record("decode-batch")
    help_text = " ".join(CliRunner().invoke(app, ["roofline", "--help"]).stdout.replace("│", " ").split())
    assert all(key in help_text for key in found)
    assert [row["batch"] for row in found["rows"]] == [1, 2, 4, 8, 16, 32]
    assert found["rows"][4]["tokens_per_s"] == 338.8
    assert found["rows"][4]["compute_tokens_per_s"] is None
    assert found["basis"] == "estimated"


def test_figures_that_were_not_published_have_no_share_and_the_reason_once() -> None:
    text = told("decode-batch-1.5b-long")
    assert "Batch 1, 2, 4, 8: it was not published" in text
    assert record("decode-batch-1.5b-long")["rows"][0]["share"] is None


def test_roofs_alone_take_a_model_and_a_sheet() -> None:
    found = record(
        "--model", "qwen2.5-7b", "--format", "q4_0", "--hardware", "nvidia-b200", "--batches", "8,1", "--context", 0
    )
    assert [row["batch"] for row in found["rows"]] == [1, 8]
    assert (found["run_id"], found["peak"], found["kv_batch"]) == (None, "fp16", None)
    assert [round(floor["batch"], 1) for floor in found["batch_floors"]] == [81.9]
    text = told("--model", "qwen2.5-7b", "--format", "q4_0", "--hardware", "nvidia-b200", "--peak", "fp8")
    assert "dense TFLOP/s, fp8" in text
    assert "--peak takes fp16, bf16, fp4 too" in " ".join(text.split())


def test_what_does_not_fit_and_what_is_a_placeholder_is_marked_in_the_tables(tmp_path) -> None:
    figures = "memory_gb: {value: 2, basis: measured, source: a}, idle_w: {value: 9, basis: placeholder, source: a}"
    (tmp_path / "mine.yaml").write_text(
        f"mine: {{bandwidth_gb_s: {{value: 30, basis: measured, source: a}}, {figures}}}"
    )
    text = told(
        "--model", "qwen2.5-1.5b", "--format", "q4_0", "--sheet", "mine.yaml", "--context", 30000, "--batches", "1,2"
    )
    assert re.search(r"^ +1 .*\n +2\* ", text, re.MULTILINE)
    assert "* So many slots of 30,000 tokens do not fit into memory beside the weights." in " ".join(text.split())
    assert "At most 1 slot of 30,000 tokens fits" in text
    assert "(placeholder)" in text
    assert "roofs rest on: estimated; of an energy at idle power: placeholder." in " ".join(text.split())


def test_a_number_type_may_be_in_capitals() -> None:
    arguments = ("--model", "qwen2.5-7b", "--format", "q4_0", "--hardware", "nvidia-b200")
    assert record(*arguments, "--peak", "FP8")["peak"] == "fp8"


def test_a_measured_run_holds_its_prompt_and_half_its_answer(keep, make_window) -> None:
    results = keep()
    found = record("made-up", "--hardware", "apple-m5-pro", results=results)
    assert found["rows"][0]["depth_tokens"] == 20 + 128 / 2
    assert found["rows"][1]["passes"] == [pytest.approx(102.4)] * 2
    assert (
        record("made-up", "--hardware", "apple-m5-pro", "--context", 500, results=results)["rows"][0]["depth_tokens"]
        == 500
    )
    assert any("the run was measured on" in remark for remark in found["remarks"])


def test_a_grid_has_a_table_for_each_other_condition_and_fits_with_every_figure_of_a_sheet(
    keep, make_window, tmp_path
) -> None:
    windows = tuple(
        replace(make_window(n, p), condition={"parallel": n, "cache_type_k": t, "cache_type_v": t})
        for p in (0, 1)
        for n in (1, 8)
        for t in ("f16", "q8_0")
    )
    conditions = tuple(window.condition for window in windows[:4])
    results = keep(windows, axes=("parallel", "cache_type_k", "cache_type_v"), conditions=conditions)
    figures = ", ".join(
        f"{name}: {{value: 30, basis: measured, source: a}}"
        for name in ("bandwidth_gb_s", "memory_gb", "idle_w", "limit_w")
    )
    peak = "peak_tflop_s: {fp16: {value: 3, basis: measured, source: a}}"
    (tmp_path / "mine.yaml").write_text(f"mine: {{{figures}, {peak}}}")
    text = told("made-up", "--sheet", tmp_path / "mine.yaml", results=results)
    assert max(map(len, text.splitlines())) <= 80
    assert "Roofs, cache_type_k=q8_0, cache_type_v=q8_0" in text
    assert text.count("Energy of a token at the roof") == 2
    first, second = (
        row["memory_tokens_per_s"]
        for row in record("made-up", "--sheet", tmp_path / "mine.yaml", results=results)["rows"][:2]
    )
    assert second > first, "a cache of q8_0 is read faster"


def test_a_run_that_drafts_has_a_roof_and_no_share(keep) -> None:
    suite = {"question": "?", "model": MODEL["name"], "format": "q4_0", "draft": {"draft_model": "small"}}
    found = record("made-up", "--hardware", "apple-m5-pro", results=keep(suite=suite))
    assert {row["share"] for row in found["rows"]} == {None}
    assert "it drafts" in found["rows"][0]["why_none"]


def test_of_several_models_one_must_be_chosen(keep, make_window, tmp_path) -> None:
    windows = tuple(
        replace(make_window(1, p), condition={"parallel": 1, "model": m, "format": "q4_0"})
        for p in (0, 1)
        for m in ("qwen2.5-1.5b-instruct", "qwen2.5-7b-instruct")
    )
    conditions = tuple(window.condition for window in windows[:2])
    results = keep(windows, axes=("parallel", "model", "format"), conditions=conditions)
    path = next(results.glob("*/*/*.json"))
    stored = json.loads(path.read_text())
    path.write_text(
        json.dumps(stored | {"models": [dict(condition, name=condition["model"]) for condition in conditions]})
    )
    said = refused("made-up", "--hardware", "apple-m5-pro", results=results)
    assert "choose: --model qwen2.5-1.5b-instruct --format q4_0; --model qwen2.5-7b-instruct --format q4_0" in said
    found = record("made-up", "--hardware", "apple-m5-pro", "--model", "qwen2.5-7b-instruct", results=results)
    assert found["model"]["parameters"] == 7615616512
    assert "has no qwen2.5-7b; did you mean 'qwen2.5-7b-instruct'?" in refused(
        "made-up", "--hardware", "apple-m5-pro", "--model", "qwen2.5-7b", results=results
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quickstart"], "none of them is of AMD EPYC, .*joules roofline --probe -o FILE.yaml"),
        (["decode-batch", "--hardware", "apple-m5"], "did you mean 'apple-m5-pro'?"),
        (["decode-batch", "--peak", "fp8"], "--peak fp8: sheet apple-m5-pro has no such peak; none was found"),
        (["decode-batch", "--batches", "1"], "--batches is for roofs without a run"),
        (["decode-batch", "-o", "x", "--json"], "-o and --json exclude each other"),
        (["decode-batch", "--probe"], "--probe measures this machine alone; leave out a run"),
        (["no-such-suite"], "there is no run or suite 'no-such-suite'"),
        (["--model", "qwen2.5-7b", "--format", "q4_0"], "there are sheets of .*; --hardware names the one"),
        (["--model", "qwen2.5-7b", "--hardware", "nvidia-b200"], "its file is not here; state its format with --format"),
        (["--model", "qwen9", "--format", "q4_0", "--hardware", "nvidia-b200"], "model qwen9 in format q4_0 is not on this machine"),
        (["--model", "qwen2.5-7b", "--format", "q4_0", "--hardware", "nvidia-b200", "--batches", "1,0"], "'0' is no number of slots"),
        (["--model", "qwen2.5-7b", "--format", "q4_0", "--hardware", "nvidia-b200", "--batches", "99999999999"],
         "99999999999 slots are more than the 999,999 that are looked at"),
        (["--model", "qwen2.5-7b", "--format", "q4_0", "--hardware", "nvidia-b200", "--peak", "fb8"], "did you mean 'fp8'?"),
        (["--sheet", "none.yaml"], "none.yaml: cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    assert re.search(said, refused(*arguments))


def test_without_a_run_and_a_model_the_sheets_are_listed_with_what_is_absent() -> None:
    text = told()
    assert max(map(len, text.splitlines())) <= 80
    assert "nvidia-h200-sxm" in text
    assert "absent: the data sheet states none" in text
    assert [sheet["name"] for sheet in record("--hardware", "strix-halo")["sheets"]] == ["strix-halo"]


def test_the_note_is_written_with_a_plot_and_a_page_that_fetches_nothing(tmp_path) -> None:
    text = told("decode-batch", "-o", tmp_path / "out")
    names = [Path(line).name for line in text.splitlines()]
    assert [name.rpartition(".")[2] for name in names] == ["md", "html"]
    page = (tmp_path / "out" / names[1]).read_text()
    assert "<svg" in page
    assert not re.search(r'(src|href)="(?!#)', page)
    markdown = (tmp_path / "out" / names[0]).read_text()
    (plot,) = (tmp_path / "out").glob("*.svg")
    assert f"({plot.name})" in markdown
    assert "5.16" in page
    assert re.search(r"memory bandwidth, GB/s<br><span class=\"quiet\">transcribed: .*?</td><td>307</td>", page), (
        "narrow enough for a phone"
    )
    assert "5.16" in markdown


@pytest.fixture
def probed(monkeypatch) -> Callable[[Probe], None]:
    return lambda found: monkeypatch.setattr(bandwidth, "probe", lambda: found)


def test_the_probe_prints_the_best_with_its_spread_and_writes_a_sheet_that_holds_a_run(probed, tmp_path) -> None:
    probed(QUIET)
    text = told("--probe", "-o", tmp_path / "mine.yaml")
    assert "bandwidth: 25.0 GB/s, measured (read)" in text
    assert "best of 3, median 24.0, spread 4%" in text
    sheet = next(iter(hardware.read(tmp_path / "mine.yaml").values()))
    assert (sheet.bandwidth_gb_s.value, sheet.bandwidth_gb_s.basis, sheet.limit_w) == (25.0, "measured", None)
    found = record("quickstart", "--sheet", tmp_path / "mine.yaml")
    assert found["basis"] == "measured"
    assert any("the last-level cache (33.6 MB) may hold 34% of what a step reads" in line for line in found["remarks"])
    assert "is there already" in refused("--probe", "-o", tmp_path / "mine.yaml")


def test_a_probe_among_other_work_says_so_in_its_sheet_too(probed, tmp_path) -> None:
    probed(QUIET)
    assert record("--probe")["unquiet"] is None
    probed(replace(QUIET, kernels=(Kernel(name="read", gb_s=(20.0, 25.0)),)))
    assert record("--probe")["unquiet"] == "the repeats differ by 20%"
    probed(replace(QUIET, cores_others=1.4))
    text = told("--probe", "-o", tmp_path / "out")
    assert "bandwidth: at least 25.0 GB/s" in text
    assert "not of an idle machine: other programs kept 1.4 cores busy" in text
    (path,) = (tmp_path / "out").iterdir()
    assert "1.4 cores busy" in next(iter(hardware.read(path).values())).remarks[0]


def test_the_probe_counts_the_bytes_of_each_kernel_and_keeps_every_repeat() -> None:
    found = bandwidth.probe(repeats=2, threads=2, array_mb=1)
    assert [(kernel.name, len(kernel.gb_s)) for kernel in found.kernels] == [("read", 2), ("copy", 2), ("add", 2)]
    assert all(figure > 0 for kernel in found.kernels for figure in kernel.gb_s)
    assert found.best.best_gb_s == max(figure for kernel in found.kernels for figure in kernel.gb_s)


def test_the_probe_is_refused_where_memory_is_short() -> None:
    with pytest.raises(UsageError, match=r"the probe needs 30000000\.0 GB"):
        bandwidth.probe(array_mb=1e10)


def test_last_level_caches_that_cpus_share_are_counted_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JOULES_SYSFS_ROOT", str(tmp_path))
    assert bandwidth.last_level_cache_mb() is None
    for cpu, index, level, size, shared in (
        (0, 0, 1, "32K", "0"), (0, 3, 3, "32768K", "0-1"), (1, 3, 3, "32768K", "0-1"), (2, 3, 3, "16M", "2"), (3, 3, 3, "", "3"),
    ):  # fmt: skip
        folder = tmp_path / f"devices/system/cpu/cpu{cpu}/cache/index{index}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{value}\n")
    assert bandwidth.last_level_cache_mb() == pytest.approx(48 * 1024**2 / 1e6)
