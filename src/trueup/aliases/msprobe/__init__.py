"""The names that programs import from msprobe, with trueup behind them (``trueup alias msprobe``)."""
