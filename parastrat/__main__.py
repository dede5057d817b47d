"""``python -m parastrat``."""

from parastrat.cli.main import main

if __name__ == "__main__":
    main()
