"""Help texts of commands: `--help` shows the common options of a command with many, `--help-all` every one; and examples."""

from __future__ import annotations

from copy import copy
from typing import Any

import typer
from rich.markup import escape
from typer.core import TyperCommand

HELP_ALL = "--help-all"
MOST = 10  # options that a short help shows, besides --json, --help and --help-all
ALWAYS = ("as_json", "help_all")
LIMITS = ("time_limit", "gap")
REQUEST = ("model", "cluster", "batch", "sequence", "memory", "dtype")
# By command: the options that its short help shows, in order. A command without an entry shows all of its options.
COMMON: dict[str, tuple[str, ...]] = {
    "plan": ("batch", "sequence", "for_", "memory", "precision", "devices", "what_if", "time_limit", "output", "details"),
    "sweep": ("batch", "sequence", "for_", "over", "grid", "margins", "price", "tokens", "folder", "picture"),
    "fit": ("batch", "sequence", "for_", "memory", "reserve", "dtype", "precision", "zero", "host"),
    "place": (*REQUEST, "uneven_shares", *LIMITS, "output"),
    "partition": (*REQUEST, "pipeline", "micro_batches", "time_limit", "output"),
    "switch": (*REQUEST, *LIMITS, "output", "picture"),
    "simulate": ("cluster", "for_", "profile", "schedule", "solution", "time_limit", "trace", "picture"),
    "run": ("steps", "data", "scale_down", "dtype", "device", "learning_rate", "checkpoint", "resume", "metrics", "output"),
    "trial": (*REQUEST, "top", "steps", "scale_down", "output"),
    "import-run": ("cluster", "model", "batch", "sequence", "settings", "memory", "search", "time_limit", "values", "output"),
    "compare-planners": (*REQUEST, "reserve", *LIMITS, "profile"),
    "throughput": ("model", "cluster", "sequence", "memory", "dtype", "planner", "step", *LIMITS, "picture"),
    "build": (*REQUEST, "profile", "measure", "output"),
    "library add": (*REQUEST, "name", "about", "time_limit", "library"),
    "profile measure": ("model", "cluster", "rows", "tp", "sequence", "dtype", "device", "budget", "journal", "output"),
}


# By command: the example at the end of its help, as lines for a shell, which run as they stand in an empty folder.
PLANNED = "trainplan plan gpt2 cpu-4 --batch 8 -o plan.json\n"
BUILT = "trainplan build layer-strategies --model gpt2 --cluster cpu-4 --batch 8 \\\n  --memory 2GiB -o instance.json\n"
ESTIMATED = "trainplan profile estimate --model gpt2 --cluster cpu-4 -o profile.json\n"
STUDIED = (
    'echo "{name: small, models: gpt2, clusters: cpu-4, batches: [8, 16], \\\n'
    '  problems: layer-strategies, methods: [exact, galvatron-dp]}" > study.yaml\n'
    "trainplan study study.yaml -j 2 -o results\n"
)
EXAMPLES = {
    "plan": "trainplan plan qwen3-8b h100:8 --batch 64 --seq 4k --for megatron \\\n  -o plan.json --picture plan.png",
    "sweep": "trainplan sweep gpt2 cpu-4 --batch 8 --seq 64 --over memory=1GiB,2GiB \\\n  --over batch=8..32*2 --no-margins",
    "fit": "trainplan fit llama-3.1-70b h100:8x8 --seq 8k --for megatron",
    "place": "trainplan place --model amp-gpt2 --cluster amp-heterogeneous-16 --batch 32 \\\n"
    "  --dtype float16 --uneven-shares -o plan.json --picture placement.png",
    "partition": "trainplan partition --model gpt2-345m --cluster autopipe-3090-16 --batch 128 \\\n"
    "  --pipeline 4 --micro-batches 8 -o plan.json --picture timeline.png",
    "switch": "trainplan switch --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 \\\n"
    "  --memory 700MB -o plan.json --picture switches.png",
    "throughput": "trainplan throughput --model bert-large --cluster rtx-titan-8 --step 64 \\\n"
    "  --planner galvatron-bmw --planner optimum --picture throughput.png",
    "simulate": PLANNED + "trainplan simulate plan.json --trace trace.json --picture step.png",
    "data": 'echo "some text" > text.txt\ntrainplan data text.txt -o tokens.bin',
    "run": PLANNED + "trainplan run plan.json --steps 3 --scale-down 8 --dtype float64",
    "trial": "trainplan trial --model gpt2 --cluster cpu-4 --batch 8 --sequence 64 \\\n"
    "  --scale-down 8 --top 2 --steps 2 -o plan.json",
    "export": "trainplan plan gpt2 h100:2x1 --batch 8 --for megatron \\\n  -o plan.json\n"
    "trainplan export plan.json --to megatron -o run",
    "explain": PLANNED + "trainplan explain plan.json",
    "report": PLANNED + "trainplan report plan.json -o report.html",
    "import-run": "trainplan plan gpt2 h100:2x1 --batch 8 --for megatron \\\n  -o plan.json\n"
    "trainplan export plan.json --to megatron -o run\n"
    "trainplan import-run run/launch.sh --model gpt2 --cluster h100:2x1\n"
    'echo "iteration 5/ 5 | elapsed time per iteration (ms): 40.0 |" > train.log\n'
    "trainplan import-run run/launch.sh --model gpt2 --cluster h100:2x1 \\\n  --log train.log --no-search",
    "compare": PLANNED + "trainplan plan gpt2 cpu-4 --batch 8 --tp 1 -o other.json\ntrainplan compare plan.json other.json",
    "compare-planners": "trainplan compare-planners gpt2 cpu-4 --batch 8 --sequence 64",
    "compare-methods": BUILT + "trainplan compare-methods instance.json --method exact --method galvatron-dp",
    "validate": """echo '[{"id": "mine", "model": "llama3-8b", "gpu": "H100", "gpus": 64, \\\n"""
    """  "seq": 8192, "gbs": 128, "tp": 2, "zero": 1, "step_s": 5.2}]' > runs.json\n"""
    "trainplan validate runs.json --assumptions --picture errors.png",
    "mcp": "trainplan mcp --folder .",
    "build": BUILT.rstrip(),
    "solve": BUILT + "trainplan solve instance.json --method milp --time-limit 10 -o solution.json",
    "frontier": BUILT + "trainplan frontier instance.json --points 5 --method exact --picture f.png",
    "check": PLANNED + "trainplan check plan.json",
    "methods": "trainplan methods layer-strategies",
    "schema": "trainplan schema layer-strategies > schema.json",
    "study": STUDIED.rstrip(),
    "results": STUDIED + "trainplan results results\n"
    'trainplan results results "select name, status, value_ns, seconds from cells"',
    "model list": "trainplan model list qwen3",
    "model show": "trainplan model show t5-512-4-48 --rows 8 --tp 2",
    "library list": "trainplan library list 'partition/*'",
    "library show": "trainplan library show chain/bert-base-rtx3090-8-b8-s256",
    "library get": "trainplan library get chain/bert-base-rtx3090-8-b8-s256 -o instance.json",
    "library run": "trainplan library run 'assignment/*' --methods exact,papers -j 2 -o scores",
    "library check": "trainplan library check 'assignment/*'",
    "library add": "trainplan library add layer-strategies --model gpt2 --cluster cpu-4 \\\n  --batch 4 --memory 2GiB \\\n"
    "  --name chain/gpt2-cpu-4 --about 'GPT-2 on processes' --library mine",
    "cluster list": "trainplan cluster list h100",
    "cluster kinds": "trainplan cluster kinds",
    "cluster show": "trainplan cluster show amp-heterogeneous-16",
    "cluster detect": "trainplan cluster detect --nodes 4 --network 12.5GB -o cluster.yaml",
    "profile estimate": "trainplan profile estimate --model llama2-7b --cluster h100-8 \\\n  --dtype bfloat16 -o profile.json",
    "profile measure": "trainplan cluster detect --processes 1 -o cluster.yaml\n"
    "trainplan profile measure --model vit-base --cluster cluster.yaml --rows 1 \\\n"
    "  --budget 5 --resume measured.journal -o profile.json",
    "profile import": 'echo "layer,tp1,tp2\nfirst,0.03,0.018\nsecond,0.03,0.018" > times.csv\n'
    "trainplan profile import times.csv --cluster rtx-titan-8 --rows 2 \\\n"
    "  --communication included -o profile.json",
    "profile show": ESTIMATED + "trainplan profile show profile.json --tp 2 --rows 4 --picture profile.png",
}


def show_all(context: typer.Context, wanted: bool) -> None:
    """The callback of the option `--help-all`: prints the command's help with all of its options, and ends the command by
    typer.Exit.

    context: typer's context of the command. wanted: whether the option was given; nothing happens if it was not.
    """
    if wanted and not context.resilient_parsing:
        context.meta[__name__] = True
        typer.echo(context.get_help())
        raise typer.Exit


class HelpedCommand(TyperCommand):
    """A command of typer whose help ends with an example (from EXAMPLES).

    For a command in the table COMMON, `--help` shows only the first paragraph of its description, the options that the table
    names as one panel, and the number of further options, which `--help-all` shows. The further options work all the same.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the command's help: short if the command is in COMMON and has many options, else, or with `--help-all`, whole.

        typer calls it. ctx: typer's context. formatter: typer's, passed on to its own method.
        """
        name = command_name(ctx)
        shown, options = copy(self), {param.name: param for param in self.params if param.param_type_name == "option"}
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        shown.epilog = example(name)
        if name not in COMMON or len(options) <= MOST + len(ALWAYS):
            shown.params = [param for param in self.params if param.name != "help_all"]
        elif __name__ not in ctx.meta:
            brief = [copy(options[field]) for field in (*COMMON[name], *ALWAYS) if field in options]
            for option in brief:
                option.rich_help_panel = None  # type: ignore[attr-defined]
            shown.params = [*arguments, *brief]
            shown.help = (self.help or "").split("\n\n")[0]
            shown.epilog += f"\n\n{len(options) - len(brief)} more options: trainplan {name} {HELP_ALL}"
        TyperCommand.format_help(shown, ctx, formatter)


def command_name(context: Any) -> str:
    """The name of a command without the program's name, such as `profile show`. context: typer's context of the command."""
    names = list[str]()
    while context.parent is not None:
        names.insert(0, context.info_name)
        context = context.parent
    return " ".join(names)


def example(name: str) -> str:
    """The example at the end of a command's help, with its heading. name: the command's name, such as `plan` or `profile
    show`."""
    return f"Example:\n{escape(EXAMPLES[name])}"
