"""``python -m certibayes`` is the command line."""

from certibayes.cli import main

main()
