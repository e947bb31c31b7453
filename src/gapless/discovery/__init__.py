"""Discovery: sources of the locators of other members.

``Discovery.parse("multicast://, seeds://a:7800,b:7800-7803", group="orders")`` parses sources;
docs/guides/discovery.md lists all kinds.
"""

from gapless.discovery.composite import Discovery
from gapless.discovery.directory import Directory
from gapless.discovery.multicast import Multicast, MulticastSockets, default_group
from gapless.discovery.seeds import Dns, Seeds
from gapless.discovery.shared_file import SharedFile
from gapless.discovery.source import DiscoveryProblem, DiscoveryProblems, DiscoverySource
from gapless.discovery.uri import parse_sources

__all__ = [
    "Directory",
    "Discovery",
    "DiscoveryProblem",
    "DiscoveryProblems",
    "DiscoverySource",
    "Dns",
    "Multicast",
    "MulticastSockets",
    "Seeds",
    "SharedFile",
    "default_group",
    "parse_sources",
]
