import os
import tempfile

import pytest

# A measurement under way on this machine must not make the tests wait for it, nor they it.
os.environ["JOULES_LOCK_DIR"] = tempfile.mkdtemp(prefix="joules-lock-")

pytest_plugins = ["pytester"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("error"))
