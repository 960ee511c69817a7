"""Weights in a folder as Hugging Face has them: safetensors files, an index where there are several, and `config.json`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from trainplan.execution.training.huggingface import to_ours, to_theirs
from trainplan.execution.training.huggingface_names import CLASSES
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import read_data
from trainplan.profiling.models.model import Model, load_model

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BASES = ("transformer.", "model.decoder.", "model.", "bert.", "gpt_neox.")  # that files of models without a head leave out


def library() -> Any:
    """The module safetensors, imported when it is first needed. Raises MissingExtra if it is not installed."""
    try:
        import safetensors.torch
    except ImportError:
        raise MissingExtra("safetensors", "hub", "reading and writing weights") from None
    return safetensors


@dataclass
class WeightFiles:
    """The safetensors files of a folder of weights, opened lazily and mapped into memory. file_of: the name of the file that
    holds each tensor, by the tensor's name."""

    folder: Path
    file_of: dict[str, str] = field(default_factory=dict)
    _open: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.folder / INDEX).exists():
            self.file_of = dict(read_data(self.folder / INDEX)["weight_map"])
        else:
            self.file_of = dict.fromkeys(self._file(SINGLE).keys(), SINGLE)

    @classmethod
    def of(cls, folder: str) -> WeightFiles:
        """The weight files of the folder with this path."""
        return cls(Path(folder))

    def _file(self, name: str) -> Any:
        """The opened safetensors file of this name in the folder; opened only once."""
        if name not in self._open:
            self._open[name] = library().safe_open(str(self.folder / name), framework="pt")
        return self._open[name]

    def tensor(self, names: tuple[str, ...]) -> Tensor:
        """The first tensor of the files that has one of these names, or one of them without a prefix that files of models
        without a head leave out ('model.'). Raises InputError if there is none."""
        shorter = (name.removeprefix(base) for name in names for base in BASES if name.startswith(base))
        for name in (*names, *shorter):
            if name in self.file_of:
                tensor: Tensor = self._file(self.file_of[name]).get_tensor(name)
                return tensor
        raise InputError(str(self.folder), names[0], "is in none of its files", "give weights of the plan's own model")

    def unit(self, model: Model, position: int) -> Iterator[tuple[str, Tensor]]:
        """(name, value) of the whole parameters of the unit (sub-layer) with index `position`, by trainplan's names of
        parameters, in the files' dtype. Raises InputError for missing tensors or other shapes."""
        head = position == len(model.units) - 1
        parameters = {parameter.name: parameter.shape for parameter in model.units[position].sublayer.parameters()}

        def read(names: tuple[str, ...]) -> Tensor:
            try:
                return self.tensor(names)
            except InputError:
                if not (head and model.tied):
                    raise
            if names[0].endswith("decoder.bias"):  # BERT's, which its files have once
                return self.tensor(("cls.predictions.bias",))
            return dict(self.unit(model, 0))["tokens.weight"]

        try:
            yield from to_ours(model, position, read)
        except RuntimeError as error:
            problem = f"has other shapes than {', '.join(f'{name} {shape}' for name, shape in parameters.items())}: {error}"
            fix = "give weights of the plan's own model"
            raise InputError(str(self.folder), model.units[position].name, problem, fix) from None


def check_weights(folder: str | os.PathLike[str], model: Model) -> str:
    """The absolute path of a folder of weights for a model. Raises InputError if the folder has no weights or another model's,
    MissingExtra if safetensors is not installed."""
    library()
    path = Path(folder)
    if (path / "config.json").exists() and (other := load_model(path / "config.json", model.tokens)).digest != model.digest:
        fix = f"give weights of {model.name!r}, or plan for this configuration"
        raise InputError(str(path / "config.json"), "", f"is of another architecture than the plan's, {other.digest!r}", fix)
    if not ((path / INDEX).exists() or (path / SINGLE).exists()):
        fix = f"give a folder with {SINGLE}, or with {INDEX}, as `save_pretrained` writes it"
        raise InputError("command line", "--weights", f"is {str(path)!r}, which has no weights", fix)
    return str(path.absolute())


def check_saved(folder: str | os.PathLike[str]) -> str:
    """The absolute path of a folder to write weights to. Raises InputError if it exists and is not empty, or cannot be
    created; MissingExtra if safetensors is not installed."""
    library()
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError("command line", "--save-weights", f"is {str(path)!r}, which is there", "give a new or an empty folder")
    if not os.access(path.absolute().parent, os.W_OK):
        problem = f"is {str(path)!r}, which cannot be made"
        raise InputError("command line", "--save-weights", problem, "give a folder in one that is there and can be written to")
    return str(path.absolute())


class WeightWriter:
    """Writes weights in Hugging Face's format to a temporary folder, which is renamed at the end; each unit (sub-layer) is a
    file of its own, written by one rank."""

    def __init__(self, folder: str, model: Model, dtype: Any) -> None:
        self.final, self.model, self.dtype = Path(folder), model, dtype
        self.aside = self.final.with_name(f"writing-{self.final.name}")

    def begin(self) -> None:
        """Create the temporary folder. Called on one rank, before any rank writes."""
        shutil.rmtree(self.aside, ignore_errors=True)
        self.aside.mkdir()

    def file(self, position: int) -> str:
        """The name of the file of the unit with index `position`: 'model-00001-of-00012.safetensors'."""
        return f"model-{position + 1:05d}-of-{len(self.model.units):05d}.safetensors"

    def write(self, position: int, values: dict[str, Tensor]) -> dict[str, str]:
        """Write the whole parameters of the unit with index `position`; returns the file's name by tensor. values: by
        trainplan's names of parameters."""
        if self.model.tied and position == len(self.model.units) - 1:
            values = {name: value for name, value in values.items() if name != "logits.weight"}
        tensors = {}
        for names, value in to_theirs(self.model, position, values):
            name = "cls.predictions.bias" if names[0] == "cls.predictions.decoder.bias" else names[0]
            tensors[name] = value.detach().to(self.dtype).cpu().contiguous()
        if tensors:
            library().torch.save_file(tensors, str(self.aside / self.file(position)), metadata={"format": "pt"})
        return dict.fromkeys(tensors, self.file(position))

    def finish(self, file_of: dict[str, str]) -> None:
        """Write index and configuration, and give the folder its final name. Called on one rank, after all have written.
        file_of: the file's name of every tensor."""
        size = sum(path.stat().st_size for path in self.aside.iterdir())
        index = {"metadata": {"total_size": size}, "weight_map": file_of}
        (self.aside / INDEX).write_text(json.dumps(index, indent=1) + "\n")
        named = {"architectures": [CLASSES[self.model.family]], "dtype": str(self.dtype).removeprefix("torch.")}
        (self.aside / "config.json").write_text(json.dumps({**self.model.config, **named}, indent=1) + "\n")
        if self.final.exists():
            self.final.rmdir()
        self.aside.rename(self.final)
