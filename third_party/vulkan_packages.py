"""Installs what Vulkan on Mesa's software driver needs, so that tests without a GPU have Vulkan devices.

    python3 -m third_party.vulkan_packages

Takes Debian's packages with apt. Where the headers among them are older than ggml needs, those of a newer Debian are
fetched too, with its signatures checked, and unpacked into the build cache, where vulkan.find() looks. Does nothing
where all is there. Without apt, root or network it says in one line what is missing and exits with 75 (EX_TEMPFAIL).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from . import cache, vulkan
from .errors import BuildError

PACKAGES = ("mesa-vulkan-drivers", "glslc", "libvulkan-dev", "spirv-headers")
# What cannot be reached is found out in minutes.
PATIENCE = ("-oAcquire::http::Timeout=30", "-oAcquire::https::Timeout=30", "-oAcquire::Retries=1")
LIMIT_S = 900
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NEWER = "trixie"


def missing() -> str | None:
    """Return what Vulkan lacks on this machine, None when nothing."""
    kit = vulkan.find(None)
    if isinstance(kit, str):
        return kit
    return None if vulkan.has_driver() else "no Vulkan driver: sudo apt install mesa-vulkan-drivers"


def install() -> None:
    """Install the packages, and newer headers when theirs are too old.

    Raises: BuildError when apt cannot, or needs root.
    """
    arguments = ["install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *PACKAGES]
    if os.geteuid() == 0:
        try:
            _apt(arguments)
        except BuildError:
            # A fresh image has no lists, an old one has lists of packages that are gone.
            _apt(["update"])
            _apt(arguments)
    elif not shutil.which("glslc") or not vulkan.has_driver():
        raise BuildError("only root can install packages")
    if isinstance(vulkan.find(None), str):
        fetch_headers()


def fetch_headers() -> None:
    """Unpack a newer Debian's Vulkan headers into the build cache.

    Raises: BuildError when apt cannot, or on another distribution.
    """
    if not KEYRING.exists():
        raise BuildError(f"newer Vulkan headers come from Debian, whose keys are not in {KEYRING}")
    with cache.locked("vulkan-headers"), cache.filling(vulkan.fetched_headers()) as target:
        work = target / "work"
        for folder in ("lists/partial", "archives/partial"):
            (work / folder).mkdir(parents=True)
        (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {NEWER} main\n")
        settings = {
            "Dir::Etc::SourceList": work / "sources.list",
            "Dir::Etc::SourceParts": "-",
            "Dir::State::Lists": work / "lists",
            "Dir::Cache": work,
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
        }
        options = [f"-o{name}={value}" for name, value in settings.items()]
        _apt([*options, "update"])
        _apt([*options, "download", "libvulkan-dev"], folder=work)
        for package in work.glob("libvulkan-dev_*.deb"):
            _run(["dpkg-deb", "-x", str(package), str(work / "root")])
        for found in (work / "root" / "usr" / "include").iterdir():
            found.rename(target / found.name)
        shutil.rmtree(work)


def _mirror() -> str:
    """The archive that this machine's own packages come from."""
    mirrors = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).split()
    if not mirrors:
        raise BuildError("apt knows no archive to take newer Vulkan headers from")
    return mirrors[0]


def _apt(arguments: list[str], folder: Path | None = None) -> None:
    _run(["apt-get", "-qq", *PATIENCE, *arguments], folder)


def _run(command: list[str], folder: Path | None = None) -> str:
    """Run a program and return what it prints."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, check=False, env=env, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise BuildError(f"{command[0]} took longer than {LIMIT_S} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(f"{command[0]} failed: {said[-1] if said else f'status {done.returncode}'}")
    return done.stdout


def main() -> int:
    """Install what is missing and return the exit status."""
    obstacle = missing()
    if obstacle and shutil.which("apt-get"):
        print("installing Vulkan's compiler, headers and software driver", file=sys.stderr, flush=True)
        try:
            install()
            obstacle = missing()
        except BuildError as error:
            obstacle = f"{obstacle} ({error})"
    if obstacle:
        print(f"VULKAN CANNOT BE USED HERE: {obstacle}", file=sys.stderr)
    return os.EX_TEMPFAIL if obstacle else 0


if __name__ == "__main__":
    sys.exit(main())
