package view

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/node"
)

// TestSixtyColumns checks that everything fits a narrow screen, with the most important columns.
func TestSixtyColumns(t *testing.T) {
	t.Parallel()
	for name, change := range scenes {
		s := healthy()
		change(s)
		v := Of(s, reader)
		var b bytes.Buffer
		w := Screen{&b, 60}
		for _, err := range []error{
			v.Table(w, false), v.NodeTable(false).Write(w), v.UnitTable(false).Write(w),
			OutboxTable([]OutboxStats{{Subscription: "orders", Pending: 12345}}, false).Write(w),
			TermTable([]Term{{TermOrdinal: 41, Node: "emitd-0", EndedBy: string(node.PassesFailed)}}).Write(w),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 60 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
	}
	var b bytes.Buffer
	if err := Of(healthy(), reader).NodeTable(false).Write(Screen{&b, 60}); err != nil || !strings.HasPrefix(b.String(), "NAME     STATE  LEADER") {
		t.Errorf("%v: %s", err, b.String())
	}
}

// TestVisible checks that nothing that a program prints can act on a terminal, and that nothing of it is lost.
func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain äöü ✓":     "plain äöü ✓",
		"a\tb":            "a\tb",
		"\x1b[31mred":     "^[[31mred",
		"back\b\x7f\r":    "back^H^?^M",
		"\x00":            "^@",
		"c1 \u009b2J":     "c1 <U+009B>2J",
		"bidi \u202etxt":  "bidi <U+202E>txt",
		"invalid \uFFFD ": "invalid \uFFFD ",
	} {
		if got := Visible(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestFacts checks the facts of a cluster with and without a leader.
func TestFacts(t *testing.T) {
	t.Parallel()
	s := Status{Queues: &Queues{Queues: []QueueStats{{Waiting: 3}}}, Outbox: NoOutbox("away")}
	want := []string{"LEADER nobody", "NODES none", "DAEMONS none", "QUEUE 3 waiting, 0 active", "OUTBOX unknown: away"}
	if got := s.Facts(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	s = Status{Leader: &Leader{Node: "a", TermOrdinal: 4, ElectedAt: Time{time.Unix(0, 0)}, ExpiresAt: Time{time.Unix(70, 0)}}, At: Time{time.Unix(61, 0)}}
	want = []string{"LEADER a (term 4, 1m01s)", "LEASE 9.0s left", "NODES none", "DAEMONS none"}
	if got := s.Facts(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
