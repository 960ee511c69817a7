"""`trainplan mcp` as an assistant sees it: a client of the SDK starts the server as a process and calls its tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

anyio = pytest.importorskip("anyio")
pytest.importorskip("mcp")

from anyio.from_thread import start_blocking_portal  # noqa: E402
from mcp import ClientSession, StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402

from trainplan.command.tools import brief  # noqa: E402

SMALL = {
    "model": "gpt2",
    "cluster": "h100:2x1",
    "batch": 8,
    "sequence": "64",
    "runtime": "megatron",
    "pipeline": 2,
    "time_limit": 20,
}


Use = Callable[[ClientSession], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that is served, with a file next to it that no tool may read."""
    around = tmp_path_factory.mktemp("served")
    (around / "config.json").write_text("{}")
    (around / "secret.sh").write_text("TP=2\n")
    (around / "here").mkdir()
    return around / "here"


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Callable[[Use], None]]:
    """One server on the folder for all tests, as a function that lets a client use it."""
    paths = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(Path(__file__).parents[2]))))
    words = ["-m", "trainplan", "mcp", "--folder", str(folder)]
    server = StdioServerParameters(command=sys.executable, args=words, env={"PYTHONPATH": paths}, cwd=folder)
    with (
        open(os.devnull, "w") as nowhere,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(stdio_client(server, errlog=nowhere)) as streams,
        portal.wrap_async_context_manager(ClientSession(*streams)) as client,
    ):
        portal.call(client.initialize)
        yield lambda use: portal.call(use, client)


def text(result: Any) -> str:
    """The text of a tool's result."""
    return "\n".join(entry.text for entry in result.content)


def test_tools_are_listed_with_arguments_that_are_described(served: Callable[[Use], None]) -> None:
    async def use(client: ClientSession) -> None:
        listed = (await client.list_tools()).tools
        assert {tool.name for tool in listed} == {"plan", "fit", "explain", "import-run", "export"}
        for tool in listed:
            assert len(tool.description or "") > 60 and tool.output_schema
            for name, argument in tool.input_schema["properties"].items():
                assert argument.get("description"), (tool.name, name)
                assert "type" in argument or "anyOf" in argument or "enum" in argument

    served(use)


def test_a_plan_is_made_explained_and_exported(folder: Path, served: Callable[[Use], None]) -> None:
    """Its files are in the folder, and the answers say of it what the files say."""

    async def use(client: ClientSession) -> None:
        heard = []

        async def progress(count: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        made = await client.call_tool("plan", SMALL, progress_callback=progress)
        assert not made.is_error, text(made)
        answer = made.structured_content
        plan = json.loads((folder / "plan.json").read_text())
        assert text(made).startswith("FITS") and answer["screen"] == text(made)
        assert answer["written"] == ["plan.json"] and answer["found"] and not answer["stopped"]
        assert answer["figures"]["plan"]["predicted"]["step_ns"] == plan["predicted"]["step_ns"]
        assert len(plan["stages"]) == 2 and heard
        assert "step" in text(await client.call_tool("explain", {"time_limit": 5}))
        written = await client.call_tool("export", {"to": "megatron", "output": "run"})
        assert (folder / "run" / "launch.sh").exists() and "run/launch.sh" in written.structured_content["written"]
        judged = await client.call_tool(
            "import-run", {"file": "run/launch.sh", "cluster": "h100:2x1", "model": "gpt2", "search": False}
        )
        assert text(judged).startswith("FITS") and "SPEED" in text(judged)
        fits = await client.call_tool("fit", {name: SMALL[name] for name in ("model", "cluster", "batch", "sequence")})
        assert not fits.is_error and fits.structured_content["found"], text(fits)
        short = await client.call_tool("plan", {**SMALL, "memory": "100MiB", "plan_file": "other.json"})
        assert not short.is_error and short.structured_content["found"] is False and not (folder / "other.json").exists()

    served(use)


BAD = {
    "unknown-model": ("plan", {**SMALL, "model": "gpt-2-huge-99"}, "gpt-2-huge-99"),
    "no-batch": ("plan", {"model": "gpt2", "cluster": "h100:2"}, "batch"),
    "unknown-argument": ("plan", {**SMALL, "bacth": 3}, "bacth"),
    "not-a-number": ("plan", {**SMALL, "batch": "many"}, "batch"),
    "an-option-in-a-value": ("plan", {**SMALL, "model": "--help"}, "model is"),
    "not-tokens": ("plan", {**SMALL, "sequence": "64q"}, "sequence is '64q'"),
    "not-dense": ("plan", {**SMALL, "model": "mixtral-8x7b"}, "mixture of experts"),
    "no-such-runtime": ("plan", {**SMALL, "runtime": "fairseq"}, "runtime"),
    "absolute-path": ("explain", {"plan_file": "/etc/passwd"}, "outside"),
    "path-upwards": ("export", {"to": "megatron", "output": "../run"}, "outside"),
    "model-outside": ("plan", {**SMALL, "model": "../config.json"}, "outside"),
    "link-outside": ("explain", {"plan_file": "link.json"}, "outside"),
    "no-such-file": ("explain", {"plan_file": "none.json"}, "none.json"),
    "unknown-tool": ("train", {}, "train"),
}


def test_bad_input_is_an_error_of_the_tool_in_one_line(folder: Path, served: Callable[[Use], None]) -> None:
    (folder / "link.json").symlink_to(folder.parent / "config.json")
    before = sorted(folder.iterdir())

    async def use(client: ClientSession) -> None:
        for tool, arguments, stated in BAD.values():
            result = await client.call_tool(tool, arguments)
            assert result.is_error and stated in text(result), (tool, arguments, text(result))
            assert "\n" not in text(result) and "Traceback" not in text(result)
            assert "--" not in text(result) and "command line" not in text(result)

    served(use)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["config.json", "here", "secret.sh"]
    assert sorted(folder.iterdir()) == before


def test_a_script_cannot_have_files_outside_of_the_folder_read(folder: Path, served: Callable[[Use], None]) -> None:
    (folder / "known.sh").write_text("TP=2\n")
    start = (
        "torchrun --nproc_per_node 2 pretrain_gpt.py --tensor-model-parallel-size $TP --num-layers 2 --hidden-size 128 "
        "--num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --micro-batch-size 1 --global-batch-size 2 "
        "--bf16 --vocab-size 1024\n"
    )
    for name, source in (("outside.sh", "../secret.sh"), ("inside.sh", "known.sh")):
        (folder / name).write_text(f"source {source}\n{start}")

    async def use(client: ClientSession) -> None:
        given = {"cluster": "h100:2", "search": False}
        refused = await client.call_tool("import-run", {"file": "outside.sh", **given})
        assert refused.is_error and "$TP has no value" in text(refused), text(refused)
        read = await client.call_tool("import-run", {"file": "inside.sh", **given})
        assert not read.is_error and "SPEED" in text(read), text(read)

    served(use)


def test_a_call_that_is_cancelled_ends_its_search(folder: Path, served: Callable[[Use], None]) -> None:
    """The process that searches is gone, and the server goes on answering."""

    async def use(client: ClientSession) -> None:
        large = {
            "model": "llama-3.1-405b",
            "cluster": "h100:8x64",
            "batch": 2048,
            "sequence": "8k",
            "gap": 0,
            "time_limit": 600,
        }
        with anyio.move_on_after(3):
            await client.call_tool("plan", large)
        ends = time.monotonic() + 20
        while searching(folder) and time.monotonic() < ends:
            await anyio.sleep(0.1)
        assert not searching(folder)
        assert len((await client.list_tools()).tools) >= 4

    served(use)


def searching(folder: Path) -> list[str]:
    """The processes of commands that were called in a folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"trainplan.command.call_process" in (process / "cmdline").read_bytes()
                and (process / "cwd").resolve() == folder
            ):
                found.append(process.name)
        except OSError:
            continue
    return found


def test_without_the_extra_one_line_says_how_to_install_it(tmp_path: Path) -> None:
    code = (
        "import sys, importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'mcp' else find(name, *rest)\n"
        "sys.argv = ['trainplan', 'mcp']\nfrom trainplan.command import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.strip().endswith("pip install 'trainplan[mcp]'") and len(done.stderr.splitlines()) == 1


def test_an_answer_repeats_no_long_lists() -> None:
    value = {"plan": {"units": list(range(100)), "ranks": [0, 1]}, "history": [1], "text": "x" * 5000}
    assert brief(value) == {"plan": {"units": "100 items", "ranks": [0, 1]}, "text": "5000 letters"}
