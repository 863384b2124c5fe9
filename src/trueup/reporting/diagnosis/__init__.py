"""The report of a diagnosis."""

from trueup.reporting.diagnosis.report import diagnosis_report

__all__ = ["diagnosis_report"]
