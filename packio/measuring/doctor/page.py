"""The diagnosis as one HTML page, which needs no other file: texts, tables, and plots as SVG."""

from __future__ import annotations

import base64
import hashlib

import jinja2
from markupsafe import Markup

from packio.measuring.doctor import findings, report
from packio.measuring.doctor.findings import Finding
from packio.measuring.doctor.measured import Kind, Measured, Trial

_COLOURS = {Kind.STEP: "step", Kind.MEMORY_FORMAT: "layout", Kind.COPY: "copy"}  # see page.css
_LEAST = 0.005  # share of the loop's time that is drawn


def make_page(measured: Measured, found: list[Finding], remedies: list[Trial]) -> str:
    """Make the page. It runs no script; its policy allows nothing but its own style."""
    loader = jinja2.PackageLoader("packio.measuring.doctor", ".")
    pages = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    style = loader.get_source(pages, "page.css")[0]
    shares = sorted(findings.shares(measured).items(), key=lambda part: -part[1])
    trials = sorted(measured.trials, key=lambda trial: -trial.factor.median)
    return pages.get_template("page.html").render(
        style=Markup(style),  # noqa: S704 (it is a file of this package)
        digest="sha256-" + base64.b64encode(hashlib.sha256(style.encode()).digest()).decode(),
        loader=measured.loader,
        verdict=report.verdict(measured, found),
        shares=[(k.value, v, _COLOURS.get(k, "data")) for k, v in shares if v >= _LEAST],
        remedies=remedies,
        gain=report.gain,
        trials=trials,
        most=1.02 * max([1.2, *(trial.factor.high for trial in trials)]),
        evidence=report.evidence(measured),
    )
