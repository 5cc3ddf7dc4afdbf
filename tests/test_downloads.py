"""Models fetched from a hub on this machine: whole, in parts, with faults on the way, and offline."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import FakeHub, sha256
from huggingface_hub import constants

from pyggml.engine import LLM, ConfigError, DownloadError
from pyggml.engine.downloads.fetching import Fetched, fetch
from pyggml.engine.downloads.model_address import model_address
from pyggml.engine.downloads.store import remove, stored_models
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.room import Room

ONE = b"GGUF" + bytes(range(256)) * 400
SHARDS = {f"Q8_0/m-Q8_0-{i:05}-of-00003.gguf": b"GGUF" + bytes([i]) * 70_000 for i in (1, 2, 3)}
NAME = "o/m"
Q4 = "m-Q4_0.gguf"


@pytest.fixture
def hub(empty_hub: FakeHub) -> FakeHub:
    """A hub with a repository of two models, of which one is split."""
    empty_hub.repos[NAME] = {Q4: ONE, "mmproj-F32.gguf": ONE, "README.md": b"#"} | SHARDS
    return empty_hub


def fetched(name: str, **options: object) -> Fetched:
    return fetch(model_address(name), **options)  # type: ignore[arg-type]


def content(found: Fetched) -> list[bytes]:
    return [path.read_bytes() for path in found.paths]


def parts(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*.incomplete")]


def all_files(folder: Path) -> list[Path]:
    notes = ("*.json", "refs/*")
    return [p for p in folder.rglob("*") if p.is_file() and not any(p.match(note) for note in notes)]


def test_a_model_comes_whole_and_lies_as_huggingface_hub_would_have_it(hub: FakeHub, tmp_path: Path) -> None:
    found = fetched(f"hf:{NAME}:q4_0")
    assert content(found) == [ONE]
    folder = tmp_path / "hub" / "models--o--m"
    assert found.paths == (folder / "snapshots" / hub.commit / Q4,)
    assert found.paths[0].resolve() == folder / "blobs" / sha256(ONE)
    from huggingface_hub import hf_hub_download

    assert hf_hub_download(NAME, Q4, local_files_only=True, cache_dir=constants.HF_HUB_CACHE) == str(found.paths[0])


def test_all_shards_come(hub: FakeHub) -> None:
    assert content(fetched(f"hf:{NAME}:Q8_0")) == list(SHARDS.values())


def test_what_is_here_is_used_without_asking(hub: FakeHub) -> None:
    first = fetched(f"hf:{NAME}:Q4_0")
    n_asked = len(hub.asked)
    assert fetched(f"hf:{NAME}:Q4_0").paths == fetched(f"hf:{NAME}").paths == first.paths
    assert len(hub.asked) == n_asked


def test_the_largest_that_fits_is_taken_and_told(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    room = Room(LoadOptions(device="cpu"), 1, 150_000, "0.2 MB free on cpu")
    found = fetched(f"hf:{NAME}", room=lambda: room)
    assert found.label == "Q4_0"
    line = capsys.readouterr().err.splitlines()[0]
    which = "the largest of 2 that fits into 0.2 MB free on cpu; there are Q8_0, Q4_0"
    assert line == f"hf:o/m: Q4_0 is taken (0.00 GiB), {which}"


def test_the_room_does_not_matter_to_a_quantisation_that_is_named(hub: FakeHub) -> None:
    assert fetched(f"hf:{NAME}:Q8_0", room=lambda: Room(LoadOptions(), 1, 0, "")).label == "Q8_0"


def test_a_broken_connection_goes_on_where_it_broke(hub: FakeHub) -> None:
    hub.break_after[Q4] = [40_000, 30_000]
    assert content(fetched(f"hf:{NAME}:Q4_0")) == [ONE]
    assert hub.starts(f"cdn/{NAME}/{Q4}") == [0, 40_000, 70_000]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_after[Q4] = [50_000] + [0] * 20
    message = r"o/m/m-Q4_0.gguf broke off after 50000 of 102404 bytes: .*; run it again to go on from there"
    with pytest.raises(DownloadError, match=message):
        fetched(f"hf:{NAME}:Q4_0")
    assert parts(tmp_path) == [50_000]
    hub.break_after.clear()
    hub.asked.clear()
    found = fetched(f"hf:{NAME}:Q4_0")
    assert (content(found), found.n_new_bytes) == ([ONE], len(ONE) - 50_000)
    assert hub.starts(Q4) == [50_000, 50_000]  # the hub, and where it sends
    assert parts(tmp_path) == []


def test_shards_that_came_stay_when_a_later_one_breaks_off(hub: FakeHub) -> None:
    first, second, third = SHARDS
    hub.break_after[second] = [10] + [0] * 20
    with pytest.raises(DownloadError, match="00002-of-00003"):
        fetched(f"hf:{NAME}:Q8_0")
    hub.break_after.clear()
    hub.asked.clear()
    fetched(f"hf:{NAME}:Q8_0")
    assert [hub.starts(f"cdn/{NAME}/{path}") for path in (first, second, third)] == [[], [10], [0]]


def test_a_server_that_knows_no_ranges_sends_all_anew(hub: FakeHub) -> None:
    hub.has_ranges = False
    hub.break_after[Q4] = [40_000]
    assert content(fetched(f"hf:{NAME}:Q4_0")) == [ONE]


def test_a_wrong_content_is_refused_by_name_and_removed(hub: FakeHub, tmp_path: Path) -> None:
    hub.wrong.add(Q4)
    with pytest.raises(DownloadError, match=rf"o/m/{Q4} has the SHA-256 \w+ in place of {sha256(ONE)}; .*removed"):
        fetched(f"hf:{NAME}:Q4_0")
    assert all_files(tmp_path) == []


def test_a_part_that_was_damaged_on_the_disk_is_found_out(hub: FakeHub, tmp_path: Path) -> None:
    hub.break_after[Q4] = [50_000] + [0] * 20
    with pytest.raises(DownloadError):
        fetched(f"hf:{NAME}:Q4_0")
    (part,) = tmp_path.rglob("*.incomplete")
    part.write_bytes(b"x" * 50_000)
    hub.break_after.clear()
    with pytest.raises(DownloadError, match="in place of"):
        fetched(f"hf:{NAME}:Q4_0")
    assert content(fetched(f"hf:{NAME}:Q4_0")) == [ONE]


def test_what_is_no_gguf_is_refused(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["page.gguf"] = b"<!DOCTYPE html>"
    with pytest.raises(DownloadError, match="is no GGUF file; it begins with b'<!DO'"):
        fetched(f"{hub.url}/files/page.gguf")
    assert all_files(tmp_path) == []


def test_a_disk_without_room_is_told_before_the_first_byte(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=200_000))
    with pytest.raises(DownloadError, match=r"o/m:Q8_0 needs 0.00 GiB and .* has 0.00 GiB free; make room"):
        fetched(f"hf:{NAME}:Q8_0")
    assert [path for a in hub.asked if "cdn" in (path := a.path)] == []
    assert fetched(f"hf:{NAME}:Q4_0").label == "Q4_0"  # 102,404 bytes


@pytest.mark.parametrize("name", [f"hf:{NAME}:Q4_0", "URL/files/x.gguf"])
def test_a_folder_that_cannot_be_written_is_told(name: str, hub: FakeHub, tmp_path: Path) -> None:
    hub.files["x.gguf"] = ONE
    for folder in ("hub", "cache"):
        (tmp_path / folder).write_text("a file")
    with pytest.raises(DownloadError, match=r"cannot be kept: .*/(hub|cache).*"):
        fetched(name.replace("URL", hub.url))


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
from pyggml.engine.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_disk_that_fills_up_on_the_way_keeps_what_came(hub: FakeHub, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, "pull", f"hf:{NAME}:Q4_0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "m-Q4_0.gguf broke off after" in done.stderr and "File too large" in done.stderr
    assert parts(tmp_path) == [60_000]
    assert content(fetched(f"hf:{NAME}:Q4_0")) == [ONE]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:o/none", "hf:o/none is not there, or is private; if it is private, set HF_TOKEN"),
        ("hf:o/gated", "o/gated/m-Q4_0.gguf is gated: ask for access on its page of the hub, and set HF_TOKEN"),
        ("hf:o/m@v9", "hf:o/m@v9 has no such revision"),
        ("hf:o/m:Q5_0", "hf:o/m has no Q5_0; did you mean Q8_0?; it has Q8_0, Q4_0"),
        ("hf:o/m:mmproj-F32.gguf", "hf:o/m has no mmproj-F32.gguf"),
        ("hf:o/words", "hf:o/words holds no GGUF model"),
        ("hf:o--o/m", "hf:o--o/m cannot be a repository of the hub"),
        ("URL/files/none.gguf", "none.gguf is not there (status 404)"),
    ],
)
def test_what_cannot_be_had_is_a_mistake_and_said_in_words(
    name: str, message: str, hub: FakeHub, tmp_path: Path
) -> None:
    hub.repos["o/gated"] = {Q4: ONE}
    hub.gated.add("o/gated")
    hub.repos["o/words"] = {"README.md": b"#", "mmproj-F16.gguf": ONE}
    with pytest.raises(ConfigError) as caught:
        fetched(name.replace("URL", hub.url))
    assert message in str(caught.value)
    assert all_files(tmp_path) == []


def test_a_hub_that_is_not_reached_is_a_failure(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="hf:o/m cannot be had now"):
        fetched(f"hf:{NAME}")


def test_the_token_goes_to_the_hub_and_no_further(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens[NAME] = "hf_secret"
    with pytest.raises(ConfigError, match="private"):
        fetched(f"hf:{NAME}:Q4_0")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.asked.clear()
    assert content(fetched(f"hf:{NAME}:Q4_0")) == [ONE]
    assert {a.token for a in hub.asked if "/cdn/" not in a.path} == {"hf_secret"}
    assert {a.token for a in hub.asked if "/cdn/" in a.path} == {""}
    hub.files["x.gguf"] = ONE
    fetched(f"{hub.url}/files/x.gguf")
    assert {a.token for a in hub.asked if "/files/" in a.path} == {""}


@pytest.mark.parametrize("how", ["option", "environment"])
def test_offline_nothing_is_asked(how: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.files["x.gguf"] = ONE
    url = f"{hub.url}/files/x.gguf"
    here = [fetched(f"hf:{NAME}:Q4_0"), fetched(url)]
    if how == "environment":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    offline = how == "option"
    assert [fetched(name, offline=offline).paths for name in (f"hf:{NAME}", url)] == [each.paths for each in here]
    for name in (f"hf:{NAME}:Q8_0", f"hf:{NAME}@v2", "hf:o/other", f"{hub.url}/files/y.gguf"):
        with pytest.raises(ConfigError):
            fetched(name, offline=offline)
    with pytest.raises(ConfigError, match="cannot be fetched: --offline or HF_HUB_OFFLINE"):
        fetched(f"hf:{NAME}", offline=offline, is_anew=True)
    assert hub.asked == []


def test_a_newer_state_is_taken_when_it_is_asked_for(hub: FakeHub) -> None:
    old = fetched(f"hf:{NAME}:Q8_0")
    first, *others = SHARDS
    hub.repos[NAME][first] = b"GGUF, newer" * 999
    hub.commit = "beef" * 10
    assert fetched(f"hf:{NAME}:Q8_0").paths == old.paths
    hub.asked.clear()
    new = fetched(f"hf:{NAME}:Q8_0", is_anew=True)
    assert content(new)[0] == b"GGUF, newer" * 999
    assert [hub.starts(path) for path in others] == [[], []]
    assert fetched(f"hf:{NAME}:Q8_0").paths == new.paths


def test_an_older_state_counts_where_the_newer_lacks_a_model(hub: FakeHub) -> None:
    old = fetched(f"hf:{NAME}:Q4_0")
    hub.commit = "beef" * 10
    fetched(f"hf:{NAME}:Q8_0", is_anew=True)
    hub.asked.clear()
    assert fetched(f"hf:{NAME}:Q4_0", offline=True).paths == old.paths


def test_a_mirror_that_lists_no_sizes_is_asked_for_each_file(hub: FakeHub) -> None:
    hub.has_sizes = False
    assert content(fetched(f"hf:{NAME}:Q8_0")) == list(SHARDS.values())
    hub.wrong.add(Q4)
    with pytest.raises(DownloadError, match="in place of"):
        fetched(f"hf:{NAME}:Q4_0")


def test_what_plain_http_is_too_small_for_comes_by_the_library(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pyggml.engine.downloads.hub._max_http_bytes", lambda: 1000)
    assert content(fetched(f"hf:{NAME}:Q8_0")) == list(SHARDS.values())
    hub.wrong.add(Q4)
    with pytest.raises(DownloadError, match=rf"has the SHA-256 \w+ in place of {sha256(ONE)}; it was removed"):
        fetched(f"hf:{NAME}:Q4_0")
    assert not list(tmp_path.rglob(f"*{Q4}"))


def test_two_at_once_fetch_once(hub: FakeHub) -> None:
    hub.break_after[Q4] = [60_000]
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(content(fetched(f"hf:{NAME}:Q4_0")))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[ONE]] * 3
    assert hub.starts(f"cdn/{NAME}/{Q4}") == [0, 60_000]


@pytest.mark.parametrize("form", ["none", "Repr-Digest", "Digest", "X-Checksum-Sha256", "fragment"])
def test_a_plain_address_is_checked_by_whatever_digest_there_is(form: str, hub: FakeHub, tmp_path: Path) -> None:
    import base64

    hub.files["x.gguf"] = ONE
    coded = base64.b64encode(bytes.fromhex(sha256(ONE))).decode()
    shapes = {"Repr-Digest": f"sha-256=:{coded}:", "Digest": f"SHA-256={coded}", "X-Checksum-Sha256": sha256(ONE)}
    hub.headers = {form: shapes[form]} if form in shapes else {}
    url = f"{hub.url}/files/x.gguf" + (f"#sha256={sha256(ONE)}" if form == "fragment" else "")
    assert content(fetched(url)) == [ONE]
    remove(model_address(url))
    assert all_files(tmp_path) == []
    hub.wrong.add("x.gguf")
    if form == "none":
        assert content(fetched(url)) != [ONE]
        return
    with pytest.raises(DownloadError, match=rf"has the SHA-256 \w+ in place of {sha256(ONE)}"):
        fetched(url)
    assert all_files(tmp_path) == []


def test_a_file_here_with_another_digest_than_the_address_is_not_used(hub: FakeHub) -> None:
    hub.files["x.gguf"] = ONE
    fetched(f"{hub.url}/files/x.gguf")
    with pytest.raises(DownloadError, match=f"lies here with the SHA-256 {sha256(ONE)} in place of {'a' * 64}"):
        fetched(f"{hub.url}/files/x.gguf#sha256={'a' * 64}")


def test_a_plain_address_is_resumed_and_its_shards_come(hub: FakeHub) -> None:
    hub.files = {path.rpartition("/")[2]: data for path, data in SHARDS.items()}
    first, second, _ = hub.files
    hub.break_after[second] = [0, 100] + [0] * 20
    url = f"{hub.url}/files/{first}"
    with pytest.raises(DownloadError, match="broke off after 100 of 70004"):
        fetched(url)
    hub.break_after.clear()
    hub.asked.clear()
    assert content(fetched(url)) == list(SHARDS.values())
    assert hub.starts(second) == [0, 100]  # the first one is asked for its headers only


def test_a_part_of_another_version_is_not_gone_on_with(hub: FakeHub) -> None:
    hub.files["x.gguf"] = ONE
    hub.break_after["x.gguf"] = [0, 100] + [0] * 20
    with pytest.raises(DownloadError):
        fetched(f"{hub.url}/files/x.gguf")
    hub.break_after.clear()
    hub.files["x.gguf"] = newer = b"GGUF" + ONE
    assert content(fetched(f"{hub.url}/files/x.gguf")) == [newer]


def test_what_is_stored_is_listed_and_removed_by_name(hub: FakeHub, tmp_path: Path) -> None:
    hub.files["x.gguf"] = ONE
    names = [f"hf:{NAME}:Q4_0", f"hf:{NAME}:Q8_0", f"{hub.url}/files/x.gguf"]
    sizes = [fetched(name).n_bytes for name in names]
    assert sorted((each.name, each.n_bytes, each.n_files) for each in stored_models()) == sorted(
        zip(names, sizes, (1, 3, 1))
    )
    assert remove(model_address(names[1])) >= sizes[1]
    assert [each.name for each in stored_models()] == [names[0], names[2]]
    assert content(fetched(names[0])) == [ONE]
    assert remove(model_address(f"hf:{NAME}")) >= sizes[0]
    assert not (tmp_path / "hub" / "models--o--m").exists()
    remove(model_address(names[2]))
    assert stored_models() == []
    for name in names:
        with pytest.raises(ConfigError, match="is not on this disk; pyggml list shows what is"):
            remove(model_address(name))


def test_what_is_not_whole_is_listed_and_goes_with_its_repository(hub: FakeHub) -> None:
    hub.break_after[Q4] = [50_000] + [0] * 20
    with pytest.raises(DownloadError):
        fetched(f"hf:{NAME}:Q4_0")
    (found,) = stored_models()
    assert (found.name, found.n_bytes, found.path) == (f"hf:{NAME}", 50_000, None)
    assert remove(model_address(f"hf:{NAME}")) == 50_000
    assert stored_models() == []


def test_removing_leaves_what_other_programs_keep_there(hub: FakeHub, tmp_path: Path) -> None:
    found = fetched(f"hf:{NAME}:Q4_0")
    other = found.paths[0].with_name("config.json")
    other.write_text("{}")
    remove(model_address(f"hf:{NAME}"))
    assert other.read_text() == "{}" and not found.paths[0].exists()


def test_the_hub_cannot_put_a_file_elsewhere(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos[NAME]["../../../m-F16.gguf"] = ONE
    with pytest.raises(DownloadError, match="outside of its folder"):
        fetched(f"hf:{NAME}:F16")
    assert not list(tmp_path.glob("**/m-F16.gguf"))


@pytest.mark.parametrize("name", ["hf:o/tiny", "hf:o/tiny:Q8_0", "URL/files/SHARD"])
@pytest.mark.parametrize("n_shards", [1, 3])
def test_llm_takes_a_model_that_lies_elsewhere(
    name: str, n_shards: int, hub: FakeHub, tiny: Callable[..., Path]
) -> None:
    first = tiny("llama", quant="Q8_0", n_shards=n_shards)
    stem = first.name.removesuffix(".gguf").removesuffix("-00001-of-00003")
    files = sorted(first.parent.glob(f"{stem}*.gguf"))
    names = [path.name.replace(stem, "m-Q8_0") for path in files]
    assert len(files) == n_shards
    hub.repos["o/tiny"] = {each: path.read_bytes() for each, path in zip(names, files)}
    hub.files = hub.repos["o/tiny"]
    with LLM(first, device="cpu", ctx=64, parallel=1) as llm:
        expected = llm.generate("a", max_tokens=8, temperature=0)
    with LLM(name.replace("URL", hub.url).replace("SHARD", names[-1]), device="cpu", ctx=64, parallel=1) as llm:
        assert llm.generate("a", max_tokens=8, temperature=0) == expected
