"""`python -m hybridrec` is the console script `hybridrec`."""

from hybridrec.cli import main

if __name__ == "__main__":
    main()
