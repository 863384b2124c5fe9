"""Packages under the names of other tools, with trueup behind them: found by ``trueup alias`` alone."""
