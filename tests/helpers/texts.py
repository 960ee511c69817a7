"""Files of tokens for small models, made of source texts that ship with Python."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from trainplan.execution.training.tokens import TokenFile, token_file
from trainplan.profiling.models.model import Model


def token_bytes(path: Path, model: Model, count: int = 5000, module: object = json.decoder) -> TokenFile:
    """Writes the first `count` bytes of a module's source to a file, as ids within a model's vocabulary, and opens the file."""
    text = np.frombuffer(Path(str(module.__file__)).read_bytes(), np.uint8)[:count]  # type: ignore[attr-defined]
    (text % model.vocabulary).astype("<u2").tofile(path)
    return token_file(path, "--data", model.tokens, model.vocabulary)
