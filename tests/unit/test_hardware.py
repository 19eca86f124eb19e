"""Hardware sheets: what the package states of machines, and sheets of one's own."""

import re
from pathlib import Path

import pytest

from pytest_joules import hardware
from pytest_joules.errors import UsageError
from pytest_joules.roofline import FIGURES

GOOD = "mine:\n  bandwidth_gb_s: {value: 50, basis: measured, source: stream}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "sheets.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", hardware.read())
def test_a_figure_of_a_built_in_sheet_is_either_stated_with_its_source_or_said_to_be_absent(name: str) -> None:
    sheet = hardware.read()[name]
    for figure in FIGURES:
        if figure != "cache_mb":
            stated = getattr(sheet, figure)
            assert bool(stated) != (figure in sheet.absent), figure
    quantities = [q for f in FIGURES if f != "peak_tflop_s" and (q := getattr(sheet, f))] + list(
        sheet.peak_tflop_s.values()
    )
    assert all(q.source and q.basis in ("transcribed", "published") for q in quantities)


def test_peaks_of_the_data_sheets_are_dense() -> None:
    sheets = hardware.read()
    assert {name: sheets[name].peak("fp8")[1].value for name in ("nvidia-h100-sxm", "nvidia-h200-sxm", "nvidia-b200")} == {
        "nvidia-h100-sxm": 1979, "nvidia-h200-sxm": 1979, "nvidia-b200": 4500,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a", "a file of sheets holds NAME:"),
        ("{}", "there is no sheet in it"),
        ("mine: 5", "sheets.yaml:1: mine: a sheet is a mapping of"),
        (GOOD + "  bandwith_gb_s: 5\n", "sheets.yaml:3: mine: there is no figure 'bandwith_gb_s'"),
        (GOOD + "  bandwidth_tb_s: 5\n", "did you mean 'bandwidth_gb_s'?"),
        (GOOD + GOOD, "'mine' stands here a second time"),
        ("mine: {limit_w: 5}", "mine.limit_w: expected {value: NUMBER, basis: ..., source: ...}, not 5"),
        ("mine: {limit_w: {value: 5}}", "mine.limit_w: basis is missing; .*source is missing"),
        ("mine: {limit_w: {value: 5, basis: measured, source: a, unit: kW}}", "there is no 'unit'"),
        (
            "mine: {limit_w: {value: 5 W, basis: measured, source: a}}",
            r"above zero \(power limit, W\), without its unit, not '5 W'",
        ),
        ("mine: {limit_w: {value: 0, basis: measured, source: a}}", "above zero"),
        ("mine: {limit_w: {value: true, basis: measured, source: a}}", "above zero"),
        ("mine: {limit_w: {value: .inf, basis: measured, source: a}}", "finite number"),
        ("mine: {limit_w: {value: 5, basis: measurd, source: a}}", "did you mean 'measured'?"),
        (
            "mine: {limit_w: {value: 5, basis: measured, source: 7}}",
            "mine.limit_w.source: should be a valid string, not 7",
        ),
        ("mine: {peak_tflop_s: {value: 5, basis: measured, source: a}}", "'value' is no number type"),
        ("mine: {peak_tflop_s: 5}", "peak_tflop_s holds a figure for each number type"),
        ("mine: {peak_tflop_s: {f16: {value: 5, basis: measured, source: a}}}", "did you mean 'fp16'?"),
        (
            "mine: {idle_w: {value: 31, basis: measured, source: a}, limit_w: {value: 20, basis: measured, source: a}}",
            r"sheets.yaml:1: mine: idle_w \(31 W\) is above limit_w \(20 W\); one of the two is wrong",
        ),
        ("mine: {absent: {idle: why}}", "absent: there is no figure 'idle'"),
        (GOOD + "  absent: {bandwidth_gb_s: why}", "said to be absent, and stands at .*sheets.yaml:2"),
        ("mine: {absent: [idle_w]}", "mine.absent: should be an object"),
        ("mine: {chips: M5}", "mine.chips: should be a valid array, not 'M5'"),
    ],
)
def test_a_sheet_that_is_not_as_it_should_be_is_refused_by_line_key_and_what_is_known(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        hardware.read(written(tmp_path, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read"):
        hardware.read(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", hardware.read())
def test_a_sheet_that_was_written_reads_the_same(tmp_path: Path, name: str) -> None:
    sheet = hardware.read()[name]
    assert hardware.read(written(tmp_path, hardware.dumped(sheet))) == {name: sheet}


def test_the_sheet_on_the_page_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2].joinpath("docs/roofline.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (sheet,) = hardware.read(written(tmp_path, text)).values()
    assert set(FIGURES) == {figure for figure in FIGURES if getattr(sheet, figure)}


@pytest.mark.parametrize(
    ("machine", "gpu_layers", "name"),
    [
        ({"chip": "apple m5 pro"}, "all", "apple-m5-pro"),
        ({"chip": "Apple M5 Pro", "gpus": ["NVIDIA H200"]}, "all", "nvidia-h200-sxm"),
        ({"chip": "Apple M5 Pro", "gpus": ["NVIDIA H200"]}, 0, "apple-m5-pro"),
        ({"chip": "Apple M5 Pro", "gpus": ["another"]}, "all", None),
        ({"chip": "AMD EPYC", "gpus": []}, "all", None),
    ],
)
def test_a_run_is_of_the_card_that_it_decoded_on_else_of_the_chip(
    make_run, machine: dict, gpu_layers: object, name: str | None
) -> None:
    part = hardware.decoded_on(make_run(machine=machine, suite={"server": {"gpu_layers": gpu_layers}}))
    assert [sheet.name for sheet in hardware.read().values() if hardware.is_of(sheet, part)] == ([name] if name else [])


def test_a_sheet_that_is_not_known_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"there is no sheet 'nvidia-b300'; did you mean 'nvidia-b200'\?"):
        hardware.named(hardware.read(), "nvidia-b300")
