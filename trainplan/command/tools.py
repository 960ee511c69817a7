"""The tools that `trainplan mcp` offers to assistants.

A tool is a pydantic model of its arguments, from which its JSON Schema is made, and which gives the command line that answers a
call. Files are named relative to one folder, and none outside it is read or written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainplan.execution.runtimes.registry import export_names
from trainplan.formulations.runtimes import RUNTIMES
from trainplan.profiling.base.errors import InputError, shown

SUFFIXES = (".json", ".yaml", ".yml")  # endings by which a file is told from a shipped name
MOST_ITEMS, MOST_LETTERS = 24, 2000  # of a list and of a text that an answer has at most; plan files have longer ones
LEFT_OUT = {"history", "solution", "evidence", "versions", "durations"}  # fields that only plan files have, not answers

Seconds = Annotated[float, Field(gt=0, le=3600, description="Seconds until the search ends; the best until then is given.")]
Tokens = int | str
MODEL = "A name such as 'llama-3.1-70b', 'Qwen/Qwen3-32B' or 'gpt2', or a Hugging Face config.json in the folder."
CLUSTER = "GPUs: nodes of a kind such as '64xH100', 'h100:8x8' (8 nodes of 8) or '8xA100', or a file in the folder."
SEQUENCE = "Tokens of a sample, such as 8192 or '8k'; without it the most that the model allows."
MEMORY = "Memory of each device to plan with, such as '74GiB'; without it what is usable of the device's."


class Tool(BaseModel):
    """The arguments of a tool that an assistant can call, and the command line of `trainplan` that they become. A subclass
    states one tool; its docstring is the tool's description for the assistant.

    Class variables: command, the name of the command that answers a call; paths, the arguments that name files or folders;
    names, the arguments that may be a shipped name or a file.
    """

    model_config = ConfigDict(extra="forbid")
    command: ClassVar[str]
    paths: ClassVar[tuple[str, ...]] = ()
    names: ClassVar[tuple[str, ...]] = ()

    @property
    def seconds(self) -> float:
        """The seconds that the command may search: the argument `time_limit`, or 60 for a tool without it."""
        return float(getattr(self, "time_limit", 60.0))

    def words(self, folder: Path) -> list[str]:
        """The words of the command line of `trainplan` that answers the call.

        folder: the folder in which that command line is run. Raises InputError if an argument names a file that is not inside
        it.
        """
        whole = folder.resolve()
        for name in (*self.paths, *self.names):
            text = getattr(self, name)
            if text is None or (name in self.names and "/" not in text and not text.endswith(SUFFIXES)):
                continue
            if not (folder / text).resolve().is_relative_to(whole):
                problem = f"is {shown(text)}, outside the folder of this server"
                raise InputError("arguments", name, problem, f"give a path inside {whole}")
        return [self.command, *self._words()]

    def _words(self) -> list[str]:
        """The words of the command line after the command's name: options, as `--name=value`, then files. A subclass must
        define it."""
        raise NotImplementedError


class PlanTool(Tool):
    """Find the fastest way to train a Transformer on a cluster that fits its memory: parallelism degrees, pipeline stages,
    micro-batches, ZeRO stage and recomputation, with the predicted step time, tokens/s, MFU and memory, and a proof of how far
    from the best possible the plan is. Writes the plan to a file, for explain and export."""

    command, paths, names = "plan", ("plan_file",), ("model", "cluster")
    model: str = Field(description=MODEL)
    cluster: str = Field(description=CLUSTER)
    batch: int = Field(gt=0, description="Samples of one step, over all devices (the global batch).")
    sequence: Tokens | None = Field(None, description=SEQUENCE)
    runtime: Literal[tuple(RUNTIMES)] | None = Field(None, description="Plan within what this framework runs.")  # type: ignore[valid-type]
    memory: str | None = Field(None, description=MEMORY)
    tp: int | None = Field(None, gt=0, description="Fix the tensor-parallel degree.")
    pipeline: int | None = Field(None, gt=0, description="Fix the number of pipeline stages.")
    micro_batches: int | None = Field(None, gt=0, description="Fix the number of micro-batches of a step.")
    cp: str | None = Field(None, description="Degrees of context parallelism to choose from, such as '1,2,4'; without it 1.")
    precision: str | None = Field(
        None, description="Of matrix multiplications: 'model' or a recipe in fewer bits, such as 'fp8'."
    )
    devices: str | None = Field(None, description="Plan on the fewest devices that do: 'any', or a range such as '16-512'.")
    what_if: str | None = Field(None, description="Say what other numbers would change, such as 'network=1.2' for 20 % more.")
    gap: float = Field(1e-3, ge=0, description="Stop the search once the plan is proven to be within this share of the best.")
    time_limit: Seconds = 60.0
    plan_file: str = Field("plan.json", description="Where to write the plan, in the folder.")

    def _words(self) -> list[str]:
        """The options of `trainplan plan`, as `--name=value`, for the arguments that are given."""
        fixed = {"seq": self.sequence, "for": self.runtime, "memory": self.memory, "tp": self.tp, "pipeline": self.pipeline}
        fixed |= {"micro-batches": self.micro_batches, "cp": self.cp, "precision": self.precision}
        fixed |= {"devices": self.devices, "what-if": self.what_if}
        search = {"gap": self.gap, "time-limit": self.time_limit, "output": self.plan_file}
        return options({"model": self.model, "cluster": self.cluster, "batch": self.batch, **fixed, **search})


class FitTool(Tool):
    """Say in about a second whether a model can be trained on a cluster at all, and the least memory that it takes. Quicker
    than plan, which says how fast, too."""

    command, names = "fit", ("model", "cluster")
    model: str = Field(description=MODEL)
    cluster: str = Field(description=CLUSTER)
    batch: int | None = Field(None, gt=0, description="Samples of one step, over all devices.")
    sequence: Tokens | None = Field(None, description=SEQUENCE)
    runtime: Literal[tuple(RUNTIMES)] | None = Field(None, description="As this framework holds it.")  # type: ignore[valid-type]
    memory: str | None = Field(None, description=MEMORY)

    def _words(self) -> list[str]:
        """The options of `trainplan fit`, as `--name=value`, for the arguments that are given."""
        given = {"model": self.model, "cluster": self.cluster, "batch": self.batch, "seq": self.sequence}
        return options(given | {"for": self.runtime, "memory": self.memory})


class ExplainTool(Tool):
    """Say why a plan is as it is: where each stage's time and memory go, what each part could have instead and what that would
    cost; or, of two plans of one model, what they differ in."""

    command, paths = "explain", ("plan_file", "other_file")
    plan_file: str = Field("plan.json", description="A plan in the folder, as the tool plan writes it.")
    other_file: str | None = Field(None, description="Another plan of the same model, to be compared with the first.")
    time_limit: Seconds = 30.0

    def _words(self) -> list[str]:
        """The words of `trainplan explain` after its name: the plan's file, after either the other plan's file or the option
        `--time-limit`, which does not apply to two plans."""
        if self.other_file is not None:
            return ["--", self.plan_file, self.other_file]
        return [*options({"time-limit": self.time_limit}), "--", self.plan_file]


class ImportRunTool(Tool):
    """Judge a training run from its launch script or configuration (Megatron-LM, Megatron-Bridge, NeMo, torchtitan, DeepSpeed,
    Accelerate, axolotl, LLaMA-Factory, transformers) or its log: the predicted step time and memory, whether it fits, how far
    from the best possible it is, and what to change first."""

    command, paths, names = "import-run", ("file", "output"), ("model", "cluster")
    file: str = Field(description="The script, configuration or log, in the folder.")
    cluster: str = Field(description=CLUSTER)
    model: str | None = Field(None, description=f"{MODEL} Without it the file's.")
    batch: int | None = Field(None, gt=0, description="Samples of one step over all devices, where the file does not say it.")
    micro_batch: int | None = Field(
        None, gt=0, description="Samples of one micro-batch on one rank, where the file does not say it."
    )
    sequence: Tokens | None = Field(None, description="Tokens of a sample, where the file does not say it.")
    settings: dict[str, str] = Field(
        {}, description="Variables of a script, or keys of a configuration, that are set from outside."
    )
    search: bool = Field(True, description="Look for better plans and a bound, too; without it only the prediction.")
    time_limit: Seconds = 60.0
    output: str | None = Field(None, description="Write the plan that the file runs here, in the folder.")

    def _words(self) -> list[str]:
        """The words of `trainplan import-run` after its name: options as `--name=value`, the variables as `--set=NAME=VALUE`,
        then the file. Each of the command's two searches gets half of the time limit."""
        given: dict[str, Any] = {
            "cluster": self.cluster,
            "model": self.model,
            "batch": self.batch,
            "micro-batch": self.micro_batch,
        }
        given |= {"seq": self.sequence, "output": self.output, "time-limit": self.time_limit / 2}  # of each of two searches
        sets = [f"--set={name}={value}" for name, value in self.settings.items()]
        return [*options(given), *sets, *["--no-search"] * (not self.search), "--", self.file]


class ExportTool(Tool):
    """Write the files that start a plan in a framework: arguments or configuration, scripts for torchrun and Slurm, and a page
    on what the framework cannot say of the plan."""

    command, paths = "export", ("plan_file", "output")
    plan_file: str = Field("plan.json", description="A plan in the folder, as the tool plan writes it.")
    to: Literal[tuple(export_names())] = Field(description="The framework.")  # type: ignore[valid-type]
    output: str = Field("run", description="The folder, or of one file its name, to write to, in the server's folder.")
    nearest: bool = Field(False, description="Where the framework cannot run the plan, export the fastest one that it can run.")

    def _words(self) -> list[str]:
        """The words of `trainplan export` after its name: options as `--name=value`, then the plan's file."""
        return [*options({"to": self.to, "output": self.output}), *["--nearest"] * self.nearest, "--", self.plan_file]


TOOLS: dict[str, type[Tool]] = {tool.command: tool for tool in (PlanTool, FitTool, ExplainTool, ImportRunTool, ExportTool)}


def options(given: dict[str, Any]) -> list[str]:
    """A command's options as words of a command line: {"batch": 8, "memory": None} gives ["--batch=8"]. Options whose value is
    None are left out.

    The form with `=` keeps a value that begins with a dash from being read as another option.
    """
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def brief(value: Any) -> Any:
    """The content of an answer (dicts, lists, texts and numbers) cut for an assistant: without the fields in LEFT_OUT, and with
    a text such as "31 items" in place of a list of more than MOST_ITEMS items or a text of more than MOST_LETTERS letters."""
    if isinstance(value, dict):
        return {name: brief(item) for name, item in value.items() if name not in LEFT_OUT}
    if isinstance(value, list | tuple):
        return [brief(item) for item in value] if len(value) <= MOST_ITEMS else f"{len(value)} items"
    return f"{len(value)} letters" if isinstance(value, str) and len(value) > MOST_LETTERS else value
