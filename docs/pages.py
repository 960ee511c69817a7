"""Builds the parts of the site other than the pages of docs/: notebooks as pages, sources of pages, and texts for assistants
(llms.txt)."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
INDEX, ALL = "llms.txt", "llms-full.txt"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook, with its pictures."""
    from mkdocs.structure.files import File

    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, pictures = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=picture))
    return files


def on_post_build(config: Any) -> None:
    """Write the sources of the pages alongside them, the index of these, and all of them as one text."""
    site, docs = Path(config["site_dir"]), Path(config["docs_dir"])
    sources = {path.relative_to(docs).as_posix(): path.read_text() for path in sorted(docs.rglob("*.md"))}
    for name, text in sources.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    index = (ROOT / INDEX).read_text().replace("](docs/", "](")
    (site / INDEX).write_text(index)
    listed = [name for name in re.findall(r"\]\(([^)]+\.md)\)", index) if name in sources]
    (site / ALL).write_text("\n\n".join(f"<!-- {name} -->\n\n{sources[name]}" for name in listed))


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page of Markdown, and its pictures by file name."""
    cells, pictures = json.loads(path.read_text())["cells"], dict[str, bytes]()
    parts = []
    for cell in cells:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts += [f"```python\n{source}\n```"] * bool(source)
        for output in cell.get("outputs", []):
            data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                parts.append(f"![What the cell above draws]({name})")
            elif "text/html" in data:
                parts.append(f'<div class="output" markdown="0">\n{_one_block(data["text/html"])}\n</div>')
            elif "text/markdown" in data:
                parts.append(data["text/markdown"])
            elif text := data.get("text/plain") or "".join(output.get("text", "")):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def _one_block(html: str) -> str:
    """HTML without empty lines, which would end it in Markdown, and with the site's styles in place of its own."""
    bare = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    bare = re.sub(r"<table[^>]*>", "<table>", bare)
    return "\n".join(line for line in bare.splitlines() if line.strip())
