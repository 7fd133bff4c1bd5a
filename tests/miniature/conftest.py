import pytest

from benchmarks.miniature import pretrain, shapes
from tests.miniature.models import TINY


@pytest.fixture
def tiny(monkeypatch):
    """The tiny shapes are members of the family, and every second step is stored."""
    for name, shape in TINY.items():
        monkeypatch.setitem(shapes.SHAPES, name, shape)
    monkeypatch.setattr(pretrain, "EVERY", 2)
