import errno
import os
from pathlib import Path

import pytest
from players.sysfs_player import mount

from pytest_joules import places
from pytest_joules.meters import _sysfs
from pytest_joules.meters._sysfs import ReadError, entries, exists, first_reading, number, optional_number
from pytest_joules.places import root


def test_numbers_in_names_are_in_their_own_order(tmp_path: Path) -> None:
    for name in ("card10", "card2", "card2-DP-1", "renderD128", "card1"):
        (tmp_path / name).mkdir()
    assert [path.name for path in entries(tmp_path, r"card\d+")] == ["card1", "card2", "card10"]
    assert len(entries(tmp_path)) == 5
    assert entries(tmp_path / "nowhere") == []


def test_the_root_is_sys_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(places.ROOT_VARIABLE, str(tmp_path))
    assert root() == tmp_path
    monkeypatch.setenv(places.ROOT_VARIABLE, "")
    assert root() == Path("/sys")


@pytest.mark.parametrize(
    ("fault", "words", "passing", "denied"),
    [
        ("EACCES", "may not be read by this user", False, True),
        ("EPERM", "refused to be read", True, True),
        ("ENOENT", "does not exist", False, False),
        ("ENODATA", "holds no data", True, False),
        ("EIO", "failed with an input/output error", True, False),
        ("ENODEV", "belongs to a device that is gone", False, False),
        ("EOPNOTSUPP", "is not supported by its device", False, False),
        ("EINVAL", f"cannot be read .{os.strerror(errno.EINVAL)}", False, False),
        ("EMPTY", "is empty", True, False),
    ],
)
def test_every_error_names_the_file_and_the_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, words: str, passing: bool, denied: bool
) -> None:
    sysfs = mount(monkeypatch, tmp_path, {"a/file": "5\n"})
    assert number(root() / "a/file") == 5
    sysfs.faults = {"a/file": fault}
    with pytest.raises(ReadError, match=f"a/file {words}") as found:
        number(root() / "a/file")
    assert (found.value.passing, found.value.denied) == (passing, denied)
    assert optional_number(root() / "a/file") is None


@pytest.mark.parametrize("text", ["12 W\n", "0x10\n", "1.5\n", "N/A\n", "\xff\n"])
def test_what_is_no_whole_number_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    mount(monkeypatch, tmp_path, {"file": text})
    with pytest.raises(ReadError, match="instead of a number"):
        number(root() / "file")


def test_a_link_to_nothing_is_told_from_a_file_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mount(monkeypatch, tmp_path, {"link": {"link": "nowhere"}})
    with pytest.raises(ReadError, match="link is a link to nothing"):
        number(root() / "link")
    assert not exists(root() / "link")


def test_a_first_reading_is_tried_again_only_where_that_may_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sysfs, "FIRST_READING_PAUSE_S", 0.0)
    tries: list[bool] = []

    def after(failures: int, *, passing: bool) -> float:
        def read() -> float:
            tries.append(passing)
            if len(tries) <= failures:
                raise ReadError(Path("file"), "is empty", passing=passing)
            return 7.0

        tries.clear()
        return first_reading(read)

    assert after(2, passing=True) == 7.0
    with pytest.raises(ReadError):
        after(3, passing=True)
    assert len(tries) == 3
    with pytest.raises(ReadError):
        after(1, passing=False)
    assert len(tries) == 1
