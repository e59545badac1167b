"""Scripts as far as consensus asks: their class, their signature operations, and whether they let an input spend its
coin, which Core's own interpreter answers.
"""
