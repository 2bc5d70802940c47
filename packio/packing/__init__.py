"""Packing: `pack`, `append`, `merge` and `convert`, each in a file of its own."""

from packio.packing.appending import AppendReport as AppendReport
from packio.packing.appending import append as append
from packio.packing.making import dry_run as dry_run
from packio.packing.making import pack as pack
from packio.packing.merging import convert as convert
from packio.packing.merging import merge as merge
from packio.packing.report import PackReport as PackReport
