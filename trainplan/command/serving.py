"""`trainplan mcp`: plan, fit, explain, import-run and export as tools of assistants, over standard input and output.

The protocol is the Model Context Protocol's, spoken by its Python SDK (the extra `mcp`). Each call is a process of its own
(`trainplan.command.called`), so that a search keeps its time limit and ends at once where the client cancels it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from pydantic import ValidationError
from typer import Exit

from trainplan.command.options import FINE, INFEASIBLE, STOPPED, Command, Outcome, flag, takes
from trainplan.command.tools import TOOLS, PlanTool, Tool, brief
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import as_input_error

COLUMNS = "100"  # of the text of an answer
SPARE_SECONDS = 120.0  # beyond the time limit, for what comes after a search; what takes longer is ended
PAUSE_SECONDS = 0.2  # between two reports of progress
INSTRUCTIONS = (
    "trainplan plans the distributed training of Transformers: which parallelism, how fast, how much memory, how far from the "
    "best possible. Call fit to learn whether a model fits, plan for the best plan, explain for why, export for the files that "
    "start it, and import-run for a launch script or configuration that is there already. Predictions are computed, not "
    "measured."
)
SCHEMA = {
    "type": "object",
    "properties": {
        "screen": {"type": "string", "description": "What the command prints for people."},
        "found": {"type": "boolean", "description": "False where nothing fits, or a check failed."},
        "stopped": {"type": "boolean", "description": "Whether a time limit ended it; the answer is the best until then."},
        "written": {"type": "array", "items": {"type": "string"}, "description": "Files, in the server's folder."},
        "figures": {"description": "The answer as data; long lists are in the files."},
    },
    "required": ["screen", "found", "stopped", "written", "figures"],
}


class CallFailed(Exception):
    """A command ended with an error; the message is its one line."""


def command(name: str, words: Sequence[str]) -> Command:
    """The command."""
    return serve


@takes([flag("folder", Path, "Where files are read and written. [default: the current folder]", Path("."))])
def serve(folder: Path) -> Outcome:
    """Serve plan, fit, explain, import-run and export to an assistant, over standard input and output (MCP).

    Register it as a server that is started by this command; docs/assistants.md has the lines for each assistant. Files are read
    and written in one folder. Each call is a process of its own, which ends with its time limit, or when it is cancelled."""
    if find_spec("mcp") is None:
        raise MissingExtra("the package mcp", "mcp", "trainplan mcp")
    if not folder.is_dir():
        raise InputError("command line", "--folder", f"is {str(folder)!r}, which is no folder", "give one that is there")
    import anyio

    anyio.run(_serve, folder.resolve())
    raise Exit(FINE)


async def _serve(folder: Path) -> None:
    """Answer the client on standard input until it closes it."""
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    from trainplan import __version__

    async def list_tools(context: Any, request: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(types, name, tool) for name, tool in TOOLS.items()])

    async def call_tool(context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        count, told_s = 0, -PAUSE_SECONDS

        async def progress(text: str) -> None:
            nonlocal count, told_s
            if monotonic() - told_s >= PAUSE_SECONDS:
                count, told_s = count + 1, monotonic()
                await context.session.report_progress(count, None, text)

        try:
            answer = await _answer(request.name, request.arguments or {}, folder, progress)
        except (InputError, CallFailed) as error:
            text = error.command_text if isinstance(error, InputError) else str(error)
            return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
        return types.CallToolResult(content=[types.TextContent(text=answer["screen"])], structured_content=answer)

    about = "Plans distributed Transformer training, and proves how good each plan is."
    handlers: dict[str, Any] = {"on_list_tools": list_tools, "on_call_tool": call_tool}
    server: Server[Any] = Server("trainplan", version=__version__, description=about, instructions=INSTRUCTIONS, **handlers)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _described(types: Any, name: str, tool: type[Tool]) -> Any:
    """A tool as the protocol lists it."""
    about = " ".join((tool.__doc__ or "").split())
    writes = name == PlanTool.command or "output" in tool.model_fields
    hints = types.ToolAnnotations(
        read_only_hint=not writes, destructive_hint=writes, idempotent_hint=True, open_world_hint=False
    )
    schema = tool.model_json_schema()
    return types.Tool(name=name, description=about, input_schema=schema, output_schema=SCHEMA, annotations=hints)


async def _answer(name: str, given: dict[str, Any], folder: Path, progress: Any) -> dict[str, Any]:
    """The answer of a tool to these arguments, in the form of SCHEMA. Raises InputError, CallFailed."""
    if name not in TOOLS:
        raise InputError("tool", "", f"there is none named {name!r}", f"call one of: {', '.join(TOOLS)}")
    try:
        tool = TOOLS[name].model_validate(given)
    except ValidationError as error:
        raise as_input_error(error, name) from None
    done = await _called(tool.words(folder), folder, tool.seconds + SPARE_SECONDS, progress)
    if "error" in done:
        raise CallFailed(done["error"])
    code = done["code"]
    return {
        "screen": done["text"],
        "found": code != INFEASIBLE,
        "stopped": code == STOPPED,
        "written": done["written"],
        "figures": brief(done["content"]),
    }


async def _called(words: list[str], folder: Path, seconds: float, progress: Any) -> dict[str, Any]:
    """The last line of a command's process, whose other lines are progress. It ends with the call, however that ends."""
    import anyio
    from anyio.streams.text import TextReceiveStream

    last: dict[str, Any] = {"error": "the process of the command ended without an answer"}
    with TemporaryDirectory() as scratch:
        environment = {**os.environ, "COLUMNS": COLUMNS, "TMPDIR": scratch}
        command = [sys.executable, "-m", "trainplan.command.called", *words]
        process = await anyio.open_process(command, cwd=folder, env=environment, stderr=None, start_new_session=True)
        try:
            with anyio.move_on_after(seconds) as limit:
                assert process.stdin is not None and process.stdout is not None
                await process.stdin.aclose()
                rest = ""
                async for text in TextReceiveStream(process.stdout):
                    *lines, rest = (rest + text).split("\n")
                    for message in map(json.loads, lines):
                        if "progress" in message:
                            await progress(message["progress"])
                        else:
                            last = message
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()
    if limit.cancelled_caught:
        return {"error": f"took longer than {seconds:.0f} s and was ended; give a smaller problem, or a smaller time_limit"}
    return last
