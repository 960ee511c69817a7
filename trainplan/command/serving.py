"""`trainplan mcp`: a server that offers plan, fit, explain, import-run and export as tools to assistants.

It speaks the Model Context Protocol over standard input and output, by that protocol's Python SDK (the extra `mcp`). Each call
of a tool is a process of its own (`trainplan.command.call_process`), so that a search keeps its time limit and ends at once
where the client cancels it.
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

from trainplan.command.options import FINE, INFEASIBLE, STOPPED, Command, Outcome, command_with, flag
from trainplan.command.tools import TOOLS, PlanTool, Tool, brief
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import as_input_error

COLUMNS = "100"  # the width of the text of an answer
SPARE_SECONDS = 120.0  # that a call may take beyond its time limit, for the work after the search, before it is ended
PAUSE_SECONDS = 0.2  # between two reports of progress, at least
INSTRUCTIONS = (
    "trainplan plans the distributed training of Transformers: which parallelism, how fast, how much memory, how far from the "
    "best possible. Call fit to learn whether a model fits, plan for the best plan, explain for why, export for the files that "
    "start it, and import-run for a launch script or configuration that is there already. Predictions are computed, not "
    "measured."
)
# The JSON Schema of a tool's answer.
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
    """Raised if the command that answers a tool's call ends with an error; the exception's message is that error's line."""


def command(name: str, words: Sequence[str]) -> Command:
    """Return the function that typer runs for the command `mcp`. name, words: unused; the modules of all commands have a
    function of this signature."""
    return serve


@command_with([flag("folder", Path, "Where files are read and written. [default: the current folder]", Path("."))])
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
    """Answer the requests of a client of the Model Context Protocol on standard input until the client closes it. folder: where
    the tools read and write files."""
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    from trainplan import __version__

    async def list_tools(context: Any, request: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(types, name, tool) for name, tool in TOOLS.items()])

    async def call_tool(context: Any, request: types.CallToolRequestParams) -> types.CallToolResult:
        count, reported_s = 0, -PAUSE_SECONDS

        async def progress(text: str) -> None:
            nonlocal count, reported_s
            if monotonic() - reported_s >= PAUSE_SECONDS:
                count, reported_s = count + 1, monotonic()
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
    """A tool in the form of the Model Context Protocol: its name, its purpose, the JSON Schemas of its arguments and its
    answer, and whether it writes files.

    types: the protocol's module `mcp_types`, which is imported only by the server. name: the tool's name. tool: its class.
    """
    about = " ".join((tool.__doc__ or "").split())
    writes = name == PlanTool.command or "output" in tool.model_fields
    hints = types.ToolAnnotations(
        read_only_hint=not writes, destructive_hint=writes, idempotent_hint=True, open_world_hint=False
    )
    schema = tool.model_json_schema()
    return types.Tool(name=name, description=about, input_schema=schema, output_schema=SCHEMA, annotations=hints)


async def _answer(name: str, given: dict[str, Any], folder: Path, progress: Any) -> dict[str, Any]:
    """Call a tool for a client, and return its answer as a dict of the form of SCHEMA.

    name: the tool's name. given: the client's arguments. folder: where the tool reads and writes files. progress: an async
    function that is awaited with a text for each report of progress. Raises InputError for bad arguments, and CallFailed if the
    tool's command fails.
    """
    if name not in TOOLS:
        raise InputError("tool", "", f"there is none named {name!r}", f"call one of: {', '.join(TOOLS)}")
    try:
        tool = TOOLS[name].model_validate(given)
    except ValidationError as error:
        raise as_input_error(error, name) from None
    done = await _last_line(tool.words(folder), folder, tool.seconds + SPARE_SECONDS, progress)
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


async def _last_line(words: list[str], folder: Path, seconds: float, progress: Any) -> dict[str, Any]:
    """Run a command line of trainplan in a process of its own, and return the last JSON object that the process prints: the
    answer, or {"error": text}.

    words: the command line. folder: the process' current folder. seconds: the time after which the process is ended. progress:
    an async function that is awaited with the text of each progress report that the process prints. The process is killed when
    this call ends, also if the call is cancelled.
    """
    import anyio
    from anyio.streams.text import TextReceiveStream

    last: dict[str, Any] = {"error": "the process of the command ended without an answer"}
    with TemporaryDirectory() as scratch:
        environment = {**os.environ, "COLUMNS": COLUMNS, "TMPDIR": scratch}
        command = [sys.executable, "-m", "trainplan.command.call_process", *words]
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
