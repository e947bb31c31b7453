"""``python -m gapless``: the command ``gapless``, where the script is not on the path."""

from gapless.cli import main

if __name__ == "__main__":
    main()
