"""Drafts that need no drafter model."""

from dspark.drafting.lookup import LookupDraft, PromptLookup

__all__ = ["LookupDraft", "PromptLookup"]
