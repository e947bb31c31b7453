"""Sections of a report: functions from figures to HTML."""
