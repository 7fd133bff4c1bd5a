"""The embedded model on both engines, loaded once for all tests of this folder."""

import pytest


@pytest.fixture(scope="session")
def smollm2():
    from nsd.targets.load import load_target

    return load_target("smollm2-135m", dtype="float32", device="cpu", engine="transformers")


@pytest.fixture(scope="session")
def smollm2_lean():
    from nsd.targets.load import load_target

    return load_target("smollm2-135m", dtype="float32", device="cpu", engine="lean")
