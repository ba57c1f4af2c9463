package docs

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// A transcript is a block of the language console: each line that begins with "$ " is a command, and the lines up to the
// next one are what it prints. "…" stands for any text of a line, and for any lines if it stands alone. Spaces align
// columns, whose widths differ, so any number of them is equal to any other.

// step is one command of a transcript.
type step struct {
	at, command string
	prints      *regexp.Regexp
	text        string // what prints was made of
}

// steps takes a transcript apart.
func (b block) steps(t *testing.T) (out []step) {
	t.Helper()
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			out = append(out, step{at: fmt.Sprintf("%s:%d", b.page, b.line+1+i), command: command})
			continue
		}
		if len(out) == 0 {
			t.Fatalf("%s:%d: a transcript begins with a command: %q", b.page, b.line+1+i, line)
		}
		out[len(out)-1].text += line + "\n"
	}
	for i := range out {
		out[i].prints = printed(out[i].text)
	}
	return out
}

// printed returns the expression that matches the output of a command.
func printed(text string) *regexp.Regexp {
	expr := ""
	for _, line := range strings.SplitAfter(text, "\n") {
		if line == "…\n" {
			expr += "(?:.*\n)*"
			continue
		}
		for i, words := range strings.Split(strings.Join(strings.Fields(line), " "), "…") {
			if i > 0 {
				expr += ".*"
			}
			expr += regexp.QuoteMeta(words)
		}
		if line != "" {
			expr += "\n"
		}
	}
	return regexp.MustCompile("^" + expr + "$")
}

// squeezed returns the text with one space for each run of them, and none at the end of a line.
func squeezed(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

// changesNothing matches commands that may be repeated until they print what the page shows: a reader is slower than
// the test.
var changesNothing = regexp.MustCompile(`^emitd (status|events|plan|node ls|daemon ls|daemon explain|leader history|outbox stats|queue peek)|--dry-run`)

// transcript runs the commands of a block and compares what they print.
func (s *session) transcript(b block) {
	s.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for _, st := range b.steps(s.t) {
		for deadline := time.Now().Add(time.Minute); ; <-tick.C {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			out, err := s.command(ctx, "sh", "-c", st.command).CombinedOutput()
			cancel()
			if err == nil && st.prints.MatchString(squeezed(string(out))) {
				break
			}
			if !changesNothing.MatchString(st.command) || time.Now().After(deadline) {
				s.t.Fatalf("%s: %s: %v, and it prints\n%s\nwhere the page has\n%s", st.at, st.command, err, out, st.text)
			}
		}
	}
}

// TestTranscriptsCompare checks how a transcript's output is compared.
func TestTranscriptsCompare(t *testing.T) {
	t.Parallel()
	const page = "UNIT  FROM\nacme:a/0  …  (… left)\n…\nend\n"
	for out, want := range map[string]bool{
		"UNIT      FROM\nacme:a/0  b     (3 left)\nmore\nand more\nend\n": true,
		"UNIT FROM\nacme:a/0 b (3 left)\nend\n":                           true,
		"UNIT FROM\nacme:a/0 b (3 left)\nend\nmore\n":                     false,
		"UNIT FROM\nacme:a/0 b (3 right)\nend\n":                          false,
		"acme:a/0 b (3 left)\nend\n":                                      false,
		"":                                                                false,
	} {
		if printed(page).MatchString(squeezed(out)) != want {
			t.Errorf("%q is like the page: %v", out, !want)
		}
	}
}

// TestOperatorsEvening: draining the leader's node, pausing a unit that crashes, and moving a unit and putting it back
// take three commands each at most, and the page shows what they print. TestCommandsRun runs them.
func TestOperatorsEvening(t *testing.T) {
	t.Parallel()
	want := map[string]bool{"emitd node drain": false, "emitd daemon pause": false, "emitd daemon move": false}
	for _, b := range blocks(t) {
		if b.page != operatePage || b.lang != "console" {
			continue
		}
		steps := b.steps(t)
		if len(steps) > 3 {
			t.Errorf("%s:%d: %d commands, want at most three", b.page, b.line, len(steps))
		}
		for _, st := range steps {
			for command := range want {
				want[command] = want[command] || strings.HasPrefix(st.command, command)
			}
		}
	}
	for command, shown := range want {
		if !shown {
			t.Errorf("%s has no transcript with %q", operatePage, command)
		}
	}
}

const operatePage = "docs/how-to/operate.md"
