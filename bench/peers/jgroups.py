"""JGroups, driven by a Java program (jgroups/Member.java), compiled on first use.

Guarantees: every message of each sender once, in order, none lost; a sender waits for slow
receivers (NAKACK4 by its window, NAKACK2 by MFC).

Configured: the protocols and attributes of the stacks shipped with JGroups (``udp-new.xml`` and
``tcp-new.xml`` for NAKACK4, ``udp.xml`` and ``tcp.xml`` for NAKACK2), except the address and the
ports, discovery by the known addresses over TCP, and diagnostics off. Over UDP JGroups asks for
large socket buffers by itself, and gets the maximum of ``net.core.rmem_max``. Members are merged
and suspected as by default. ``tuned`` asks for the largest possible buffers, requests repairs after
20 ms rather than 500 ms, and has a window within the receive buffers at 1 KB a message (NAKACK4),
or credits of the same size (NAKACK2). Tried on a busy machine at 1 KB: windows of 2000 and 4000
messages were slower (buffers overflow), 500 and 1000 were each ahead in one of two runs; the
bundler ``tq`` and the parallel collector were not ahead in a single run. At 100 B the shipped stack
is faster, and is measured too. On a network with MTU 1500 the datagrams fit the MTU, since a
datagram of forty fragments is lost with any fragment. Java with 256 to 1024 MB of heap and the
default collector of the machine.

Sealed: SYM_ENCRYPT as in the shipped ``sym-encrypt.xml``, that is ``AES/CBC/PKCS5Padding`` and an
IV of 16 bytes for each message, with a key of 256 bits from a keystore. JGroups hands the cipher an
``IvParameterSpec``, which AES/GCM of SunJCE refuses. So the messages are encrypted, but a stranger
can change them, replay them, and forge the headers: less than a sealed group of Gapless promises.

Batching: a ``send`` for each message, as users do; the bundler of JGroups gathers messages.
Received in batches (``receive(MessageBatch)``). A group warms up for seconds before the
measurement, for the sake of the JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from bench.peers.base import Task

HEAP = ["-Xms256m", "-Xmx1024m"]
TUNED_CAPACITY = 1000
TUNED_CREDITS = "800K"
LARGE_BUNDLE = "64K"
FITTING_BUNDLE, FITTING_FRAGMENT = "1440", "1300"
"""Sizes that fit a packet of 1500 bytes with the headers of JGroups, UDP and IP."""

BUNDLER = (
    'bundler_type="pd" bundler.max_size="{size}" bundler.capacity="16k"'
    ' bundler.use_single_sender_thread="true"'
    ' bundler.use_ringbuffer="true" message_processing_policy="max" diag.enabled="false"'
    ' thread_pool.min_threads="0"'
    ' thread_pool.max_threads="200" thread_pool.keep_alive_time="60s" use_virtual_threads="true"'
)


KEYSTORE = "sealed.jceks"
"""The file with the key of encrypted groups, beside the jar."""
KEY_ALIAS, KEY_PASSWORD = "bench", "changeit"
KEYTOOL_OPTIONS = (
    *("-genseckey", "-keyalg", "AES", "-keysize", "256", "-storetype", "JCEKS"),
    *("-alias", KEY_ALIAS, "-storepass", KEY_PASSWORD, "-keypass", KEY_PASSWORD),
)
"""The options of keytool that make the file; the path follows ``-keystore``."""
_ENCRYPT = (
    '<SYM_ENCRYPT provider="SunJCE" sym_algorithm="AES/CBC/PKCS5Padding" sym_iv_length="16"'
    ' sym_keylength="256" keystore_name="{path}" keystore_type="JCEKS"'
    f' store_password="{KEY_PASSWORD}" alias="{KEY_ALIAS}"/>'
)


def stack(task: Task, keystore: Path | None = None) -> str:
    """Return the configuration of a member as XML; ``keystore`` has the key of a sealed group."""
    generation, tuned = task.options["generation"], bool(task.options.get("tuned"))
    is_udp = task.transport == "udp"
    parts = [_udp(task, tuned) if is_udp else _tcp(task)]
    parts += ['<MERGE3 max_interval="30s" min_interval="10s"/>', "<FD_SOCK2/>"]
    parts += ["<FD_ALL3/>" if is_udp else '<FD_ALL3 timeout="40s" interval="5s"/>']
    parts += ['<VERIFY_SUSPECT2 timeout="1.5s"/>', "<BARRIER/>"]
    if task.options.get("sealed"):
        parts.append(_ENCRYPT.format(path=keystore))
    if task.loss:
        parts.insert(1, f'<DISCARD up="{task.loss}"/>')
    parts += (_nakack4 if generation == 4 else _nakack2)(is_udp, tuned)
    size = FITTING_FRAGMENT if is_udp and tuned and _on_network(task) else "60K"
    parts += [f'<FRAG2 frag_size="{size}"/>', "<pbcast.STATE_TRANSFER/>"]
    return '<config xmlns="urn:org:jgroups">\n' + "\n".join(parts) + "\n</config>\n"


def _on_network(task: Task) -> bool:
    """Return whether datagrams go through a network that fragments large datagrams."""
    return not task.host.startswith("127.")


def _udp(task: Task, tuned: bool) -> str:
    first = task.ports[0]
    bundler = BUNDLER.format(size=FITTING_BUNDLE if tuned and _on_network(task) else LARGE_BUNDLE)
    buffers = ""
    if tuned:
        buffers = (
            ' mcast_recv_buf_size="25M" ucast_recv_buf_size="25M"'
            ' mcast_send_buf_size="2M" ucast_send_buf_size="2M"'
        )
    return (
        f'<UDP bind_addr="{task.host}" bind_port="{task.port}"'
        f' mcast_addr="239.8.{first >> 8}.{first & 255}"'
        f' mcast_port="{first}" ip_ttl="1" {bundler}{buffers}/>\n<RED/>\n<PING/>'
    )


def _tcp(task: Task) -> str:
    places = ",".join(f"{host}[{port}]" for host, port in zip(task.hosts, task.ports, strict=True))
    return (
        f'<TCP bind_addr="{task.host}" bind_port="{task.port}" port_range="0"'
        f' recv_buf_size="0" send_buf_size="0"'
        f' buffered_input_stream_size="65536" buffered_output_stream_size="65536"'
        f' sock_conn_timeout="300ms"'
        f' tcp_nodelay="false" {BUNDLER.format(size=LARGE_BUNDLE)}/>\n<RED/>\n'
        f'<TCPPING async_discovery="true" initial_hosts="{places}" port_range="0"/>'
    )


def _nakack4(is_udp: bool, tuned: bool) -> list[str]:
    gms = '<pbcast.GMS print_local_addr="false" join_timeout="1s"/>'
    if not is_udp:
        return ['<NAKACK4 use_mcast_xmit="false" capacity="8192"/>', "<UNICAST4/>", gms]
    capacity, pause = (TUNED_CAPACITY, "20ms") if tuned else (6000, "0.5s")
    return [
        f'<NAKACK4 xmit_interval="{pause}" capacity="{capacity}"/>',
        f'<UNICAST4 xmit_interval="{pause}" capacity="2048"/>',
        gms,
    ]


def _nakack2(is_udp: bool, tuned: bool) -> list[str]:
    pause = "20ms" if tuned else "0.5s"
    credits_bytes = TUNED_CREDITS if tuned else ("4M" if is_udp else "2M")
    return [
        f'<pbcast.NAKACK2 xmit_interval="{pause}"/>'
        if is_udp
        else '<pbcast.NAKACK2 use_mcast_xmit="false"/>',
        f'<UNICAST3 xmit_interval="{pause}"/>' if is_udp else "<UNICAST3/>",
        '<pbcast.STABLE desired_avg_gossip="50s" max_bytes="4M"/>',
        f'<pbcast.GMS print_local_addr="false" join_timeout="{"1s" if is_udp else "2s"}"/>',
        f'<MFC max_credits="{credits_bytes}" min_threshold="0.4"/>',
        f'<UFC max_credits="{credits_bytes}" min_threshold="0.4"/>',
    ]


def command(task: Task, java: str, jar: Path, classes: Path, folder: Path) -> list[str]:
    """Return the command line of a member; the configuration is written to ``folder``."""
    path = folder / f"stack-{task.ports[0]}-{task.at}.xml"
    path.write_text(stack(task, jar.parent / KEYSTORE), encoding="utf-8")
    wanted = task.members or len(task.hosts)
    words = [
        str(path),
        f"m{task.at}",
        task.at,
        len(task.hosts),
        task.senders,
        wanted,
        task.mode,
        task.joins_late,
        *task.begin,
    ]
    return [
        java,
        *HEAP,
        "-Djava.net.preferIPv4Stack=true",
        "-cp",
        f"{jar}:{classes}",
        "Member",
        *(str(word).lower() if isinstance(word, bool) else str(word) for word in words),
    ]
