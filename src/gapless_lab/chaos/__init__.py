"""Kill everything that can be killed, again and again, and see that nothing acknowledged is lost or there twice.

``gapless chaos`` and ``make chaos`` run it; docs/chaos.md says what is killed and how the table is
judged.
"""
