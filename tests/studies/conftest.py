"""What tests of studies share: the processes that solve cells end with the module that began them."""

from collections.abc import Iterator

import pytest

from trainplan.studies import isolated


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    isolated.close()
