"""Refuses a site that would load anything from elsewhere: a hook of mkdocs, run when all is built."""

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import Abort

LOADED = re.compile(
    r"""<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|preconnect|dns-prefetch|modulepreload|manifest))[^>]*"""
    r"""\bhref=["']?(?:https?:)?//[^"'\s>]+"""
    r"""|url\(["']?(?:https?:)?//[^)]+\)|@import\s+["'](?:https?:)?//[^"']+"""
)
"""What makes a browser fetch something by itself; a link that a reader may follow is none."""


def on_post_build(config: Any, **_: Any) -> None:
    """Look through every page and style sheet.

    Raises:
        Abort: one of them loads something over the network.
    """
    site = Path(config["site_dir"])
    for path in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        if found := LOADED.search(path.read_text(encoding="utf-8")):
            raise Abort(f"{path.relative_to(site)} loads something from elsewhere: {found.group()}")
