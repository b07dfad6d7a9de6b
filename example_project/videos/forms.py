"""The upload form."""

from __future__ import annotations

from django import forms

from videos.models import Video

__all__ = ["UploadForm"]


class UploadForm(forms.ModelForm):
    """A title and a file."""

    class Meta:
        model = Video
        fields = ("title", "upload")
