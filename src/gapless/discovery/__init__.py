"""Where other members could be: the part of the shell that turns WORLD into places.

``Discovery.parse("multicast://, seeds://a:7800,b:7800-7803", group="orders")`` makes one from text;
docs/discovery.md has the sources.
"""

from gapless.discovery.composite import Discovery
from gapless.discovery.directory import Directory
from gapless.discovery.multicast import Multicast, Pair, default_group
from gapless.discovery.seeds import Dns, Seeds
from gapless.discovery.shared_file import SharedFile
from gapless.discovery.source import Problem, Problems, Source
from gapless.discovery.uri import parse_sources

__all__ = [
    "Directory",
    "Discovery",
    "Dns",
    "Multicast",
    "Pair",
    "Problem",
    "Problems",
    "Seeds",
    "SharedFile",
    "Source",
    "default_group",
    "parse_sources",
]
