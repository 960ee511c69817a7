"""Lines of code by folder: no docstrings, comments or blank lines. `python benchmarks/code_lines.py [FOLDER ...]`.

Files that are evidence rather than product (`papers`) are counted apart.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

FOLDERS = ("formulations", "solvers", "profiling", "execution", "trainplan")
APART = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(path: Path) -> int:
    """Lines of a file that hold code."""
    text = path.read_text()
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, described) and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in APART:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def main() -> None:
    """Print the lines of each folder."""
    product = evidence = 0
    for folder in sys.argv[1:] or FOLDERS:
        counts = {path: code_lines(path) for path in sorted(Path(folder).rglob("*.py"))}
        papers = sum(count for path, count in counts.items() if "papers" in path.parts)
        print(f"{folder:<14} {sum(counts.values()) - papers:>6}" + (f"  and {papers} of papers" if papers else ""))
        product, evidence = product + sum(counts.values()) - papers, evidence + papers
    print(f"{'product':<14} {product:>6}  and {evidence} of papers")


if __name__ == "__main__":
    main()
