"""What each check means, in a sentence for people who have never read the list of invariants."""

from __future__ import annotations

MEANINGS = {
    "S1": "Nothing was delivered that nobody had sent.",
    "S2": "Nothing was delivered twice.",
    "S3": "Every stream was delivered in order, with nothing left out.",
    "S4": "The bytes delivered are the bytes that were sent.",
    "S5": "Out-of-band messages came once, whole, and to everybody.",
    "S6": "Nobody held more than a window may hold.",
    "S7": "The marks of every window are in order and never go down.",
    "S8": "Who acknowledged something had really taken it.",
    "S9": "Nothing was let go that somebody could still need.",
    "S10": "Repairs repeat the original, and only what was asked for.",
    "S11": "Only what was missing was asked for, and not too often.",
    "S12": "What fits was taken; the rest was dropped for the right reason.",
    "S13": "No bytes, however broken, did any harm.",
    "S14": "Memory stayed within its bounds.",
    "S15": "Views are agreed on, and strangers changed nothing.",
    "S16": "A settled group is silent.",
    "S17": "The same seed gives the same run.",
    "S18": "Every frame that went in came out or is accounted for.",
    "S20": "Nobody left before all had what it had sent.",
    "S21": "Nobody that lived was given up.",
    "S22": "State and deliveries together are every message, once.",
    "S23": "A durable member acknowledged only what is on its disk.",
    "L1": "Every message reached everybody it was for.",
    "L2": "In the end every sender knew so, and nobody waited.",
    "L3": "After that nothing more was sent.",
    "L4": "Repairs cost no more than the losses explain.",
    "L5": "No state can be reached from which there is no way on.",
    "L6": "In the end there was one group, of exactly those that lived.",
}
"""By the id of the check."""

NOT_CLAIMED = "A total order between different senders, and the same set of messages per view, are not promised and not checked."
"""What no check looks at."""
