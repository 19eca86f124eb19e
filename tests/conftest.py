import os
import tempfile

import pytest

# A measurement under way on this machine must not make the tests wait for it, nor they it.
os.environ["JOULES_LOCK_DIR"] = tempfile.mkdtemp(prefix="joules-lock-")
# What is measured in tests is no attempt that a person made.
os.environ["JOULES_STATE_DIR"] = tempfile.mkdtemp(prefix="joules-state-")

pytest_plugins = ["pytester"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("error"))
