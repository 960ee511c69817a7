"""Cuts of interleaved stages with as many layers each."""

import pytest
from trainplan.formulations.schedule.even_chunks import even_chunks


def layers(blocks: int, size: int = 2) -> list[int]:
    """The layers of an embedding, blocks of a given number of units, and a head."""
    return [0, *(1 + block for block in range(blocks) for _ in range(size)), blocks + 1]


@pytest.mark.parametrize(
    "blocks, stages, cuts",
    [
        (4, 2, (5,)),  # embedding and head next to two blocks each
        (4, 4, (3, 5, 7)),
        (6, 4, (3, 7, 11)),  # counted as layers: E+1, 2, 2, 1+H
        (2, 4, (1, 3, 5)),  # each one's own stage
        (126, 16, tuple(range(15, 252, 16))),
        (5, 4, None),
        (4, 8, None),
    ],
)
def test_stages_have_as_many_layers(blocks: int, stages: int, cuts: tuple[int, ...] | None) -> None:
    assert even_chunks(layers(blocks), stages) == cuts


def test_layers_of_one_unit_are_cut_likewise() -> None:
    assert even_chunks(layers(6, 1), 3) == (3, 5)
    assert even_chunks(layers(6, 1), 4) == (2, 4, 6)
