"""Draw certificate.png and certificate-dark.png: the page of a certificate, photographed by Chromium.

python -P docs/figures/certificate.py    # -P: profile.py beside it is no standard library
"""

import subprocess
import tempfile
from pathlib import Path

import certibayes as cb

HERE = Path(__file__).parent
SIZE = "920,1080"

x, y = cb.data.load("digits").test
predictor = cb.zoo.load("digits-swag").predictor(samples=5)
certificate = cb.certify(predictor, x[:50], y[:50], eps=0.1, method=cb.Best(bounds="crown", budget=10))

with tempfile.TemporaryDirectory() as folder:
    page = Path(folder) / "page.html"
    certificate.page(page, x[:50], show=[0, 3, 4, 23])
    for name, scheme in (("certificate.png", 1), ("certificate-dark.png", 0)):
        command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE}"]
        command += [f"--blink-settings=preferredColorScheme={scheme}", f"--screenshot={HERE / name}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
