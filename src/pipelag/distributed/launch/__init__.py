"""Starting workers: processes, their end, and the links between them where one machine plays several."""
