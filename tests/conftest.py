import os
import signal
import tempfile

import pytest

# A measurement under way on this machine must not make the tests wait for it, nor they it.
os.environ["JOULES_LOCK_DIR"] = tempfile.mkdtemp(prefix="joules-lock-")
# What is measured in tests is no attempt that a person made.
os.environ["JOULES_STATE_DIR"] = tempfile.mkdtemp(prefix="joules-state-")

# A shell that starts these tests in the background has these signals ignored, and so would all that they start.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Four workers unless told otherwise (`-n 0`): most of these tests wait, for a sensor, a server or a time-out."""
    untold = getattr(config.option, "numprocesses", 0) is None and not hasattr(config, "workerinput")
    if untold and not (config.option.usepdb or config.option.collectonly):
        config.option.numprocesses = 4
        config.option.dist = "loadfile"
        # Files in the order of `pytest_collection_modifyitems`: those that take longest have few tests and would come last.
        config.option.loadscopereorder = False


pytest_plugins = ["pytester"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The real server first, since everything else can go on beside it.
    items.sort(
        key=lambda item: (
            ("system", "plugin").index(kind) if (kind := item.path.parent.name) in ("system", "plugin") else 2
        )
    )
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("error"))
