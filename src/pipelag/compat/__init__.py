"""Adapters to libraries that need help to be imported or compared with. Nothing else imports from here."""
