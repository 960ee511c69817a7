"""Files of tokens from texts: by bytes, or by a tokenizer of Hugging Face."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from trainplan.execution.training.tokens import AboutTokens, about_path, least_width
from trainplan.profiling.base.errors import InputError, MissingExtra
from trainplan.profiling.base.files import check_writable, write_whole

BYTES = 256
END = BYTES  # id after each text of bytes
AT_ONCE = 2**22  # letters that are read and encoded together
PATTERNS = ("*.txt", "*.md", "*.py", "*.rst")  # of a folder


def tokenize(
    texts: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str], *, tokenizer: str | os.PathLike[str] = "byte"
) -> AboutTokens:
    """Write a file of tokens for `run --data`, and next to it, as JSON, what it is.

    Args:
        texts: UTF-8 files, in this order, and folders, of which all .txt, .md, .py and .rst files are read in order of their
            names.
        output: the file.
        tokenizer: `byte`, for the 256 bytes and an end of text, 257 ids in all; or the tokenizer.json of a Hugging Face
            tokenizer, or a folder with one, whose end of text (`<|endoftext|>`, `</s>`, `<|end_of_text|>` or `<eos>`, the
            first that it has) is put after each text.

    Returns:
        How many tokens there are, and of what vocabulary.

    Raises:
        InputError: for files that are no texts.
        MissingExtra: where `tokenizers` is needed and not installed.
    """
    check_writable(output)
    name = os.fspath(tokenizer)
    files = list(_files(texts))
    vocabulary, encoded = (BYTES + 1, map(_bytes, files)) if name == "byte" else _encoded(name, files)
    width, count = least_width(vocabulary), 0
    aside = Path(f"{os.fspath(output)}.part")
    try:
        with aside.open("wb") as file:
            for ids in encoded:
                file.write(np.asarray(ids).astype(np.dtype(width).newbyteorder("<")).tobytes())
                count += len(ids)
        about = AboutTokens(dtype=width, vocabulary=vocabulary, tokens=count, tokenizer=name)
        write_whole(about_path(output), about.model_dump_json(indent=1) + "\n")
        aside.replace(output)
    finally:
        aside.unlink(missing_ok=True)
    return about


def _files(texts: Sequence[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files to read texts from: the given files and, for given folders, the text files in them in order of their paths.
    Raises InputError if one does not exist."""
    for source in map(Path, texts):
        if source.is_dir():
            yield from sorted(path for pattern in PATTERNS for path in source.rglob(pattern) if path.is_file())
        elif source.exists():
            yield source
        else:
            raise InputError(
                "command line", "TEXT", f"is {str(source)!r}, which does not exist", "give files or folders of text"
            )


def _bytes(path: Path) -> np.ndarray:
    """The bytes of a text file as token ids, followed by the id of an end of text: an array of uint16."""
    content = np.frombuffer(path.read_bytes(), np.uint8).astype(np.uint16)
    return np.append(content, np.uint16(END))


def _encoded(name: str, files: Sequence[Path]) -> tuple[int, Iterator[Any]]:
    """Encode texts with a Hugging Face tokenizer: (number of its ids, unused ones included; lists of token ids, text after
    text, each text in several parts). name: a tokenizer.json or a folder with one. Raises InputError, or MissingExtra if
    `tokenizers` is not installed."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingExtra("tokenizers", "hub", "a Hugging Face tokenizer") from None
    path = Path(name, "tokenizer.json") if Path(name).is_dir() else Path(name)
    try:
        encoder = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no kind of its own
        fix = "give `byte`, a tokenizer.json, or a folder with one"
        raise InputError("command line", "--tokenizer", f"is {name!r}: {error}", fix) from None
    ends = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
    end = next((number for token in ends if (number := encoder.token_to_id(token)) is not None), None)

    def ids() -> Iterator[Any]:
        for path in files:
            with path.open(encoding="utf-8", errors="replace") as file:
                while lines := file.readlines(AT_ONCE):
                    yield encoder.encode("".join(lines), add_special_tokens=False).ids
            if end is not None:
                yield [end]

    return max(encoder.get_vocab().values()) + 1, ids()
