"""The skeletons in CONTRIBUTING.md must run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

CONTRIBUTING = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", CONTRIBUTING, re.DOTALL | re.MULTILINE)

CHECK = """
import sys, types
import torch
import certibayes as cb

layer, algorithm = open(sys.argv[1]).read(), open(sys.argv[2]).read()
module = types.ModuleType("skeleton")
sys.modules["skeleton"] = module  # dataclasses look their module up
exec(layer, module.__dict__)
assert cb.supports(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softsign(), torch.nn.Linear(4, 2)))
exec(algorithm, module.__dict__)
x = torch.rand(20, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Softsign(), torch.nn.Linear(4, 2))
posterior = cb.fit(net, (x, (x[:, 0] > 0.5).long()), algorithm=module.FixedStd(), epochs=1, batch_size=10,
                   likelihood=cb.RobustCategorical(cb.TwoPoint(0.05)), progress=False)
result = cb.certify(posterior.predictor(3), x, eps=0.001, domain=(0.0, 1.0))
print(len(result))
"""


def test_the_skeletons_run(tmp_path):
    """In a process of its own: registering a layer is for good."""
    layer = next(block for block in BLOCKS if "class Softsign(Operation)" in block)
    algorithm = next(block for block in BLOCKS if "class FixedStd(Algorithm" in block)
    (tmp_path / "layer.py").write_text(layer)
    (tmp_path / "algorithm.py").write_text(algorithm)
    command = [sys.executable, "-c", CHECK, str(tmp_path / "layer.py"), str(tmp_path / "algorithm.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "20"
