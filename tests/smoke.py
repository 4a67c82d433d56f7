"""What must work where nothing but the wheel and its core dependencies is installed: run by ``make dist``.

It runs outside the checkout, in an environment of its own, so that a file which the wheel forgot is missed.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
from torch import nn

import certibayes as cb

package = Path(cb.__file__).parent
assert package.is_relative_to(sysconfig.get_path("purelib")), f"{package} is not what was installed"
assert importlib.metadata.version("certibayes") == cb.__version__
assert (package / "py.typed").is_file()

# Networks that were trained elsewhere, from the network to a page.
torch.manual_seed(0)
nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(2)]
predictor = cb.Samples.from_modules(nets).predictor()
x = torch.rand(5, 4)
certificate = cb.certify(predictor, x, eps=1e-4, domain=(0.0, 1.0))
assert bool(certificate.certified.all()), certificate
assert cb.check_certificate(certificate, predictor, x).holds

# What comes with the package.
digits = cb.data.load("digits")
assert len(digits.test.inputs) == 2000 and len(cb.data.load("diabetes").test.inputs) == 89
entry = cb.zoo.list()[0]
assert cb.zoo.load(entry.name).predictor(entry.samples).digest == entry.digest

# The command line.
command = Path(sys.executable).parent / "certibayes"
said = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout
assert said.split() == ["certibayes", cb.__version__], said
with tempfile.TemporaryDirectory() as folder:
    certificate.save(Path(folder) / "certificate.json")
    # torch brings Jinja, so that a page needs no extra.
    subprocess.run([command, "page", folder], check=True, capture_output=True)
    assert "What is proved" in (Path(folder) / "certificate.html").read_text()
python = sys.version.split()[0]
print(f"certibayes {cb.__version__} works as installed, with torch {torch.__version__} and Python {python}")
