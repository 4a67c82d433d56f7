"""Locks between processes: held by one, given back however it ends."""

import subprocess
import sys

import pytest

from certibayes.support import locks
from certibayes.support.locks import locked

# By its file: the package would bring torch, which takes seconds.
HOLD = """
import runpy, sys, time
from pathlib import Path
locked = runpy.run_path(sys.argv[2])["locked"]
with locked(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a.lock"), locks.__file__], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "True\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.skipif(locks.fcntl is None, reason="this system has no file locks")
def test_a_lock_is_held_by_one_and_given_back_by_a_killed_process(holder, tmp_path):
    with locked(tmp_path / "a.lock", wait=False) as mine:
        assert not mine
    with locked(tmp_path / "b.lock", wait=False) as mine:
        assert mine
    holder.kill()
    holder.wait()
    with locked(tmp_path / "a.lock", wait=True) as mine:
        assert mine


def test_a_lock_is_given_back_when_the_block_ends_in_an_error(tmp_path):
    with pytest.raises(ValueError, match="inside"), locked(tmp_path / "deep" / "a.lock"):
        raise ValueError("inside")
    with locked(tmp_path / "deep" / "a.lock", wait=False) as mine:
        assert mine
