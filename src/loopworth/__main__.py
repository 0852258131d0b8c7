"""Run the command line as `python -m loopworth`."""

from loopworth.cli import main

if __name__ == "__main__":
    main(prog_name="loopworth")
