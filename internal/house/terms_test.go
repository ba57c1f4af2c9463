package house

import (
	"regexp"
	"strings"
	"testing"
)

// terms are words with one spelling, by the spellings that are not used. As verbs they are two words: to take over,
// to fail over, to back off. Help, settings and errors are in the references, so they are checked too.
var terms = map[string]string{
	`take-overs?`:       "takeover",
	`fail-overs?`:       "failover",
	`handovers?`:        "hand-over",
	`wakeups?`:          "wake-up",
	`backoffs?`:         "back-off",
	`time-outs?`:        "timeout",
	`heart-beats?`:      "heartbeat",
	`check-points?`:     "checkpoint",
	`dead-?letters?`:    "dead letter",
	`stand-by`:          "standby",
	`shut-downs?`:       "shutdown",
	`roll-outs?`:        "rollout",
	`cleanups?`:         "clean-up",
	`data-bases?`:       "database",
	`web-hooks?`:        "webhook",
	`web-sockets?`:      "WebSocket",
	`(?-i:websockets?)`: "WebSocket",
	`postgresql`:        "Postgres",
	`(?-i:sqlite)`:      "SQLite",
	`nameserver`:        "name server",
}

// code matches what a page shows as typed: blocks, words in backquotes, the targets of links, flags, keys,
// addresses and the names of files.
var code = regexp.MustCompile("(?s)```.*?```|(?m)^    .*$|`[^`\n]*`|\\]\\([^)]*\\)|\\S*[_/:=]\\S*|--\\S+|\\S+\\.(?:go|md|db|yaml|txtar)\\b")

// TestTermsHaveOneSpelling: a search for a word in the documents finds every use of it.
func TestTermsHaveOneSpelling(t *testing.T) {
	t.Parallel()
	wrong := map[*regexp.Regexp]string{}
	for spelling, right := range terms {
		wrong[regexp.MustCompile(`(?i)(?:^|[^\w-])(`+spelling+`)(?:$|[^\w-])`)] = right
	}
	for page, text := range pages(t) {
		if page == "docs/measurements.md" { // its tables have the names of tests
			continue
		}
		for i, line := range strings.Split(code.ReplaceAllStringFunc(text, blank), "\n") {
			for re, right := range wrong {
				if m := re.FindStringSubmatch(line); m != nil {
					t.Errorf("%s:%d: %q is spelt %q in these documents", page, i+1, m[1], right)
				}
			}
		}
	}
}

// blank keeps the lines of a text, so that their numbers stay right.
func blank(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) }
