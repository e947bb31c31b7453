"""Columns and events until the recorder's own table is there."""

COLUMNS = {
    name: kind
    for kind, names in {
        "bigint": "seed member idx step t_ns",
        "tinyint": "event",
        "bigint ": "view origin epoch to seqno seqno_last",
        "int": "part",
        "bigint  ": "k peer size_bytes hash hash_first sent_ns low delivered high",
        "string": "reason frame_id",
    }.items()
    for name in names.split()
}
COLUMNS = {name: kind.strip() for name, kind in COLUMNS.items()}
_EVENTS = """SEND STORE DROPPED ACK_OUT ACK_IN NAK_OUT NAK_IN REPAIR SUPPRESSED GONE_OUT GONE_IN TAIL_OUT TAIL_IN PURGE
BLOCK UNBLOCK TIMER VIEW STATE EARLY VOTE_OUT VOTE_IN STABLE_OUT STABLE_IN SEND_ASIDE STORE_ASIDE REPAIR_ASIDE SUSPECT
BEGIN DELIVER MEMBERS START LOST STATE_IN EXPELLED REST END TX RX NET_DROP NET_DUP NET_DELAY NET_CORRUPT CRASH PAUSE
RESUME"""
CODES = {name: code for code, name in enumerate(_EVENTS.split(), 1)}
