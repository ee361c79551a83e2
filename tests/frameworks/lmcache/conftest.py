import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PATHS = [str(HERE), str(HERE.parents[2] / "python" / "tests")]
sys.path[:0] = PATHS


@pytest.fixture(scope="session")
def codebook(tmp_path_factory):
    import strait
    from rig import values_of

    path = tmp_path_factory.mktemp("set") / "codebook"
    strait.calibrate({"kv": values_of(99, 400000)}).save(path)
    return path


@pytest.fixture
def adapter(tmp_path, codebook):
    from rig import Adapter

    adapter = Adapter(tmp_path / "kv", codebook=str(codebook))
    yield adapter
    adapter.real.close()
