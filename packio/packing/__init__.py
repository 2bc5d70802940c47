"""Packing: pack, append, merge and convert, a file each, which reads from top to bottom."""

from packio.packing.appending import AppendReport as AppendReport
from packio.packing.appending import append as append
from packio.packing.converting import convert as convert
from packio.packing.making import dry_run as dry_run
from packio.packing.making import pack as pack
from packio.packing.merging import merge as merge
from packio.packing.report import PackReport as PackReport
