"""Masks a script: quotes, expansions, arrays, tests and here-documents are replaced by letters of the same length.

The result has the structure of the statements only, which a grammar can parse without knowing what is in words; the words are
taken from the script itself, at the same positions.
"""

from __future__ import annotations

import re
from functools import lru_cache

import tree_sitter_bash
from trainplan.execution.launch_files.shell.scan import ASSIGNED, Unclosed, _closed, end_of
from tree_sitter import Language, Parser, Tree

PARSER = Parser(Language(tree_sitter_bash.language()))
DOCUMENT = re.compile(r"<<-?[ \t]*")
FRAME = " \t;&|()<>!{}_#"  # what a grammar has to see of the letters between words, and of reserved words
BRACED = re.compile(r"\{[^\s{}\"'`$;&|()<>]*\}")


@lru_cache(maxsize=256)
def parsed(text: str) -> tuple[Tree, list[tuple[str, int]]]:
    """The syntax tree of a bash text, and the variables that it assigns with the positions where their values begin. Before
    parsing, the text is masked: parts that the grammar misreads, such as tests and comments, are replaced by fillers of the
    same length. Results are cached, since loops evaluate the same texts again. Raises Unclosed for an open quote or bracket."""
    assigned: list[tuple[str, int]] = []
    frame = masked(text, assigned)
    return PARSER.parse(frame.encode()), assigned


def masked(text: str, assigned: list[tuple[str, int]]) -> str:
    """A bash text of the same length in ASCII, in which parts that the grammar misreads (comments, tests, arithmetic,
    assignments, here-documents, non-ASCII) are replaced by fillers. assigned: list to which the assigned variables are
    added, with the positions where their values begin. Raises Unclosed for an open quote or bracket."""
    mask = _Mask(text, assigned)
    while mask.position < len(text):
        mask.step()
    return "".join(mask.result)


class _Mask:
    """A bash text that is masked from its beginning to its end: parts that the grammar misreads are replaced by fillers of the
    same length, so that positions stay the same.

    assigned: list to which the assigned variables are added, with the positions where their values begin. result: the masked
    text so far, in pieces, up to `position`. starts: whether a word starts there. fresh: whether nothing is in the line so far.
    waiting: the here-documents that begin after the line, each as the word that ends it and whether leading tabs are ignored.
    """

    def __init__(self, text: str, assigned: list[tuple[str, int]]) -> None:
        self.text, self.assigned = text, assigned
        self.result: list[str] = []
        self.position, self.starts, self.fresh = 0, True, True
        self.waiting: list[tuple[str, bool]] = []

    def step(self) -> None:
        """Mask the next character, or the construct of bash that begins there. Raises Unclosed for an open quote or bracket."""
        text, position = self.text, self.position
        char = text[position]
        if char == "\n":
            self._end_line()
        elif text.startswith("\\\n", position):
            self._keep("  " if self.starts or self.fresh else "\\\n")
        else:
            self.fresh = self.fresh and char in " \t"
            if self.starts and self._word_start(char):
                return
            if text.startswith("<<<", position):
                self._keep("<<<")
                self.starts = True
            elif text.startswith("<<", position) and (match := DOCUMENT.match(text, position)):
                self._begin_document(match)
            elif char in "\\'\"`$" or (char in "<>" and end_of(text, position) > position + 1):
                self._fill(end_of(text, position))
                self.starts = False
            elif char == "{" and (match := BRACED.match(text, position)) and match[0] != "{}":
                self._fill(match.end())
                self.starts = False
            else:
                self._keep(char if char.isascii() and (char.isalnum() or char in FRAME) else "x")
                self.starts = char in " \t;&|()<>!{"

    def _keep(self, piece: str) -> None:
        """Append a piece to the masked text, and move past as many characters of the original text."""
        self.result.append(piece)
        self.position += len(piece)

    def _fill(self, end: int, keep: str = "") -> None:
        """Replace the text up to an index by fillers. end: the index. keep: characters that are kept."""
        self._keep("".join(char if char in keep else "x" for char in self.text[self.position : end]))

    def _end_line(self) -> None:
        """Keep the end of a line, and mask the here-documents that begin after the line."""
        self._keep("\n")
        self.starts = self.fresh = True
        for delimiter, tabs in self.waiting:
            self.position = _document(self.text, self.position, delimiter, tabs, self.result)
        self.waiting = []

    def _word_start(self, char: str) -> bool:
        """Mask the construct that only the start of a word can be: a comment, an assignment, a test or arithmetic. char: the
        character there. Returns whether there is such a construct; if not, nothing is masked."""
        text, position = self.text, self.position
        following = text[position + 1 : position + 2]
        if char == "#":
            end = text.find("\n", position)
            self._keep("#")
            self._fill(len(text) if end < 0 else end)
            return True
        if char == "!" and following not in (" ", "\t", "\n", "("):
            self._fill(position + 1)
        elif match := ASSIGNED.match(text, position):
            self.assigned.append((match[1], match.end()))
            self._fill(match.end())
            if text[self.position : self.position + 1] == "(":
                self._fill(_closed(text, self.position + 1, "(", ")"))
        elif text.startswith("[[", position) and text[position + 2 : position + 3] in (" ", "\t", "\n"):
            self._bracketed("[[ ", " ]]", _ending(text, position + 2, "]]"))
        elif char == "[" and following in (" ", "\t") and (closed_at := _closing(text, position + 1)):
            self._bracketed("[ ", " ]", closed_at)
        elif text.startswith("((", position) and text[(end := _closed(text, position + 1, "(", ")")) - 2 : end] == "))":
            self._bracketed("((", "))", end, ";")
        else:
            return False
        self.starts = False
        return True

    def _bracketed(self, opening: str, closing: str, end: int, keep: str = "") -> None:
        """Mask the inside of a test or of arithmetic. opening, closing: the brackets that are kept in the masked text. end:
        the index after the closing bracket. keep: characters inside that are kept."""
        self._keep(opening)
        self._fill(end - len(closing), keep)
        self._keep(closing)

    def _begin_document(self, match: re.Match[str]) -> None:
        """Mask the operator of a here-document (`<<`) and the word that ends the document, whose body begins after the line.
        match: the match of the operator."""
        text, end = self.text, match.end()
        while end < len(text) and text[end] not in " \t\n;&|<>()":
            end = end_of(text, end)
        word = text[match.end() : end]
        self.waiting.append((re.sub(r"[\\'\"]", "", word), match[0].startswith("<<-")))
        operator = text[self.position : end]
        self._keep(operator if operator.isascii() else "x" * len(operator))
        self.starts = False


def _document(text: str, position: int, delimiter: str, tabs: bool, result: list[str]) -> int:
    """Mask the body of a here-document. position: where the body begins. delimiter: the word that ends it. tabs: whether
    leading tabs are ignored. result: list to which the masked pieces are added. Returns the index of the end of the
    document's last line."""
    while position < len(text):
        end = text.find("\n", position)
        end = len(text) if end < 0 else end
        line = text[position:end]
        if (line.lstrip("\t") if tabs else line) == delimiter:
            result.append(line if line.isascii() else "x" * len(line))
            return end
        result.append("x" * len(line) + "\n" * (end < len(text)))
        position = end + (end < len(text))
    return position


def _closing(text: str, position: int) -> int | None:
    """The index after the `]` of a test; None if no `]` follows, since `[` is then a command that fails. position: where the
    test's words begin."""
    try:
        return _ending(text, position, "]")
    except Unclosed:
        return None


def _ending(text: str, position: int, closes: str) -> int:
    """The index after the word that closes a test. position: where the test's words begin. closes: that word, `]` or `]]`.
    Raises Unclosed if there is none."""
    while position < len(text):
        if text[position] in " \t\n" and text.startswith(closes, position + 1):
            after = text[position + 1 + len(closes) : position + 2 + len(closes)]
            if after in ("", " ", "\t", "\n", ";", "&", "|", ")"):
                return position + 1 + len(closes)
        if closes == "]" and text[position] in ";\n" and not text.startswith("\\", position - 1):
            raise Unclosed
        position = end_of(text, position)
    raise Unclosed
