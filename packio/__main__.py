"""``python -m packio``: the same as the command ``packio``."""

from packio.cli import main

if __name__ == "__main__":
    main()
