"""Two Vulkan devices for the tests of this folder, which run in a process of their own: `pytest tests/vulkan`.

By default the first device twice: on machines without a GPU that is Mesa's software driver, whose compiled shaders are
kept in the build cache. Others are named with GGML_VK_VISIBLE_DEVICES=0,1. Without two devices all tests are skipped
with the remedy, or fail where CI is set.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import pyggml as gg

sys.path.append(str(Path(__file__).resolve().parents[2]))
from third_party import cache


def _keep_buffers() -> None:
    """Load the loader that destroys no buffer; this must come before the Vulkan module."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "keep_buffers.so"
        source = Path(__file__).with_name("keep_buffers.c")
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(cache.root() / "shaders"))
if "GGML_VK_VISIBLE_DEVICES" not in os.environ:
    os.environ["GGML_VK_VISIBLE_DEVICES"] = "0,0"
    _keep_buffers()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Wait long: compiling what a test is the first to use takes a busy machine minutes."""
    for item in items:
        item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session", autouse=True)
def two_devices() -> None:
    """Skip where there are not two Vulkan devices."""
    found = [d.name for d in gg.devices() if d.module == "vulkan"]
    if len(found) < 2:
        problems = [p.problem for p in gg.module_problems() if p.module == "vulkan"]
        words = f"{len(found)} Vulkan devices, 2 are needed ({problems[0] if problems else 'no module or driver'}): "
        words += "python3 -m third_party.vulkan_packages and python3 build_ggml.py --install, then pytest tests/vulkan"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
