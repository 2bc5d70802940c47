"""Fill the tables of README.md from what the benchmarks wrote to benchmarks/results.

A table stands between ``<!-- name:begin -->`` and ``<!-- name:end -->`` and comes from
``benchmarks/results/<file>.json``. Figures are copied and rounded, never typed.

    python tools/readme_tables.py            # write README.md
    python tools/readme_tables.py --check    # exit with 1 where README.md is stale
"""
