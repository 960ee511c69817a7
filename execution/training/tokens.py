"""Files of tokens: numbers of 16 or 32 bits, little-endian, one after the other, with nothing else in the file.

A file `tokens.bin` may have `tokens.bin.json` next to it, which has the width of its numbers, the number of ids of its
tokenizer, and which one that is. Where it is absent, numbers are as wide as the model's vocabulary needs. Files are mapped into
memory: only what a batch needs is read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from trainplan.profiling.base.errors import InputError
from trainplan.profiling.base.files import Record, parse

Width = Literal["uint16", "uint32"]
ENDS_BYTES = 2**20  # of a file's beginning and of its end that identify it


class AboutTokens(Record):
    """The description of a file of tokens, in a file next to it. vocabulary: number of ids of the tokenizer. tokenizer: `byte`,
    or the file it was read from."""

    noun = "description of a file of tokens"

    dtype: Width
    vocabulary: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=0)]
    tokenizer: str


@dataclass(frozen=True)
class TokenFile:
    """A file of `tokens` tokens, cut into windows, each of which is one training sample: `sequence` inputs and the token after
    them; a window's first input is the last target of the window before. vocabulary: number of ids that the model has; a larger
    id is refused when it is read. digest: a hash, in hexadecimal digits, of the file's length, its beginning and its end."""

    path: str
    dtype: Width
    tokens: int
    sequence: int
    vocabulary: int
    digest: str

    @property
    def windows(self) -> int:
        """Number of samples (windows) that the file has without reading any token twice as an input."""
        return (self.tokens - 1) // self.sequence

    def read(self, windows: np.ndarray) -> np.ndarray:
        """Token ids of windows of the file, (windows, sequence + 1), int64. windows: their indices. Raises InputError for ids
        that the model does not have."""
        indices = windows.astype(np.int64)[:, None] * self.sequence + np.arange(self.sequence + 1)
        tokens = _mapped(self.path, self.dtype)[indices].astype(np.int64)
        if tokens.size and (most := int(tokens.max())) >= self.vocabulary:
            index = int(indices.flat[int(tokens.argmax())])
            problem = f"is {most}, and the model has ids of 0 to {self.vocabulary - 1}"
            raise InputError(self.path, f"[{index}]", problem, f"give tokens of a tokenizer of {self.vocabulary} ids")
        return tokens


@cache
def _mapped(path: str, dtype: Width) -> Any:
    """The numbers of a file of little-endian integers, mapped into memory as a flat array. Cached."""
    return np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r")


def least_width(vocabulary: int) -> Width:
    """The narrower of 'uint16' and 'uint32' that can hold all ids of a vocabulary of this size."""
    return "uint16" if vocabulary <= 2**16 else "uint32"


def about_path(path: str | os.PathLike[str]) -> Path:
    """The path of a token file's description, which is next to it: 'tokens.bin' -> 'tokens.bin.json'."""
    return Path(f"{os.fspath(path)}.json")


def token_file(path: str | os.PathLike[str], option: str, sequence: int, vocabulary: int) -> TokenFile:
    """Open and check a file of tokens for a model. sequence: tokens per sample. vocabulary: number of ids that the model has.
    option: the flag that named the file, for messages. Raises InputError if it cannot be read, is too short, or has ids that
    the model has not."""
    where, dtype = os.fspath(path), least_width(vocabulary)
    try:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            ends = file.read(ENDS_BYTES)
            file.seek(max(0, size - ENDS_BYTES))
            ends += file.read(ENDS_BYTES)
    except OSError as error:
        fix = "give a file of tokens, such as `trainplan data` writes"
        raise InputError("command line", option, f"is {where!r}: {error.strerror}", fix) from None
    if about_path(path).exists():
        about = parse(about_path(path), AboutTokens)
        dtype = about.dtype
        if about.vocabulary > vocabulary:
            problem = f"is {about.vocabulary}, and the model has {vocabulary} ids"
            raise InputError(str(about_path(path)), "vocabulary", problem, "give tokens of the model's tokenizer")
    width = np.dtype(dtype).itemsize
    if size % width:
        fix = f"write numbers of {8 * width} bits, or say in {about_path(path).name} how wide they are"
        raise InputError(where, "", f"has {size} bytes, which are no whole {dtype} numbers", fix)
    if size // width <= sequence:
        fix = "give a longer text, or a model of shorter samples"
        raise InputError(where, "", f"has {size // width} tokens, and one sample takes {sequence + 1}", fix)
    digest = hashlib.blake2b(b"%d " % size + ends, digest_size=8).hexdigest()
    return TokenFile(os.path.abspath(where), dtype, size // width, sequence, vocabulary, digest)
