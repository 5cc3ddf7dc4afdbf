"""README.md and every page of docs/ hold what they say: each block runs, or is read as what it is (see pages.py).

Blocks of Python of a page share their names, in a folder with a tiny model as `model.gguf` and SmolLM2 as `smollm2`,
a text as `text.txt`, and its log-probabilities as `base.logits` and `floor.logits`.
The hub is one of our own, and has every repository that is named.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import refusals
from cli_calls import call
from fake_hub import FakeHub
from pages import (
    PAGES,
    READ_ONLY,
    ROOT,
    Block,
    blocks,
    lines_of,
    read_command,
    spans,
    text_of,
    without_environment,
)
from server_process import HANG_S, ServerProcess

sys.path.append(str(ROOT / "bench"))

from corpus import corpus

import pyggml as gg
from pyggml import engine
from pyggml.engine.cli.commands import COMMANDS
from pyggml.engine.cli.options import options_of
from pyggml.engine.cli.settings import settle

ALL = [block for page in PAGES for block in blocks(page)]
SERVER = "http://127.0.0.1:8080"
KINDS = {
    "python": ("", "part"), "sh": ("", "server", *READ_ONLY), "text": ("",), "json": ("", "config"), "yaml": ("",),
    "ini": ("unit",), "nginx": ("",), "caddy": ("",), "dockerfile": ("",),
}  # fmt: skip
# Programs that blocks may call besides ours; what they do is not ours to test.
OTHERS = {
    ".", "apt", "cd", "curl", "docker", "git", "install", "journalctl", "mkdir", "nvidia-smi", "ollama", "systemctl",
    "useradd", "vulkaninfo",
}  # fmt: skip
# Instructions of a container file.
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "EXPOSE", "USER", "ENTRYPOINT", "CMD", "HEALTHCHECK"}


def of(language: str, *kinds: str) -> list[Block]:
    return [block for block in ALL if block.language == language and (not kinds or block.kind in kinds)]


def places(found: list[Block]) -> dict[str, object]:
    return {"argvalues": found, "ids": [block.place for block in found]}


@pytest.fixture
def folder(tmp_path: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, empty_hub: FakeHub) -> Path:
    model = tiny("llama", quant="Q8_0")
    (tmp_path / "model.gguf").symlink_to(model)
    (tmp_path / "text.txt").write_text(corpus()[:3000])
    for repo in re.findall(r"hf:([\w.-]+/[\w.-]+)", "".join(map(text_of, PAGES))):
        names = ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf")
        empty_hub.repos[repo] = dict.fromkeys(names, model.read_bytes())
    empty_hub.files["model.gguf"] = model.read_bytes()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    text = text_of(page)
    assert len(re.findall(r"^```", text, re.MULTILINE)) == 2 * len(blocks(page)), "a fence is not closed or is indented"
    assert [b.place for b in blocks(page) if b.kind not in KINDS.get(b.language, ())] == []
    unfenced = re.findall(r"\n\n {4,}\S.*", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    assert unfenced == [], "code that is only indented says not what it is"


@pytest.mark.parametrize("page", sorted({block.page for block in of("python", "")}))
def test_python_blocks_run_and_print_what_they_say(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        source = "\n" * (block.line - 1) + block.text  # a traceback then names the page's line
        code = compile(source, str(ROOT / page), "exec")
        if block.kind == "part":
            continue
        capsys.readouterr()
        exec(code, names)
        printed = iter(capsys.readouterr().out.splitlines())
        for expected in re.findall(r"# -> (.*)", block.text):
            assert expected in printed, f"{block.place} does not print {expected!r}"


RUN = [(block, words) for block in of("sh", "") for words in lines_of(block.text)]


@pytest.mark.parametrize(("block", "words"), RUN, ids=[f"{b.place} {' '.join(w)[:60]}" for b, w in RUN])
def test_command_lines_exit_0(
    block: Block, words: list[str], folder: Path, empty_hub: FakeHub, request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert words[0] == "pyggml", f"{block.place}: only calls of pyggml run here; say behind ```sh why not"
    words = [word.replace("https://example.com", f"{empty_hub.url}/files") for word in words]
    if "rm" in words or "--offline" in words:
        named = next(word for word in words if word.startswith("hf:"))
        assert call(capsys, "pull", named, "--no-offline").status == 0
    if "smollm2" in words:
        (folder / "smollm2").symlink_to(request.getfixturevalue("smollm2"))
    for file in {"base.logits", "floor.logits"}.intersection(words):
        call(capsys, "eval", "ppl", "model.gguf", "--file", "text.txt", "--ctx", 64, "--windows", 2, "--save", file)
    if words[1] == "serve":
        if (keys := folder / "keys.txt").name in words:
            keys.write_text("sk-test name=test\n")
        with ServerProcess(words[2], *words[3:], "--port", 0) as server:
            assert server.get("/health", Authorization="Bearer sk-test").status == 200
        return
    result = call(capsys, *words[1:])
    assert result.status == 0, result.err


READ = [(block, words) for block in of("sh", *READ_ONLY) for words in lines_of(block.text)]


@pytest.mark.parametrize(("block", "words"), READ, ids=[f"{b.place} {' '.join(w)[:60]}" for b, w in READ])
def test_command_lines_that_cannot_run_here_are_such_as_would(block: Block, words: list[str]) -> None:
    words = without_environment(words)
    if words and words[0].endswith(("/pip", "/python", "/pyggml")):
        words[0] = Path(words[0]).name
    match words:
        case []:
            return
        case ["pyggml", *_]:
            read_command(words)
        case ["make", *targets]:
            makefile = (ROOT / "Makefile").read_text()
            assert [t for t in targets if "=" not in t and f"\n{t}:" not in makefile] == []
        case ["python" | "python3", "-m", "pip", *rest] | ["pip", *rest]:
            _check_pip(rest)
        case ["python" | "python3", script, *rest] if script.endswith(".py"):
            source = (ROOT / script).read_text()
            assert [w for w in rest if w.startswith("--") and f'"{w.partition("=")[0]}"' not in source] == []
        case ["python" | "python3", "-m", _, *_]:
            return
        case [program, *_]:
            assert program in OTHERS, f"{block.place}: {program} is neither ours nor known to this test"


def _check_pip(words: list[str]) -> None:
    _, _, after = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")
    extras = re.findall(r"^(\w+) = ", after.partition("\n[")[0], re.MULTILINE)
    asked = [name for word in words for name in re.findall(r"^(?:\.|pyggml)\[([^]]*)\]", word)]
    assert [name for names in asked for name in names.split(",") if name not in extras] == []


@pytest.fixture(scope="module")
def server(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    path = tmp_path_factory.mktemp("pages") / "model.gguf"
    path.symlink_to(tiny("llama", quant="Q8_0"))
    with ServerProcess(path, "--ctx", 512, "--threads", 1) as server:
        yield server


@pytest.mark.parametrize("block", **places(of("sh", "server")))  # type: ignore[arg-type]
def test_blocks_beside_a_server_run(block: Block, server: ServerProcess) -> None:
    curl = argparse.ArgumentParser(prog="curl", exit_on_error=False)  # what of curl such blocks may use
    curl.add_argument("url")
    curl.add_argument("-d")
    curl.add_argument("-H", action="append", default=[])
    curl.add_argument("-N", action="store_true")
    for words in lines_of(block.text):
        assert words[0] == "curl", f"{block.place}: only calls of curl run beside a server"
        asked = curl.parse_args(words[1:])
        assert asked.url.startswith(SERVER), "such blocks ask the server on port 8080"
        headers = dict(header.split(": ", 1) for header in asked.H)
        body = None if asked.d is None else asked.d.encode()
        reply = server.request("GET" if body is None else "POST", asked.url.removeprefix(SERVER), body, **headers)
        assert reply.status == 200 and reply.body and b'"error":{' not in reply.body, reply.body


@pytest.mark.parametrize("block", **places(of("json")))  # type: ignore[arg-type]
def test_json_is_json(block: Block, tmp_path: Path) -> None:
    if block.kind != "config":
        json.loads(block.text)
        return
    (tmp_path / "options.json").write_text(block.text)
    given = {"config": [(str(tmp_path / "options.json"), "--config")]}
    for name in COMMANDS:
        settle(name, options_of(name), given, {})  # raises for a key or a value that is none


@pytest.mark.parametrize("block", **places(of("yaml")))  # type: ignore[arg-type]
def test_yaml_is_yaml(block: Block) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    assert isinstance(yaml.safe_load(block.text), dict)


@pytest.mark.parametrize("block", **places(of("ini", "unit")))  # type: ignore[arg-type]
def test_units_are_such_as_systemd_takes(block: Block, tmp_path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(block.text)
    command = lines_of(unit["Service"]["ExecStart"])[0]
    read_command(["pyggml", *command[1:]])
    if shutil.which("systemd-analyze") is None:
        return
    program = tmp_path / "pyggml"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = tmp_path / "pyggml.service"
    path.write_text(block.text.replace(command[0], str(program)))
    verify = ["systemd-analyze", "verify", "--man=no", str(path)]
    done = subprocess.run(verify, capture_output=True, text=True, timeout=HANG_S, check=False)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "pyggml.service" in line]
    assert (done.returncode, said) == (0, []), done.stderr


@pytest.mark.parametrize("block", **places(of("nginx")))  # type: ignore[arg-type]
def test_nginx_takes_its_configuration(block: Block, tmp_path: Path) -> None:
    plain = re.sub(r"#.*", "", block.text)
    assert plain.count("{") == plain.count("}")
    assert [line for line in map(str.strip, plain.splitlines()) if line and line[-1] not in "{};"] == []
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        return
    config = tmp_path / "nginx.conf"
    local = re.sub(r"^\s*ssl_certificate.*\n", "", block.text, flags=re.MULTILINE).replace(" ssl;", ";")
    config.write_text(f"pid {tmp_path}/pid;\nerror_log stderr;\nevents {{}}\nhttp {{\naccess_log off;\n{local}\n}}\n")
    done = subprocess.run([program, "-t", "-c", str(config)], capture_output=True, text=True, check=False)
    assert "syntax is ok" in done.stderr  # what it says of folders and names of hosts is this machine's


@pytest.mark.parametrize("block", **places(of("caddy")))  # type: ignore[arg-type]
def test_caddy_files_have_whole_blocks(block: Block) -> None:
    assert block.text.count("{") == block.text.count("}") > 0 and "reverse_proxy" in block.text


@pytest.mark.parametrize("block", **places(of("dockerfile")))  # type: ignore[arg-type]
def test_container_files_have_known_instructions_and_files(block: Block) -> None:
    lines = block.text.replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    assert [step for step in steps if step[0] not in INSTRUCTIONS] == []
    for name, rest in steps:
        if name == "COPY" and "--from" not in rest:
            assert [source for source in rest.split()[:-1] if not (ROOT / source).exists()] == []
        if name == "ENTRYPOINT":
            entry = json.loads(rest)
        if name == "CMD":
            read_command([Path(entry[0]).name, *entry[1:], *json.loads(rest)])


@pytest.mark.parametrize("page", PAGES)
def test_commands_within_the_text_are_such_as_would_run(page: str) -> None:
    for span in spans(page):
        if not re.match(r"(?:[A-Z_]+=\S+ )*pyggml \w", span) or "…" in span or re.search(r"\s[A-Z]+\b", span):
            continue
        (words,) = lines_of(span)
        read_command(without_environment(words))


def test_every_command_is_in_the_readme() -> None:
    said = [" ".join(words) for block in blocks("README.md", "sh") for words in lines_of(block.text)]
    assert [name for name in COMMANDS if not any(line.startswith(f"pyggml {name}") for line in said)] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make ([\w-]+)", text_of(page))
    assert [t for t in targets if f"\n{t}:" not in makefile] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text_of(page))
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_within_pages_lead_to_headings(page: str) -> None:
    for target, heading in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", text_of(page)):
        there = ((ROOT / page).parent / target).read_text() if target else text_of(page)
        headings = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", there, re.M)]
        assert heading in headings, f"{page} names #{heading} of {target or page}"


def test_metrics_that_pages_name_are_there(server: ServerProcess) -> None:
    there = server.get("/metrics").body.decode()
    names = re.compile(r"\b(?:pyggml_|llamacpp:)[a-z_]+_(?:total|seconds|bytes|up|slots|waiting|running|tokens|perc)\b")
    named = {name for page in PAGES for name in names.findall(text_of(page))}
    assert named and [name for name in named if name not in there] == []


@pytest.mark.parametrize("package", [gg, engine], ids=["pyggml", "pyggml.engine"])
def test_every_public_name_is_on_the_page_of_python(package: ModuleType) -> None:
    page = text_of("docs/python.md")
    assert [n for n in package.__all__ if not n.startswith("_") and not re.search(rf"\b{n}\b", page)] == []


def test_every_refusal_is_in_troubleshooting() -> None:
    page = refusals.PAGE.read_text()
    assert refusals.rewritten(page) == page, f"run: {Path(sys.executable).name} tests/refusals.py"


SYMPTOMS = (
    "More devices are asked for", "only one GPU seems to work", "this file works with tp", "One rank waits for another",
    "Nodes of several machines", "only on several GPUs", "slower than one", "The start hangs", "NCCL is missing",
    "tensor split needs flash attention", "architecture is not known", "It does not fit", "Out of memory",
)  # fmt: skip


def test_every_symptom_has_something_to_do() -> None:
    page = refusals.PAGE.read_text()
    table = page.partition("## What you see")[2].partition("## What it says")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert [row for row in rows if len(row) != 3 or not re.search("`|\\]\\(|nothing", row[2])] == []
    assert [symptom for symptom in SYMPTOMS if not any(symptom in row[0] for row in rows)] == []


def test_a_message_that_was_not_there_before_would_be_missed() -> None:
    page = refusals.PAGE.read_text()
    said = {line[2] for line in refusals.LINE.finditer(page)}
    assert {message.text for message in refusals.messages()} <= said
    assert len(said) > 300 and any(text.startswith("no model file") for text in said)
