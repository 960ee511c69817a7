"""Values that batch systems give a script: nodes, tasks and devices, from its header or from options, and the variables that
hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from trainplan.execution.launch_files.shell.marks import MARK

SLURM = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
PBS = re.compile(r"^#PBS\s+(.*)$", re.MULTILINE)
LSF = re.compile(r"^#BSUB\s+(.*)$", re.MULTILINE)
HEADER = re.compile(r"^#(?:SBATCH|PBS|BSUB)\s", re.MULTILINE)
SHORT = {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-G": "gpus", "-np": "ntasks", "--np": "ntasks", "--n": "ntasks"}
COUNTS = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "gpus-per-node",
    "gpus-per-task",
    "gpus",
    "gres",
    "tasks-per-node",
    "npernode",
    "ppn",
)
PER_NODE = ("tasks-per-node", "npernode", "ppn")
# Launchers whose -N says tasks on each node.
OF_TASKS = ("mpirun", "mpiexec", "orterun", "aprun", "mpiexec.hydra")
# A job has a number, so that scripts which submit themselves where they have none go on.
JOBS = {"SLURM": {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1"}, "PBS": {"PBS_JOBID": "1"}, "LSF": {"LSB_JOBID": "1"}}
NODEFILE, HOSTFILE = "/var/spool/pbs/nodefile", "/var/spool/lsf/hostfile"


def counts(words: Sequence[str], launcher: str = "") -> dict[str, str]:
    """Numbers of nodes, tasks and devices that the options of a launcher request, under Slurm's names: ["-N", "2",
    "--gpus-per-node=8"] -> {"nodes": "2", "gpus-per-node": "8"}. words: the options. launcher: its name, such as mpirun or
    srun; empty for `#SBATCH` lines. Counts that are not stated are left out."""
    if launcher == "jsrun":
        return _resource_sets(words)
    if launcher not in ("", "srun", "sbatch", "salloc", "prun", "horovodrun", "ibrun", "flux", *OF_TASKS):
        return {}
    result: dict[str, str] = {}
    for index, word in enumerate(words):
        name, sign, value = word.partition("=")
        name = SHORT.get(name, name.removeprefix("--").removeprefix("-") if name.startswith("-") else "")
        if not sign:
            value = words[index + 1] if index + 1 < len(words) else ""
            short = re.fullmatch(r"-([NnG])(\d+)", word)
            if short:
                name, value = SHORT[f"-{short[1]}"], short[2]
        if name in COUNTS and value:
            name = "ntasks-per-node" if name in PER_NODE or (name == "nodes" and launcher in OF_TASKS) else name
            if name == "gres":
                gpus = re.search(r"(?:gpu|dcu|npu)(?::[a-zA-Z][\w.-]*)?(?::(\d+))?", value)
                name, value = "gpus-per-node", (gpus[1] or "1") if gpus else ""
            number = re.search(r"(\d+)$", value) if not MARK.search(value) else None
            result[name] = number[1] if number else value if MARK.search(value) else ""
    return {name: value for name, value in result.items() if value}


def _resource_sets(words: Sequence[str]) -> dict[str, str]:
    """The number of tasks that options of jsrun request, as {"ntasks": N}: resource sets times tasks per set; "?" if they
    are not numbers. words: the options."""
    given: dict[str, str] = {}
    names = {"-n": "sets", "--nrs": "sets", "-a": "tasks", "--tasks-per-rs": "tasks", "-p": "ntasks", "--np": "ntasks"}
    for index, word in enumerate(words):
        name, _, value = word.partition("=")
        short = re.fullmatch(r"(-[nap])(\S+)", word)
        name, value = (short[1], short[2]) if short else (name, value or "".join(words[index + 1 : index + 2]))
        if name.replace("_", "-") in names:
            given[names[name.replace("_", "-")]] = value
    tasks, sets, per_set = given.get("ntasks", ""), given.get("sets", ""), given.get("tasks", "1")
    if not tasks and sets.isdecimal() and per_set.isdecimal():
        tasks = str(int(sets) * int(per_set))
    return {"ntasks": tasks or "?"}  # where it is not known, what the job has does not say it either


def batch_of(text: str) -> dict[str, str]:
    """Values that the batch system knows about a job, from the header of its script (#SBATCH, #PBS or #BSUB lines): counts
    under Slurm's names ("nodes"), variables that the script sees ("SLURM_NNODES"), and contents of files ("file PATH").
    text: the script. Empty if it has no header."""
    result: dict[str, str] = {}
    for pattern, of in ((SLURM, _slurm), (PBS, pbs), (LSF, _lsf)):
        if lines := pattern.findall(text):
            result |= of([word for line in lines for word in re.sub(r"\s#.*", "", line).split()])
    return result


def _slurm(words: Sequence[str]) -> dict[str, str]:
    """Counts of nodes, tasks and devices that options of `#SBATCH` request, under Slurm's names, and the variables by which
    Slurm passes them to the script. words: the options."""
    return changed({}, {"nodes": "1", **counts(words)})


def changed(batch: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    """Counts of nodes, tasks and devices of a job, and the variables that hold them, after options of `sbatch` or `srun`
    override the script's header. batch: the job's values so far: counts under Slurm's names such as `nodes` and `ntasks`, and
    variables such as SLURM_NNODES, all as texts. options: counts by Slurm's names, as `counts` gives them. Returns a new dict.
    """
    result = {**batch, **options}
    nodes, per_node, tasks = result.get("nodes", ""), result.get("ntasks-per-node", ""), result.get("ntasks", "")
    if not tasks and per_node.isdecimal() and nodes.isdecimal():
        tasks = str(int(nodes) * int(per_node))
    gpus = result.get("gpus-per-node", "")
    variables = {
        "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_NTASKS": tasks, "SLURM_NPROCS": tasks,
        "SLURM_NTASKS_PER_NODE": per_node, "SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus,
    }  # fmt: skip
    return result | {name: value for name, value in variables.items() if value} | JOBS["SLURM"]


def pbs(words: Sequence[str]) -> dict[str, str]:
    """Counts of nodes, tasks and devices that options of PBS request, such as `-l select=2:ngpus=8:mpiprocs=8` or `-l
    nodes=2:ppn=8:gpus=8`, under Slurm's names, and the variables and files by which PBS passes them to the script. words:
    the options."""
    nodes, tasks, lines = 0, 0, list[str]()
    gpus, per_node = set[str](), set[str]()
    given = re.search(r"(?:^|[\s,])(select|nodes)=([^\s,]+)", " ".join(words))
    for chunk in given[2].split("+") if given else []:
        count, *parts = chunk.split(":")
        fields = {name: value for name, _, value in (part.partition("=") for part in parts)}
        tasks_per_node = fields.get("mpiprocs", fields.get("ppn", ""))
        number = int(count) if re.fullmatch(r"\d{1,5}", count) else 1
        gpus.add(fields.get("ngpus", fields.get("gpus", "")))
        per_node.add(tasks_per_node)
        procs = int(tasks_per_node) if re.fullmatch(r"\d{1,4}", tasks_per_node) else 1
        lines += [f"node{nodes + n:03d}\n" * procs for n in range(number)]
        nodes, tasks = nodes + number, tasks + number * procs
    if not given:
        return {}
    result = JOBS["PBS"] | {
        "nodes": str(nodes), "PBS_NODEFILE": NODEFILE, f"file {NODEFILE}": "".join(lines), "PBS_NUM_NODES": str(nodes),
        "PBS_NNODES": str(nodes),
    }  # fmt: skip
    if len(gpus) == 1 and (tasks_per_node := gpus.pop()):
        result["gpus-per-node"] = tasks_per_node
    if len(per_node) == 1 and (tasks_per_node := per_node.pop()):
        result |= {"ntasks-per-node": tasks_per_node, "PBS_NP": str(tasks), "PBS_NUM_PPN": tasks_per_node}
    return result


def _lsf(words: Sequence[str]) -> dict[str, str]:
    """Counts of nodes, tasks and devices that options of LSF request, such as `-nnodes 4` or `-n 32 -R "span[ptile=8]" -gpu
    "num=8"`, under Slurm's names, and the variables and files by which LSF passes them to the script. words: the options."""
    text = " ".join(words)
    patterns = r"(?:^|\s)-nnodes\s+", r"(?:^|\s)-n\s+", r"\bptile=", r"-gpu\s+\S*num="
    nodes, tasks, per_host, gpus = ("".join(re.findall(rf"{pattern}(\d{{1,6}})\b", text)[:1]) for pattern in patterns)
    result = dict(JOBS["LSF"])
    hosts = int(nodes) if nodes else -(-int(tasks) // int(per_host)) if tasks and per_host and int(per_host) else 0
    if tasks:
        result |= {"ntasks": tasks, "LSB_DJOB_NUMPROC": tasks}
    if gpus:
        result["gpus-per-node"] = gpus
    if hosts:
        lines = ["batch1\n"] * bool(nodes) + [f"host{n:03d}\n" * int(per_host or 1) for n in range(hosts)]
        result |= {"nodes": str(hosts), "LSB_DJOB_HOSTFILE": HOSTFILE, f"file {HOSTFILE}": "".join(lines)}
    return result


def hostnames(batch: dict[str, str]) -> str | None:
    """The output of `scontrol show hostnames`: one made-up name per node of the job, such as node000, a line each. batch: a
    job's values by name, of which SLURM_NNODES or else `nodes` (the number of nodes, as text) is read. None if neither is a
    number."""
    nodes = batch.get("SLURM_NNODES", batch.get("nodes", ""))
    return "".join(f"node{n:03d}\n" for n in range(int(nodes))) if re.fullmatch(r"\d{1,5}", nodes) else None
