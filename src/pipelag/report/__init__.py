"""Tables, figures and the page; knows nothing of papers."""
