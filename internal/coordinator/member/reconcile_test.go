package member

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
)

// The whole table as a story: what is listed, what runs, the highest generation that ever ran here,
// and what to do.
const reconcileTable = `
# listed       run                  ran  action
-              -                    0    nothing
-              7 started            7    cancel
-              7 started cancelled  7    nothing
-              7 cancelled abandoned 7   nothing

assigning@7    -                    0    start
assigning@7    -                    5    start
assigning@7    -                    7    release
assigning@7    7                    7    nothing
assigning@7    7 started            7    acknowledge
assigning@7    7 started cancelled  7    nothing
assigning@7    5 started            5    cancel
assigning@7    5 cancelled          5    nothing
assigning@7    5 cancelled abandoned 5   abandon

active@7       7 started            7    nothing
active@7       7 started cancelled  7    nothing
active@7       -                    7    resume
active@7       -                    9    resume
active@7       -                    5    start
active@7       5 started            5    cancel
active@7       7 cancelled abandoned 7   abandon

revoking@7     7 started            7    drain
revoking@7     7                    7    drain
revoking@7     7 started draining   7    nothing
revoking@7     7 started cancelled  7    nothing
revoking@7     -                    7    confirm
revoking@7     -                    0    confirm
revoking@7     5 started            5    cancel
revoking@7     7 cancelled abandoned 7   abandon

deleted@7      7 started            7    cancel
unassigned@7   -                    7    nothing
paused@7       -                    0    nothing
paused@7       7 started            7    nothing
`

func TestReconcile(t *testing.T) {
	t.Parallel()
	for _, line := range strings.Split(reconcileTable, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		action, ran := f[len(f)-1], int64(f[len(f)-2][0]-'0')
		got := reconcile(parseRecord(f[0]), parseRun(f[1:len(f)-2]), ran)
		if string(got) != action {
			t.Errorf("%q: %s", strings.Join(f, " "), got)
		}
	}
}

func parseRecord(s string) *daemon.Record {
	state, generation, ok := strings.Cut(s, "@")
	if !ok {
		return nil
	}
	return &daemon.Record{State: daemon.State(state), Generation: int64(generation[0] - '0')}
}

func parseRun(words []string) *localRun {
	if words[0] == "-" {
		return nil
	}
	r := &localRun{Generation: int64(words[0][0] - '0')}
	for _, w := range words[1:] {
		switch w {
		case "started":
			r.Started = true
		case "draining":
			r.Draining = true
		case "cancelled":
			r.Cancelled = true
		case "abandoned":
			r.Abandoned = true
		}
	}
	return r
}
