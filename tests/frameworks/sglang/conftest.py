import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "python" / "tests")]

warnings.simplefilter("ignore")  # of packages that look for a GPU
pytest.importorskip("sglang", reason="sglang is not installed")
pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """The daemons of the prefill node and of the decode node."""
    from rig import Nodes

    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    yield nodes
    nodes.stop()
