import subprocess
import sys
from pathlib import Path

import pytest

from pytest_joules import models
from pytest_joules.errors import Unmeasured, UsageError
from pytest_joules.models import catalogue, find

EMPTY_GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)


@pytest.fixture
def known() -> catalogue.Catalogue:
    return catalogue.read()


def test_every_shape_has_as_many_parameters_as_the_model_it_is_the_shape_of(known: catalogue.Catalogue) -> None:
    shaped = {name: entry for name, entry in known.models.items() if entry.shape}
    assert {name: known.shape(name).parameters for name in shaped} == {n: e.parameters for n, e in shaped.items()}
    assert set(known.shapes) == {entry.shape for entry in shaped.values()}


def test_every_entry_says_where_the_model_comes_from_and_under_which_licence(known: catalogue.Catalogue) -> None:
    assert [name for name, entry in known.models.items() if not entry.hub or entry.licence == "unknown"] == []


@pytest.mark.parametrize(
    ("stem", "called"),
    [
        ("Qwen2.5-7B-Instruct-Q4_K_M", ("qwen2.5-7b-instruct", "q4_k_m")),
        ("qwen2.5-7b-instruct-fp16", ("qwen2.5-7b-instruct", "f16")),
        ("SmolLM2-135M-Instruct.Q4_1", ("smollm2-135m-instruct", "q4_1")),
        ("Phi-3-mini-4k-instruct-q4", ("phi-3-mini-4k-instruct", "q4_k_m")),
        ("Somebodys_Own-IQ4_NL", ("somebodys_own", "iq4_nl")),
        ("plain", ("plain", None)),
    ],
)
def test_what_a_suite_calls_a_file(known: catalogue.Catalogue, stem: str, called: tuple[str, str | None]) -> None:
    assert known.called(stem) == called


@pytest.mark.parametrize(
    ("name", "form", "file"),
    [
        ("phi-3-mini-4k-instruct", "q4_k_m", "Phi-3-mini-4k-instruct-q4.gguf"),
        ("qwen2.5-0.5b-instruct", "f16", "qwen2.5-0.5b-instruct-fp16.gguf"),
        ("qwen2.5-7b-instruct", "f16", "qwen2.5-7b-instruct-fp16-00001-of-00004.gguf"),
    ],
)
def test_a_model_is_found_under_the_name_it_is_published_by(tmp_path: Path, name: str, form: str, file: str) -> None:
    (tmp_path / file).write_bytes(EMPTY_GGUF)
    assert find(name, form, [tmp_path]) == tmp_path / file


@pytest.mark.parametrize("place", ["suites", "models"])
def test_ones_own_catalogue_says_which_file_is_meant(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "models"
    for made in (folder, tmp_path / "suites"):
        made.mkdir()
    (folder / "ours-v7.q8.gguf").write_bytes(EMPTY_GGUF)
    with pytest.raises(Unmeasured):
        find("house-model", "q8_0", [folder], suites=tmp_path / "suites")
    (tmp_path / place / "models.yaml").write_text("models: {house-model: {files: {q8_0: ours-v7.q8}, licence: ours}}\n")
    assert find("house-model", "q8_0", [folder], suites=tmp_path / "suites") == folder / "ours-v7.q8.gguf"
    assert models.known_models([folder], tmp_path / "suites").entry("house-model").licence == "ours"


def test_ones_own_entry_stands_before_the_packages(tmp_path: Path) -> None:
    (tmp_path / "models.yaml").write_text(
        "models: {qwen2.5-7b-instruct: {hub: us/ours, files: {other: 'ours.{format}'}}}"
    )
    known = catalogue.read([tmp_path / "models.yaml", tmp_path / "absent.yaml"])
    assert known.entry("qwen2.5-7b-instruct").hub == "us/ours"
    assert known.stem("qwen2.5-7b-instruct", "q4_0") == "ours.q4_0"
    assert known.entry("qwen2.5-3b-instruct").hub == "Qwen/Qwen2.5-3B-Instruct-GGUF"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [a]", "models.yaml:1: models: Input should be"),
        ("models:\n  a: {licens: MIT}", "models.yaml:2: models.a.licens: Unexpected keyword argument"),
        ("shapes: {a: {layers: 0}}", "models.yaml:1: shapes.a.layers: Input should be greater than 0"),
        ("models: {a: [", "models.yaml:1: this is no YAML"),
        ("models: {}\nmodels: {}", "models.yaml:2: 'models' stands here a second time"),
        ("", "models.yaml:1: a catalogue is a mapping of models, shapes or both"),
    ],
)
def test_a_catalogue_that_is_not_as_it_should_be(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "models.yaml").write_text(text)
    with pytest.raises(UsageError) as caught:
        catalogue.read([tmp_path / "models.yaml"])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_nobody_knows(known: catalogue.Catalogue) -> None:
    with pytest.raises(UsageError, match=r"no model 'qwen2.5-7b-instuct'; did you mean 'qwen2.5-7b-instruct'\?"):
        known.entry("qwen2.5-7b-instuct")
    with pytest.raises(UsageError, match=r"no shape 'gemma-2-2b-it'; there are llama-3.2-1b, "):
        known.shape("gemma-2-2b-it")


def test_what_to_do_about_a_model_that_is_not_here(tmp_path: Path) -> None:
    (tmp_path / "smollm2-135m-instruct-q4_1.gguf").write_bytes(EMPTY_GGUF)
    with pytest.raises(Unmeasured) as caught:
        find("qwen2.5-7b-instruct", "q4_0", [tmp_path])
    message = str(caught.value)
    assert "joules models get qwen2.5-7b-instruct --format q4_0" in message
    assert "joules models synth --like qwen2.5-7b --format q4_0" in message
    assert "did you mean" not in message  # the only file here is of another model
    with pytest.raises(Unmeasured) as caught:
        find("gemma-2-2b-it", "q4_0", [tmp_path])
    assert "synth" not in str(caught.value)
    with pytest.raises(Unmeasured) as caught:
        find("smollm2-135m-instruct", "q8_0", [tmp_path])
    assert "did you mean 'smollm2-135m-instruct' in format q4_1?" in str(caught.value)


def test_looking_for_models_takes_nothing_heavy() -> None:
    code = (
        "import sys, pytest_joules.models; print([m for m in ('gguf', 'numpy', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
