"""``python -m gapless``: the command, where its script is not on the path."""

import sys

from gapless.cli.app import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
