package docs

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestSixQuestions checks that each of the six questions of a night is answered by at most three commands, as the page
// promises. TestCommandsRun runs them.
func TestSixQuestions(t *testing.T) {
	t.Parallel()
	text := contents(t, filepath.Join(root, "docs/how-to/six-questions.md"))
	if !strings.Contains(text, "answered by at most three commands") {
		t.Error("the page promises something else")
	}
	sections := strings.Split(text, "\n## ")[1:]
	if len(sections) != 6 {
		t.Fatalf("the page has %d sections", len(sections))
	}
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		commands, in := 0, false
		for line := range strings.Lines(section) {
			switch line = strings.TrimSpace(line); {
			case strings.HasPrefix(line, "```"):
				in = line == "```sh"
			case in && line != "", strings.HasPrefix(line, "$ "):
				commands++
			}
		}
		if commands < 1 || commands > 3 {
			t.Errorf("%q takes %d commands", title, commands)
		}
	}
}
